"""The walk over tiles: what must hold whatever the machine and the product."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import Error
from npusim.schedule import best_schedule, ideal_cycles, product_work
from npusim.schedule.cost import TICKS
from npusim.simulate.tiles import array_cycles, walk, walk_product
from npusim.targets import Npu, TargetConfig, override


def machine(name: str, *settings: str) -> Npu:
    hardware = override(TargetConfig.named(name), settings).hardware
    assert hardware is not None and hardware.npu is not None
    return hardware.npu


NPUS = {
    name: machine(name)
    for name in ("npu-edge-32x32", "scale-32-ws", "scale-32-os", "scale-32-is", "gemmini-8")
} | {
    "four cores": machine("npu-edge-32x32", "cores.count=4"),
    "one buffer": machine("scale-32-os", "sram.l1.double_buffer=false"),
}
names = st.sampled_from(sorted(NPUS))
sizes = st.integers(1, 1500)


@settings(max_examples=60, deadline=None)
@given(names, sizes, sizes, sizes)
def test_the_parts_sum_to_the_whole(name: str, m: int, k: int, n: int) -> None:
    npu = NPUS[name]
    found = walk_product(npu, m, k, n, "int8")
    assert sum(found.causes.values()) == found.ticks
    assert all(part >= 0 for part in found.causes.values())
    assert found == walk_product(npu, m, k, n, "int8")
    # Nothing takes less than what one of its parts takes alone.
    moved = found.dram_read + found.dram_written
    assert found.cycles * npu.dram_bytes_per_cycle * 1.001 + 1 >= moved
    assert found.causes["compute"] > 0 and moved >= m * k + k * n + m * n


@settings(max_examples=60, deadline=None)
@given(names, sizes, sizes, sizes, st.floats(0.1, 4), st.floats(1, 8))
def test_more_bandwidth_is_never_slower(
    name: str, m: int, k: int, n: int, share: float, faster: float
) -> None:
    npu = NPUS[name]
    schedule = best_schedule(npu, product_work(m, n, k, "int8"))
    slow, fast = (
        walk(replace(npu, dram=replace(npu.dram, gb_per_s=gb)), schedule).ticks
        for gb in (share * npu.dram.gb_per_s, share * npu.dram.gb_per_s * faster)
    )
    assert fast <= slow


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["ws", "os", "is"]), st.integers(2, 40), st.integers(2, 20), sizes)
def test_more_rows_are_never_slower_where_they_are_used(
    dataflow: str, folds: int, across: int, n: int
) -> None:
    npu = NPUS[f"scale-32-{dataflow}"]
    rows, twice = npu.mxu.rows, replace(npu, mxu=replace(npu.mxu, rows=2 * npu.mxu.rows))
    deep = 2 * rows * folds
    m, k, n = (deep, across * 64, n) if dataflow == "os" else (max(n, 128), deep, max(n, 128))
    assert array_cycles(twice, m, k, n, "int8") <= array_cycles(npu, m, k, n, "int8")


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([n for n in sorted(NPUS) if n != "four cores"]), sizes, sizes, sizes)
def test_folds_are_those_that_schedules_are_chosen_by(name: str, m: int, k: int, n: int) -> None:
    npu = NPUS[name]
    assert array_cycles(npu, m, k, n, "int8") == ideal_cycles(npu, m, n, k, "int8")


def test_one_tile_by_hand() -> None:
    """Loads, one after the other where both may take all of DRAM; the array; the result."""
    npu = machine("scale-32-os", "dma.channels=1", "dram.gb_per_s=64", "dma.bytes_per_cycle=64")
    found = walk_product(npu, 32, 64, 32, "int8")
    loads, folds, store = (32 * 64 + 64 * 32) // 64, 64 + 32 + 32 - 2, 32 * 32 // 64
    assert found.tiles == 1 and found.copies == 3
    assert found.causes["compute"] == folds * TICKS
    assert found.causes["bank"] > 0  # one bank with one port, which copies take turns at
    assert found.ticks - found.causes["bank"] == (loads + folds + store) * TICKS


def test_a_loose_memory_is_to_blame() -> None:
    slow = walk_product(machine("npu-edge-32x32", "dram.gb_per_s=1"), 512, 512, 512, "int8")
    assert max(slow.causes, key=lambda cause: slow.causes[cause]) == "dram"


@pytest.mark.parametrize(("m", "k", "n"), [(0, 1, 1), (1, 0, 1), (1, 1, -1)])
def test_sizes_below_one_are_refused(m: int, k: int, n: int) -> None:
    with pytest.raises(Error, match="below 1"):
        array_cycles(NPUS["gemmini-8"], m, k, n, "int8")
    with pytest.raises(Error, match="does not multiply"):
        array_cycles(NPUS["gemmini-8"], 1, 1, 1, "float32")


def test_products_beyond_what_is_counted_are_refused() -> None:
    npu = TargetConfig.named("tpu-v3").npu
    assert npu is not None
    assert array_cycles(npu, 2**20, 2**20, 2**20, "bfloat16") > 2**40
    for m, repeats in ((2**20 + 1, 1), (2**20, 2)):
        with pytest.raises(Error, match=r"2\^60 multiply-adds"):
            array_cycles(npu, m, 2**20, 2**20, "bfloat16", repeats)
    slow = replace(npu, mxu=replace(npu.mxu, macs_per_pe_cycle={"bfloat16": 1e-18}))
    with pytest.raises(Error, match=r"longer than 2\^50 cycles"):
        array_cycles(slow, 9, 9, 9, "bfloat16")

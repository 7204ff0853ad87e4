"""Estimates that schedules are chosen by against the walk, and the walk against more of a machine.

On all machines that ship, and on some with several cores or arrays, a single buffer, or lanes that
are added up one by one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import TargetConstraintError
from npusim.schedule import Schedule, best_schedule, conv_work, product_work
from npusim.schedule.cost import TICKS
from npusim.schedule.schedule import Sizes
from npusim.schedule.search import assess
from npusim.schedule.work import Part, Work
from npusim.simulate.tiles import walk
from npusim.targets import Npu, TargetConfig, override
from npusim.targets.target_config import target_names


def machine(name: str, *changes: str) -> Npu | None:
    hardware = override(TargetConfig.named(name), changes).hardware
    return hardware.npu if hardware else None


PRESETS = {name: npu for name in target_names() if (npu := machine(name)) is not None}
EDGE = PRESETS["npu-edge-32x32"]
MACHINES = PRESETS | {
    "four cores": replace(EDGE, cores=replace(EDGE.cores, count=4)),
    "three arrays": replace(EDGE, mxu=replace(EDGE.mxu, per_core=3)),
    "one buffer": replace(EDGE, sram=(replace(EDGE.sram[0], double_buffer=False),)),
    "no array": replace(EDGE, mxu=replace(EDGE.mxu, macs_per_pe_cycle={})),
    "one by one": replace(EDGE, vpu=replace(EDGE.vpu, lanes=7, reduce="serial")),
}
small, sizes = st.integers(1, 9), st.integers(1, 700)


def product(dtype: str, m: int, n: int, k: int, activation: float) -> Work:
    return replace(product_work(m, n, k, dtype), vector={"relu": activation * m * n})


def conv(dtype: str, k: int, size: int, n: int, kernel: int, stride: int) -> Work:
    image = (k, size + kernel, size + kernel)
    return conv_work(image, n, (kernel, kernel), dtype, stride)


def depthwise(dtype: str, pixels: int, channels: int, taps: int) -> Work:
    parts = (
        Part(0, "x", "mn", pixels * channels),
        Part(1, "w", "n", channels * taps),
        Part(2, "y", "mn", pixels * channels, write=True),
    )
    return Work("depthwise", dtype, Sizes(1, pixels, channels, 1), parts, taps=taps)


def rows(dtype: str, count: int, length: int) -> Work:
    elements = count * length
    parts = (Part(0, "x", "mn", elements), Part(1, "y", "mn", elements, write=True))
    vector, shape = {"exp": float(elements), "add": float(elements)}, Sizes(1, count, length)
    sums = {"sums": 2 * count, "addends": length}
    return Work("rows", dtype, shape, parts, vector, whole_rows=True, **sums)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Npu, Work]:
    npu = MACHINES[draw(st.sampled_from(sorted(MACHINES)))]
    dtype = draw(st.sampled_from(sorted(npu.multiplied)))
    works = st.one_of(
        st.builds(product, st.just(dtype), sizes, sizes, sizes, st.sampled_from([0.0, 1.0])),
        st.builds(conv, st.just(dtype), small, small, sizes, st.integers(1, 3), st.integers(1, 2)),
        st.builds(depthwise, st.just(dtype), sizes, sizes, small),
        st.builds(rows, st.sampled_from(sorted(npu.vpu.dtype_rate)), sizes, sizes),
    )
    return npu, draw(works)


def unbound(npu: Npu) -> Npu:
    """Returns a machine whose banks and sums never hold an array up."""
    level = replace(npu.level, bytes_per_cycle=1e9, banks=64)
    return replace(npu, sram=(level,), acc=replace(npu.acc, bytes_per_cycle=1e9))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_units_are_busy_as_long_as_estimated(case: tuple[Npu, Work]) -> None:
    """One formula: the estimate's cycles of a command are those of the walk, to the tick."""
    npu, work = unbound(case[0]), case[1]
    schedule = best_schedule(npu, work)
    found, tile = walk(npu, schedule), schedule.tile
    cores = min(npu.cores.count, schedule.trips("b") * schedule.trips("m") * schedule.trips("n"))
    estimated = assess(npu, work, tile)
    array = cores * estimated["array_cycles"]
    assert found.array_ticks == pytest.approx(array * TICKS, abs=1e-6)
    vector = cores * estimated["vector_cycles"]
    assert vector * TICKS <= found.vector_ticks + 1e-6 * vector * TICKS
    assert found.vector_ticks <= vector * TICKS + found.tiles + 1


@settings(max_examples=60, deadline=None)
@given(cases())
def test_no_walk_is_shorter_than_its_bounds(case: tuple[Npu, Work]) -> None:
    npu, work = case
    schedule = best_schedule(npu, work)
    found = walk(npu, schedule).cycles * (1 + 1e-9) + 1 / TICKS
    assert schedule.least_cycles <= found
    estimated = assess(npu, work, schedule.tile)
    assert max(estimated["array_cycles"], estimated["vector_cycles"]) <= found


RATES = ("dram.gb_per_s", "dma.bytes_per_cycle", "noc.gb_per_s", "sram.l1.bytes_per_cycle")


@settings(max_examples=100, deadline=None)
@given(cases(), st.sampled_from([*RATES, "acc.bytes_per_cycle"]), st.floats(1, 16))
def test_more_bandwidth_is_never_slower(case: tuple[Npu, Work], key: str, faster: float) -> None:
    """Of one schedule, on any machine, whatever else limits it."""
    npu, work = case
    table, _, name = key.rpartition(".")
    parts = {"dram": npu.dram, "dma": npu.dma, "noc": npu.noc, "acc": npu.acc, "sram.l1": npu.level}
    part = parts[table]
    quick = replace(part, **{name: getattr(part, name) * faster})
    more = replace(npu, **({"sram": (quick,)} if table == "sram.l1" else {table: quick}))
    schedule = best_schedule(npu, work)
    assert walk(more, schedule).ticks <= walk(npu, schedule).ticks


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(["sram", "acc"]), st.sampled_from([1.01, 1.5, 2, 4, 16]))
def test_a_larger_memory_is_never_slower(case: tuple[Npu, Work], key: str, larger: float) -> None:
    """What fitted before is still tried, and the shortest of all is chosen by walking it."""
    npu, work = case
    level = replace(npu.level, kib=npu.level.kib * larger)
    acc = replace(npu.acc, kib=npu.acc.kib * larger)
    more = replace(npu, **({"sram": (level,)} if key == "sram" else {"acc": acc}))
    with suppress(TargetConstraintError):
        before = walk(npu, best_schedule(npu, work)).ticks
        assert walk(more, best_schedule(more, work)).ticks <= before


def compute_bound(npu: Npu, folds: int, across: int, stream: int) -> Work:
    """Returns a product whose depth or rows fill a doubled array, of much work for each byte."""
    rows, cols = 2 * npu.mxu.rows * npu.mxu.per_core, npu.mxu.cols
    stream = max(stream, 2 * rows)
    dataflow = npu.mxu.dataflow
    m, n, k = {
        "ws": (stream, across * cols, folds * rows),
        "os": (folds * rows, across * cols, stream),
        "is": (across * cols, stream, folds * rows),
    }[dataflow]
    return product_work(m, n, k, sorted(npu.mxu.macs_per_pe_cycle)[0])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PRESETS)), small, small, sizes)
def test_more_rows_are_never_slower_on_products_bound_by_computing(
    name: str, folds: int, across: int, stream: int
) -> None:
    """On one tile, which both arrays take whole, and with memories that do not hold it up."""
    npu = PRESETS[name]
    work = compute_bound(npu, folds, across, stream)
    one = in_one_tile(best_schedule(npu, work), work)
    twice = replace(npu, mxu=replace(npu.mxu, rows=2 * npu.mxu.rows))
    slow, fast = walk(_boundless(npu), one), walk(_boundless(twice), one)
    assert fast.ticks <= slow.ticks
    assert slow.causes["compute"] >= 0.9 * slow.ticks


def in_one_tile(schedule: Schedule, work: Work) -> Schedule:
    plans = tuple(
        replace(plan, total_bytes=part.nbytes, transfers=1, resident=False)
        for plan, part in zip(schedule.operands, work.parts, strict=True)
    )
    return replace(schedule, tile=schedule.sizes, operands=plans)


def _boundless(npu: Npu) -> Npu:
    """Returns a machine of one core whose memories hold everything at once and far faster."""
    level = replace(npu.level, kib=2**30, bytes_per_cycle=1e12, banks=64)
    dram = replace(
        npu.dram, gb_per_s=1e9, read_latency_ns=0, write_latency_ns=0, capacity_mib=2**21
    )
    dma = replace(npu.dma, bytes_per_cycle=1e9, setup_cycles=0)
    acc = replace(npu.acc, kib=2**30, bytes_per_cycle=1e12)
    cores = replace(npu.cores, count=1)
    return replace(npu, sram=(level,), dram=dram, dma=dma, acc=acc, cores=cores)


def test_stationary_inputs_take_a_channel_at_a_time() -> None:
    npu, work = PRESETS["scale-32-is"], depthwise("int8", 100, 3, 9)
    each = 4 * (1 + 32 + 32 - 2 + 32)  # ceil(9 / 32) * ceil(100 / 32) folds of one filter
    assert assess(npu, work, work.sizes)["array_cycles"] == 3 * each
    shared = PRESETS["scale-32-ws"]  # a fold holds one channel's filter in one of its columns
    assert assess(shared, work, work.sizes)["array_cycles"] == 3 * (100 + 32 + 32 - 2 + 32)

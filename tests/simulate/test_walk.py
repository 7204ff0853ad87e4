"""The native walk against the model said plainly (`reference_walk.py`), to the tick, and against
itself without its shortcut where the plain one would take too long."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim import _runtime
from npusim.errors import Error

from .reference_walk import Reference, with_unhidden

KEYS = ("ticks", "causes", "tiles", "copies", "array_ticks", "vector_ticks", "hop_bytes")


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Any]:
    def one(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    cores = one(1, 1, 1, 2, 3, 4)
    array = {
        "rows": one(1, 4, 8), "cols": one(1, 4, 16), "per_core": one(1, 2),
        "min_stream_rows": one(1, 16), "overlaps": draw(st.booleans()),
        "macs_per_pe_cycle": one(1.0, 0.25, 2.0), "dataflow": one("ws", "os", "is"),
    }  # fmt: skip
    memory = {
        "dram_bytes_per_cycle": one(0.3, 3.0, 16.5, 1e9), "dram_channels": one(1, 2, 4),
        "interleave_bytes": one(64, 4096), "read_latency_ticks": one(0, 777, 100_000),
        "write_latency_ticks": one(0, 500), "noc_bytes_per_cycle": one(0.0, 2.5),
        "hop_cycles": one(0, 3), "hops": [1 + core for core in range(cores)],
        "dma_bytes_per_cycle": one(0.7, 8.0, 64.0), "dma_channels": one(1, 2, 3),
        "setup_cycles": one(0, 5, 90), "burst_bytes": one(1, 64), "max_dims": one(1, 2, 3),
        "sram_bytes_per_cycle": one(1.5, 32.0, 1e6), "acc_bytes_per_cycle": one(2.0, 1e6),
        "sram_accesses": one(1, 3),
    }  # fmt: skip
    return {
        "array": array, "memory": memory, "cores": cores, "sync_cycles": one(0, 11),
        "array_share": one(1.0, 0.7), "overlap_p": one(math.inf, math.inf, 1.0, 2.5),
    }  # fmt: skip


@st.composite
def works(draw: st.DrawFn, most: int, tiles: int) -> dict[str, Any]:
    sizes = [draw(st.integers(1, most)) for _ in range(4)]
    tile = [draw(st.integers(max(1, size // tiles), size)) for size in sizes]
    outer = draw(st.permutations([0, 1, 2]))
    on_array = draw(st.booleans())
    x, w = draw(st.sampled_from([(0b1011, 0b1101), (0b1010, 0b1100), (0b0010, 0b0010)]))
    moved = st.sampled_from([True, True, True, False])
    total, row = st.integers(1, 50_000), st.sampled_from([1, 17, 64, 100_000])
    operands = [
        (axes, write, draw(moved), draw(st.booleans()) and not write, draw(total), draw(row))
        for axes, write in ((x, False), (w, False), (0b0111, True), (0b0100, False))
    ]
    if not on_array:  # nothing is summed over
        sizes[3] = tile[3] = 1
    elements = float(sizes[0] * sizes[1] * sizes[2])
    return {
        "on_array": on_array, "sizes": sizes, "tile": tile, "loops": [*outer, 3],
        "taps": draw(st.sampled_from([1, 9])), "depthwise": draw(st.booleans()),
        "double_buffer": draw(st.booleans()), "element_bytes": draw(st.sampled_from([1, 2])),
        "vector_rate": draw(st.sampled_from([1.0, 4.0])),
        "vector": draw(st.sampled_from([[], [(elements, 1.0), (elements, 2.5)]])),
        "operands": operands[: draw(st.integers(0, 4))],
    }  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(machines(), works(most=12, tiles=5))
def test_a_walk_is_that_of_the_model(machine: dict[str, Any], work: dict[str, Any]) -> None:
    reference = Reference(machine, work)
    found = _runtime.walk_tiles(machine, work, 10_000)
    wanted = with_unhidden(reference.run(), machine, found["dram_read"] + found["dram_written"])
    assert {key: found[key] for key in KEYS} == wanted
    assert sum(found["causes"]) == found["ticks"]
    moved = {True: found["dram_written"], False: found["dram_read"]}
    for write, nbytes in moved.items():
        assert nbytes == pytest.approx(reference.moved[write], abs=4)
    sram = sum(tile.sram for tiles in reference.tiles for tile in tiles)
    assert found["sram_bytes"] == sram + found["dram_read"] + found["dram_written"]
    for lane in (0, 1):  # what is shown of the units is all that they do
        shown = sum(one[4] for one in found["timeline"] if one[0] == lane)
        assert shown == found["array_ticks" if lane == 0 else "vector_ticks"]


@settings(max_examples=150, deadline=None)
@given(machines(), works(most=200, tiles=40), st.sampled_from([0, 64, 10**6]))
def test_periods_are_counted_as_they_are_walked(
    machine: dict[str, Any], work: dict[str, Any], events: int
) -> None:
    """Whole answers, but for how many tiles were walked and where a picture joins them."""
    short, long = (_runtime.walk_tiles(machine, work, events, way) for way in (True, False))
    shown = [sorted(found.pop("timeline")) for found in (short, long)]
    for found, timeline in zip((short, long), shown, strict=True):
        assert sum(one[5] for one in timeline) == (found["events"] if events else 0)
        assert all(0 <= one[2] < one[3] <= found["ticks"] for one in timeline)
    if events > 64 and all(one[5] == 1 for one in shown[0]):  # each period was told by itself
        assert shown[0] == shown[1]
    assert short.pop("walked") <= long.pop("walked") == short["tiles"]
    assert short == long


RATES = (
    *("dram_bytes_per_cycle", "noc_bytes_per_cycle", "dma_bytes_per_cycle"),
    *("sram_bytes_per_cycle", "acc_bytes_per_cycle"),
)
DELAYS = ("read_latency_ticks", "write_latency_ticks", "hop_cycles", "setup_cycles")


@settings(max_examples=300, deadline=None)
@given(machines(), works(most=40, tiles=12), st.data())
def test_what_is_faster_never_takes_longer(
    machine: dict[str, Any], work: dict[str, Any], data: st.DataObject
) -> None:
    """Whatever else limits: all that is finite, several cores, one buffer or two."""
    more = st.sampled_from([1.0, 1.0, 1.01, 1.5, 2.0, 10.0, 1e6])
    memory, array = machine["memory"], machine["array"]
    faster = {key: memory[key] * data.draw(more, key) for key in RATES}
    sooner = {key: data.draw(st.integers(0, memory[key])) for key in DELAYS}
    array = {**array, "macs_per_pe_cycle": array["macs_per_pe_cycle"] * data.draw(more)}
    better = {**machine, "memory": {**memory, **faster, **sooner}, "array": array}
    eager = {**work, "vector_rate": work["vector_rate"] * data.draw(more, "vector_rate")}
    slow, fast = _runtime.walk_tiles(machine, work), _runtime.walk_tiles(better, eager)
    assert fast["ticks"] <= slow["ticks"]


def _long(**sizes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    array = {
        "rows": 4, "cols": 4, "per_core": 1, "min_stream_rows": 1, "overlaps": False,
        "macs_per_pe_cycle": 1.0, "dataflow": "os",
    }  # fmt: skip
    memory = {
        "dram_bytes_per_cycle": 3.0, "dram_channels": 1, "interleave_bytes": 64,
        "read_latency_ticks": 777, "write_latency_ticks": 5, "noc_bytes_per_cycle": 0.0,
        "hop_cycles": 0, "hops": [1], "dma_bytes_per_cycle": 8.0, "dma_channels": 2,
        "setup_cycles": 5, "burst_bytes": 64, "max_dims": 4, "sram_bytes_per_cycle": 32.0,
        "acc_bytes_per_cycle": 32.0, "sram_accesses": 3,
    }  # fmt: skip
    machine = {
        "array": array, "memory": memory, "cores": 1, "sync_cycles": 0, "array_share": 1.0,
        "overlap_p": math.inf,
    }  # fmt: skip
    tile = [4] * 4
    size = [sizes.get(axis, 4) for axis in "bmnk"]
    b, m, n, k = size
    operands = [
        (0b1011, False, True, False, b * m * k, 64),
        (0b1101, False, True, False, b * n * k, 64),
        (0b0111, True, True, False, b * m * n, 64),
    ]
    work = {
        "on_array": True, "sizes": size, "tile": tile, "loops": [0, 1, 2, 3], "taps": 1,
        "depthwise": False, "double_buffer": True, "element_bytes": 1, "vector_rate": 4.0,
        "vector": [], "operands": operands,
    }  # fmt: skip
    return machine, work


@pytest.mark.parametrize("axis", "bmnk")
def test_one_long_loop_is_not_walked(axis: str) -> None:
    machine, work = _long(**{axis: 4 * 2**20})
    found = _runtime.walk_tiles(machine, work)
    assert found["tiles"] == 2**20 and found["walked"] < 2000
    less, work = _long(**{axis: 4 * 1000})
    few, walked = (_runtime.walk_tiles(less, work, 0, way) for way in (True, False))
    assert few["ticks"] == walked["ticks"]


def test_loops_within_loops_are_not_walked() -> None:
    machine, work = _long(m=4 * 1000, n=4 * 1000, k=4 * 16)
    found = _runtime.walk_tiles(machine, work)
    assert found["tiles"] == 16_000_000 and found["walked"] < 100_000
    assert sum(found["causes"]) == found["ticks"]


RATES = (
    *("dram_bytes_per_cycle", "dma_bytes_per_cycle", "sram_bytes_per_cycle"),
    "noc_bytes_per_cycle",
)


@pytest.mark.parametrize("key", [key for key in RATES if key != "sram_bytes_per_cycle"])
@pytest.mark.parametrize("rate", [1 / 16, 65.999 / 1024, 0.1])
def test_rates_are_counted_in_parts_of_1024_and_never_faster(key: str, rate: float) -> None:
    machine, work = _long(m=64, n=4, k=4)
    memory = machine["memory"]
    assert isinstance(memory, dict)
    found = _runtime.walk_tiles({**machine, "memory": {**memory, key: rate}}, work)
    counted = {**memory, key: math.floor(rate * 1024) / 1024}
    assert found["ticks"] == _runtime.walk_tiles({**machine, "memory": counted}, work)["ticks"]
    moved = found["dram_read"] + found["dram_written"]
    channels = memory["dma_channels"] if key == "dma_bytes_per_cycle" else 1
    assert found["ticks"] / 1024 >= moved / channels / rate


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        *(("memory", key, value) for value in (0.0, -1.0, float("nan"))
          for key in ("dram_bytes_per_cycle", "dma_bytes_per_cycle", "sram_bytes_per_cycle")),
        *(("memory", key, 0) for key in ("dram_channels", "dma_channels", "burst_bytes")),
        ("memory", "interleave_bytes", 0), ("memory", "max_dims", 0),
        ("memory", "acc_bytes_per_cycle", 0.0),
        ("memory", "noc_bytes_per_cycle", -1.0), ("memory", "setup_cycles", -1),
        ("memory", "read_latency_ticks", -1), ("memory", "hops", []),
        ("array", "rows", 0), ("array", "cols", 0), ("array", "per_core", 0),
        ("array", "macs_per_pe_cycle", 0.0), ("array", "dataflow", "x"),
        ("", "cores", 0), ("", "array_share", 0.0), ("", "array_share", 1.5),
        ("", "overlap_p", 0.9), ("", "overlap_p", math.nan),
        ("work", "sizes", [0, 1, 1, 1]), ("work", "tile", [1, 8, 1, 1]),
        ("work", "tile", [0, 1, 1, 1]), ("work", "loops", [3, 0, 1, 2]),
        ("work", "loops", [0, 0, 1, 3]), ("work", "loops", [0, 1, 3]), ("work", "loops", [7]),
        ("work", "taps", 0), ("work", "vector_rate", 0.0),
        ("work", "sizes", [2**40, 4, 4, 4]), ("work", "tile", [1, 2**62, 1, 1]),
        ("work", "vector", [(1e300, 1e300)]), ("memory", "sram_bytes_per_cycle", 1e-300),
        ("memory", "setup_cycles", 2**60), ("", "sync_cycles", -1),
        ("array", "macs_per_pe_cycle", 1e-30), ("array", "min_stream_rows", 2**62),
        *(("memory", key, math.nextafter(1 / 16, 0)) for key in RATES),
        ("memory", "dram_channels", 49),
    ],
)  # fmt: skip
def test_numbers_that_mean_nothing_are_refused(table: str, key: str, value: Any) -> None:
    machine, work = _long(n=16)
    at = {"": machine, "work": work}.get(table) or machine[table]
    assert isinstance(at, dict)
    at[key] = value
    with pytest.raises(Error):
        _runtime.walk_tiles(machine, work)

"""The native choice of tiles against the plain one that walks every tiling that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import Error, TargetConstraintError
from npusim.schedule import Part, Sizes, Work, best_schedule, product_work
from npusim.schedule.cost import TICKS
from npusim.schedule.schedule import Form
from npusim.schedule.search import assess, scheduled
from npusim.simulate.tiles import walk
from npusim.targets import Npu, TargetConfig
from npusim.targets.target_config import target_names

from . import reference_search as reference

PRESETS = {
    name: hardware.npu
    for name in target_names()
    if (hardware := TargetConfig.named(name).hardware) is not None and hardware.npu is not None
}
DIMS = st.one_of(st.integers(1, 9), st.sampled_from([16, 31, 64, 100, 200]))


@st.composite
def machines(draw: st.DrawFn) -> Npu:
    npu = PRESETS[draw(st.sampled_from(sorted(PRESETS)))]
    kib = draw(st.sampled_from([9.0, 12.0, 16.0, 64.0]))
    level = replace(
        npu.level, kib=kib, double_buffer=draw(st.booleans()), align_bytes=1, whole_kib=0.0
    )
    granule = replace(
        npu.constraints.tile_multiple,
        m=draw(st.sampled_from([1, 4])),
        n=draw(st.sampled_from([1, 4, 32])),
        k=draw(st.sampled_from([1, 4, 32])),
    )
    return replace(
        npu,
        sram=(level,),
        acc=replace(npu.acc, kib=draw(st.sampled_from([1.0, 2.0, 64.0]))),
        cores=replace(npu.cores, count=draw(st.sampled_from([1, 1, 3]))),
        mxu=replace(npu.mxu, dataflow=draw(st.sampled_from(["ws", "os", "is"]))),
        constraints=replace(npu.constraints, tile_multiple=granule),
        dram=replace(
            npu.dram, gb_per_s=npu.dram.gb_per_s * draw(st.sampled_from([0.1, 1.0, 10.0]))
        ),
    )


@st.composite
def works(draw: st.DrawFn) -> Work:
    forms: list[Form] = ["product", "conv", "depthwise", "rows", "elements", "move"]
    form = draw(st.sampled_from(forms))
    b, m, n, k = (draw(DIMS) for _ in "bmnk")
    sizes = {
        "depthwise": Sizes(1, m, n, 1), "rows": Sizes(1, m, n, 1),
        "elements": Sizes(1, m * n, 1, 1), "move": Sizes(1, m * n, 1, 1),
    }.get(form, Sizes(min(b, 4), m, n, k))  # fmt: skip
    axes = {"product": ("bmk", "nk", "bmn"), "conv": ("mk", "nk", "mn")}.get(
        form, ("mn", "n", "mn") if sizes.n > 1 or form == "rows" else ("m", "m", "m")
    )
    halo = draw(st.sampled_from([0, 0, 24]))
    parts = tuple(
        Part(
            *(at, role, has, draw(st.integers(1, 4)) * elements(sizes, has), at == 2),
            inner=draw(st.sampled_from(has)),
            halo_bytes=halo if at == 0 else 0,
        )
        for at, (role, has) in enumerate(zip("xwy", axes, strict=True))
    )
    count = float(sizes.b * sizes.m * sizes.n)
    return Work(
        form,
        draw(st.sampled_from(["int8", "float32"])),
        sizes,
        parts,
        {"add": count} if form != "move" and draw(st.booleans()) else {},
        taps=draw(st.sampled_from([1, 9])) if form in ("conv", "depthwise") else 1,
        whole_rows=form == "rows",
        sums=sizes.m if form == "rows" else 0,
        addends=sizes.n if form == "rows" else 1,
    )


def elements(sizes: Sizes, axes: str) -> int:
    count = 1
    for axis in axes:
        count *= sizes.of(axis)
    return count


@settings(max_examples=150, deadline=None)
@given(machines(), works(), st.sampled_from([(), (0,), (0, 2)]), st.sampled_from([0, 1000]))
def test_the_choice_is_the_shortest_walk_of_all_tilings(
    npu: Npu, work: Work, kept: tuple[int, ...], taken: int
) -> None:
    taken = min(taken, npu.level.bytes // 2)
    tried = list(reference.tilings(npu, work, kept, taken))
    if not tried:
        with pytest.raises(TargetConstraintError, match="too many"):
            best_schedule(npu, work, kept, taken)
        return
    found = best_schedule(npu, work, kept, taken)
    resident = next((p.operand for p in found.operands if p.resident), None)
    assert reference.Tiling(found.tile, found.loops, resident) in tried  # type: ignore[arg-type]
    assert found.bytes <= npu.level.bytes
    if found.unit == "host":
        return
    least = min(walked(npu, work, one, kept) for one in tried)
    assert walk(npu, found).ticks == least


def walked(npu: Npu, work: Work, one: reference.Tiling, kept: tuple[int, ...]) -> int:
    schedule = scheduled(npu, work, one.tile, one.loops, one.resident, kept)
    bound = assess(npu, work, one.tile, kept, one.loops, one.resident)["least_cycles"]
    ticks = walk(npu, schedule).ticks
    assert bound * TICKS <= ticks
    return ticks


@settings(max_examples=100, deadline=None)
@given(machines(), works(), st.sampled_from([(), (0,)]), st.data())
def test_estimates_are_those_of_the_plain_search(
    npu: Npu, work: Work, kept: tuple[int, ...], data: st.DataObject
) -> None:
    tried = list(reference.tilings(npu, work, kept, 0))
    if not tried:
        return
    one = data.draw(st.sampled_from(tried))
    found = assess(npu, work, one.tile, kept, one.loops, one.resident)
    cycles, moved, tiles = reference.estimate(npu, work, one, kept)
    assert found["cycles"] == pytest.approx(cycles)
    assert (found["moved_bytes"], found["tiles"]) == (moved, tiles)


@settings(max_examples=50, deadline=None)
@given(machines(), works(), st.sampled_from([0.0, 1.0, 32.0]), st.floats(1, 20))
def test_the_choice_is_never_slower_on_a_faster_machine(
    npu: Npu, work: Work, whole_kib: float, faster: float
) -> None:
    """Each is walked with its own schedule, on machines whose memories hold the same."""
    npu = replace(npu, sram=(replace(npu.level, whole_kib=whole_kib),))
    level = replace(npu.level, bytes_per_cycle=npu.level.bytes_per_cycle * faster)
    better = (
        replace(npu, dram=replace(npu.dram, gb_per_s=npu.dram.gb_per_s * faster)),
        replace(npu, dma=replace(npu.dma, bytes_per_cycle=npu.dma.bytes_per_cycle * faster)),
        replace(npu, noc=replace(npu.noc, gb_per_s=npu.noc.gb_per_s * faster)),
        replace(npu, sram=(level,)),
        replace(npu, dram=replace(npu.dram, read_latency_ns=npu.dram.read_latency_ns / faster)),
    )
    try:
        slow = walk(npu, best_schedule(npu, work))
    except (TargetConstraintError, Error):
        return
    for machine in better:
        assert walk(machine, best_schedule(machine, work)).ticks <= slow.ticks


@settings(max_examples=150, deadline=None)
@given(machines(), works(), st.sampled_from([0.5, 4.0, 64.0]), st.sampled_from([0, 1000]))
def test_what_fits_is_copied_whole_where_a_machine_does_so(
    npu: Npu, work: Work, kib: float, taken: int
) -> None:
    """Computing begins when all is there, and results leave when it has ended."""
    taken = min(taken, npu.level.bytes // 2)
    whole = replace(npu, sram=(replace(npu.level, whole_kib=kib),))
    try:
        found = best_schedule(whole, work, (), taken)
    except TargetConstraintError:
        return
    sums = 4 * work.sizes.m * work.sizes.n if found.unit == "mxu" else 0
    nbytes = sum(part.nbytes for part in work.parts)
    fits = nbytes <= npu.level.bytes - taken and sums <= npu.acc.bytes
    if not fits or max(part.nbytes for part in work.parts) > 1024 * kib:
        assert found == best_schedule(npu, work, (), taken)
        return
    assert found.tile == work.sizes and not found.double_buffer
    assert found.bytes == nbytes + taken
    if found.unit != "host":
        lanes = walk(whole, found, 10_000).events
        computed = [e for e in lanes if not e.lane.rpartition(" ")[2].startswith("dma")]
        copies = [e for e in lanes if e not in computed]
        for event in computed:
            assert all(c.end <= event.start or c.start >= event.end for c in copies)


def test_products_of_few_rows_are_the_vector_units() -> None:
    npu = PRESETS["npu-edge-32x32"]
    least = replace(npu, mxu=replace(npu.mxu, min_rows=4))
    for rows in (1, 3, 4, 5):
        work = product_work(rows, 64, 64, "int8")
        assert best_schedule(least, work).unit == ("vpu" if rows < 4 else "mxu")
        assert best_schedule(npu, work).unit == "mxu"
    lacking = replace(least, vpu=replace(npu.vpu, dtype_rate={"float32": 1.0}))
    assert best_schedule(lacking, product_work(1, 64, 64, "int8")).unit == "mxu"


def test_of_equals_the_one_of_the_fewest_tiles_is_chosen() -> None:
    """What moves nothing and computes nothing takes no time in any number of tiles."""
    npu, count = PRESETS["npu-edge-32x32"], 150_528
    parts = (
        Part(0, "x", "m", 4 * count, inner="m"),
        Part(1, "y", "m", 4 * count, write=True, inner="m"),
    )
    work = Work("move", "float32", Sizes(m=count), parts)
    assert best_schedule(npu, work, (0, 1)).steps == 1


def test_sizes_that_mean_nothing_are_refused() -> None:
    npu = PRESETS["npu-edge-32x32"]
    work = Work("move", "int8", Sizes(m=2**61), (Part(0, "x", "m", 8),))
    with pytest.raises(Error, match="so many elements"):
        best_schedule(npu, work)
    with pytest.raises(Error, match="at most all of it"):
        assess(npu, replace(work, sizes=Sizes(m=4)), Sizes(m=5))

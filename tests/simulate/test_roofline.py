"""The roofline of a device: its formula, what contradicts itself, and fitting it to times."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import pytest

from npusim.abi.kernel_cost import kernel_cost
from npusim.abi.kernels import KERNELS, Params
from npusim.abi.scalar import OPCODES
from npusim.abi.scalar_cost import MULTIPLY_ADDS
from npusim.errors import Error
from npusim.profile.profile import CommandProfile, Profile
from npusim.profile.reuse import Reuse
from npusim.simulate.calibrate import calibrate, held_out
from npusim.simulate.forms import form_of
from npusim.simulate.roofline import Work, command_time, run_time, work_of
from npusim.simulate.work_sizes import PRODUCTS
from npusim.targets import TargetConfig
from npusim.targets.roofline import MemoryLevel, Peak, Roofline, RooflineClass

LINEAR = RooflineClass("linear", ("linear",), 2.0, 0.5, 0.8, 1.0, 0.25, 16, 64, True)
OTHER = RooflineClass("other", (), 1.0, 0.5, 0.5, 2.0, 0.0, 1, 1, False)
DEVICE = Roofline(
    10.0,
    (Peak("float32", 1.0, 0.1), Peak("float16", 4.0, 0.2)),
    (MemoryLevel("cache", 1024, 100.0), MemoryLevel("dram", 0, 10.0)),
    (LINEAR, OTHER),
)


def linear(m: int, n: int, k: int, dtype: int = 0) -> Params:
    """Returns the parameters of a product that are not 0."""
    sizes = {"m": m, "n": n, "k": k, "rows": (n, 0, 0, 0), "segments": 1}
    return {**sizes, **{key: dtype for key in ("x_dtype", "w_dtype", "y_dtype") if dtype}}


def cost(stem: str, params: Params) -> tuple[int, int]:
    """Returns operations and bytes."""
    fields = {name: 0 if count == 1 else (0,) * count for name, _, count in KERNELS[stem].fields}
    found = kernel_cost(stem, {**fields, **params})
    return found.operations, sum(found.operand_bytes)


def test_the_formula_by_hand() -> None:
    params = linear(20, 100, 50)
    work = work_of("linear", params, *cost("linear", params))
    assert (work.groups, work.rows, work.columns, work.dtype) == (1, 20, 100, "float32")
    assert work.operations == 2 * 20 * 100 * 50
    assert work.nbytes == 4 * (20 * 50 + 100 * 50 + 20 * 100)
    time = command_time(work, "linear", DEVICE)
    # 2 by 2 tiles of 16 by 64 cover 32 by 128; half a tera operation and 80 GB a second.
    assert time.start == pytest.approx(1e-6 * (2.0 + 4 * 0.25), rel=1e-12)
    assert time.compute == pytest.approx(2 * 32 * 128 * 50 / 0.5e12, rel=1e-12)
    assert time.memory == pytest.approx(work.nbytes / 80e9, rel=1e-12)
    assert time.total == pytest.approx(time.start + time.compute + time.memory, rel=1e-12)
    assert time.level == "cache"


def test_tiles_go_in_whole_rounds_of_the_units() -> None:
    params = linear(20, 100, 50)
    work = work_of("linear", params, *cost("linear", params))
    assert work.tiles(16, 64) == 4
    covered = {1: 4, 2: 4, 3: 6, 4: 4, 5: 5, 132: 132}
    for units, tiles in covered.items():
        whole = work.whole(replace(LINEAR, units=units))
        assert whole == pytest.approx(tiles * 16 * 64 / (20 * 100), rel=1e-12)
    device = replace(DEVICE, classes=(replace(LINEAR, units=132), OTHER))
    alone = command_time(work, "linear", DEVICE).compute
    assert command_time(work, "linear", device).compute == pytest.approx(33 * alone, rel=1e-12)


def test_cores_share_tasks_that_may_not_come_out_even() -> None:
    params = linear(20, 100, 50)
    work = work_of("linear", params, *cost("linear", params))
    kind = replace(LINEAR, task_rows=16, task_columns=50)
    assert work.uneven(kind, 1) == work.uneven(LINEAR, 4) == 1
    assert [work.uneven(kind, cores) for cores in (2, 3, 4, 8)] == [1, 1.5, 1, 2]  # four tasks
    # In whole tiles 409,600 operations are three tasks of 130,000 and one of 300,000.
    assert work.uneven(replace(kind, task_operations=130_000), 2) == pytest.approx(4 / 3)
    assert work.uneven(replace(LINEAR, task_operations=300_000), 2) == 2
    alone, shared = DEVICE, replace(DEVICE, cores=3, classes=(kind, OTHER))
    one, three = (command_time(work, "linear", device) for device in (alone, shared))
    assert three.compute == pytest.approx(1.5 * one.compute, rel=1e-12)
    assert three.memory == pytest.approx(1.5 * one.memory, rel=1e-12)
    assert three.start == one.start


def test_a_run_on_some_of_the_cores_takes_their_part_of_the_peaks() -> None:
    params = linear(100, 72, 840)
    work = work_of("linear", params, *cost("linear", params))
    tasks = replace(LINEAR, task_rows=50, task_columns=72)  # two of them
    grid = replace(LINEAR, grid="panels", pack_ns=1.0)
    for kind in (LINEAR, tasks, grid):
        four = replace(DEVICE, cores=4, classes=(kind, OTHER))
        times = {n: command_time(work, "linear", replace(four, threads=n)) for n in (0, 1, 2, 3, 4)}
        assert times[0] == times[4]
        one, alone = times[1], command_time(work, "linear", replace(four, cores=1))
        assert one.compute == pytest.approx(4 * alone.compute, rel=1e-12)
        assert one.memory == pytest.approx(4 * alone.memory, rel=1e-12)
        fixed = 1e-6 * kind.start_us
        assert one.start - fixed == pytest.approx(4 * (alone.start - fixed), rel=1e-12)
        assert all(times[n].total >= times[n + 1].total for n in (1, 2, 3))
    assert work.uneven(tasks, 4, 2) == work.uneven(tasks, 4, 3) == 2
    apart = replace(LINEAR, core_share=0.5)
    one = command_time(work, "linear", replace(DEVICE, cores=4, threads=1, classes=(apart, OTHER)))
    assert one.memory == pytest.approx(2 * command_time(work, "linear", DEVICE).memory, rel=1e-12)


def winograd(size: int, channels: int, columns: int, act: int = 0) -> Params:
    """Returns the parameters of tiles of 4 by 4 that are not 0."""
    sizes = dict.fromkeys(("in_size", "out_size"), (1, size, size))
    counts = {"batch": 1, "in_channels": channels, "out_channels": columns, "tile": 4}
    return {**sizes, **counts, "kernel": (1, 3, 3), "act": act}


def test_winograds_tiles_are_products_whose_blocks_read_the_kernels_each() -> None:
    params, stem = winograd(56, 64, 128), "conv_winograd"
    kind = replace(LINEAR, stems=(stem,), grid="points", tile_rows=1, tile_columns=16)
    kind = replace(kind, item_rows=6, item_columns=64, pack_ns=0.5, gather_ns=0.25)
    device = replace(DEVICE, classes=(kind, OTHER))
    image, kernels, result = 4 * 56**2 * 64, 4 * 36 * 64 * 128, 4 * 56**2 * 128
    found = Reuse(((image, 1 << 20), (kernels, 1 << 30), (0, 1), (result, 1 << 21)), 0)
    work = work_of(stem, params, *cost(stem, params), found)
    assert (work.groups, work.rows, work.columns, work.depth) == (36, 14**2, 128, 64)
    assert work.operations == 2 * 36 * 196 * 128 * 64
    blocks = (33, 33, 33, 33, 32, 32)
    moved, before = work.moves(kind, 2)
    reach = kernels + 2 * 4 * 33 * 36 * (64 + 64)
    assert moved == ((kernels, 1 << 30), (5 * kernels, reach))
    assert before == ((image, 1 << 20), (0, 1), (result, 1 << 21))
    time = command_time(work, stem, device)
    parts = {part.what: part.seconds for part in time.parts}
    assert parts["items"] == pytest.approx(2.5e-7 * 36 * 2 * sum(-(-b // 6) for b in blocks))
    assert parts["packed elements"] == pytest.approx(5e-10 * 36 * 196 * (64 + 128))
    assert parts["gathered bytes"] == pytest.approx(2.5e-10 * result)  # the image is in the cache
    assert time.compute == pytest.approx(work.operations / 0.5e12)
    assert time.memory == pytest.approx((kernels / 10e9 + 5 * kernels / 10e9) / 0.8)
    unknown = work_of(stem, params, *cost(stem, params))
    assert sum(n for n, _ in sum(unknown.moves(kind, 2), ())) == unknown.nbytes + 5 * kernels
    other, none = unknown.moves(LINEAR, 2)
    assert other == ((unknown.nbytes, unknown.nbytes),) and none == ()


def test_activations_of_products_take_their_multiply_adds() -> None:
    kind = replace(LINEAR, finish_share=0.5)
    device = replace(DEVICE, classes=(kind, OTHER))
    for name, each in (("copy", 0), ("relu", 0), ("silu", 17), ("gelu", 22)):
        params = {**linear(20, 100, 50), "act": OPCODES[name][0]}
        work = work_of("linear", params, *cost("linear", params))
        without = command_time(work, "linear", DEVICE)
        more = command_time(work, "linear", device).start - without.start
        assert more == pytest.approx(each * 20 * 100 / (0.1e12 * 0.5), abs=1e-18)
    params = winograd(54, 16, 32, OPCODES["gelu"][0])
    assert (
        work_of("conv_winograd", params, *cost("conv_winograd", params)).finish == 22 * 54**2 * 32
    )


def test_a_run_wakes_cores_if_they_share_a_command() -> None:
    params = linear(100, 72, 840)
    work = work_of("linear", params, *cost("linear", params))
    tasks = replace(LINEAR, task_rows=50, task_columns=72)  # two of them
    whole = replace(LINEAR, task_operations=1 << 30)
    for kind, cores, threads, wakes in (
        *((tasks, 2, 0, True), (tasks, 2, 1, False)),
        *((whole, 2, 0, False), (LINEAR, 1, 0, False)),
    ):
        device = replace(DEVICE, cores=cores, threads=threads, classes=(kind, OTHER), wake_us=7.0)
        time = command_time(work, "linear", device)
        for count in (2, 1000):  # between short runs cores stay awake
            busy = count * time.total
            more = min(7e-6, 0.03 * busy) if wakes else 0.0
            fixed = 1e-6 * DEVICE.call_us + more
            assert run_time([time] * count, device) == pytest.approx(fixed + busy, rel=1e-9)
    assert run_time([], replace(DEVICE, cores=2, wake_us=7.0)) == 1e-6 * DEVICE.call_us


def test_cores_that_share_a_command_wait_for_each_other() -> None:
    params = linear(100, 72, 840)
    work = work_of("linear", params, *cost("linear", params))
    tasks = replace(LINEAR, task_rows=50, task_columns=72, shared_us=3.0)  # two of them
    whole = replace(LINEAR, task_operations=1 << 30, shared_us=3.0)
    for kind, cores, threads, more in (
        *((tasks, 2, 0, 3.0), (tasks, 2, 1, 0.0)),
        *((whole, 2, 0, 0.0), (tasks, 1, 0, 0.0)),
    ):
        device = replace(DEVICE, cores=cores, threads=threads, classes=(kind, OTHER))
        free = replace(device, classes=(replace(kind, shared_us=0.0), OTHER))
        waits, does_not = (command_time(work, "linear", one) for one in (device, free))
        assert waits.start - does_not.start == pytest.approx(1e-6 * more, rel=1e-9)
        assert waits.compute == does_not.compute and waits.memory == does_not.memory


@pytest.mark.parametrize("threads", [-1, 3])
def test_a_run_has_no_more_threads_than_cores(threads: int) -> None:
    with pytest.raises(ValueError, match="'threads' is"):
        replace(DEVICE, cores=2, threads=threads)


def test_a_kernels_own_grid_says_what_the_busiest_core_has() -> None:
    params = linear(100, 72, 840)
    work = work_of("linear", params, *cost("linear", params))
    kind = replace(LINEAR, grid="panels", pack_ns=1.0, item_rows=6, item_columns=64, item_depth=400)
    assert work.items(LINEAR) == 7 * 2 and work.items(kind) == 17 * 2 * 3
    assert replace(work, depth=0).items(replace(kind, item_depth=0)) == 17 * 2
    assert work.packed(kind) == 72 * 840 and work.packed(replace(kind, grid="")) == 72 * 840
    taller = replace(work, rows=130)  # two blocks of rows go through the second factor
    assert taller.packed(kind) == 2 * 72 * 840
    assert work.uneven(kind, 1) == 1 and work.uneven(kind, 2) == pytest.approx(1.2)  # 3 panels of 5
    alone, shared = (replace(DEVICE, cores=n, classes=(kind, OTHER)) for n in (1, 2))
    one, two = (command_time(work, "linear", device) for device in (alone, shared))
    items = 1e-6 * 0.25 * 17 * 2 * 3
    packed = 1e-9 * 72 * 840
    assert one.start == pytest.approx(2e-6 + items + packed, rel=1e-12)
    assert two.start == pytest.approx(2e-6 + 1.2 * (items + packed), rel=1e-12)
    assert two.compute == pytest.approx(1.2 * one.compute, rel=1e-12)
    assert two.memory == pytest.approx(1.2 * one.memory, rel=1e-12)


def test_a_core_by_itself_reaches_more_of_a_memorys_rate_than_its_part() -> None:
    params = linear(4, 24, 40)  # one task
    work = work_of("linear", params, *cost("linear", params))
    kind = replace(LINEAR, grid="panels")
    times = []
    for share in (0.0, 0.5, 0.8, 1.0):
        device = replace(DEVICE, cores=2, classes=(replace(kind, core_share=share), OTHER))
        times.append(command_time(work, "linear", device).memory)
    alone = command_time(work, "linear", DEVICE).memory
    assert times == pytest.approx([2 * alone, 2 * alone, alone / 0.8, alone], rel=1e-12)


def test_a_second_factor_is_packed_before_it_is_multiplied() -> None:
    params = linear(20, 100, 50)
    work = work_of("linear", params, *cost("linear", params))
    kind = replace(LINEAR, pack_ns=2.0, task_operations=300_000)
    packed = replace(DEVICE, cores=2, classes=(kind, OTHER))
    more = command_time(work, "linear", packed).start - command_time(work, "linear", DEVICE).start
    assert more == pytest.approx(2e-9 * 100 * 50 * 2, rel=1e-9)  # by one core of two


def test_dtype_memory_and_overlap() -> None:
    half = linear(16, 64, 64, dtype=1)
    work = work_of("linear", half, *cost("linear", half))
    assert work.dtype == "float16"
    product = command_time(work, "linear", DEVICE)
    assert product.compute == pytest.approx(work.operations / (4.0e12 * 0.5), rel=1e-12)
    large = replace(work, nbytes=1 << 20)
    assert command_time(large, "linear", DEVICE).level == "cache"
    larger = replace(work, nbytes=(1 << 20) + 1)
    assert command_time(larger, "linear", DEVICE).level == "dram"
    other = command_time(work, "norm", DEVICE)
    assert other.compute == pytest.approx(work.operations / (0.2e12 * 0.5), rel=1e-12)
    both = math.hypot(other.compute, other.memory)
    assert other.total == pytest.approx(other.start + both, rel=1e-12)


def test_nothing_to_do_takes_the_start_alone() -> None:
    empty = work_of("fill", {"element_size": 4, "rank": 1}, 0, 0)
    time = command_time(empty, "fill", DEVICE)
    assert time.total == time.start == pytest.approx(1e-6)


def test_functions_of_a_chain_cost_what_they_take() -> None:
    def operations(*names: str) -> int:
        code = [n for name in names for n in (OPCODES[name][0], 0, 0, 0, 0, 0)]
        params = {"n_instructions": len(names), "shape": (10, *[1] * 7), "x_dtype": (0,) * 12}
        params["code"] = (*code, *[0] * (384 - len(code)))
        return work_of("pointwise", params, 1, 1).operations

    assert operations("add") == operations("relu") == 10
    assert operations("copy") == 0
    assert operations("add", "exp", "mul") == 10 * (MULTIPLY_ADDS["exp"] + 2)
    assert operations("gelu") > operations("exp") > operations("div") > operations("mul")
    assert MULTIPLY_ADDS.keys() <= OPCODES.keys()


def test_a_run_is_its_commands_as_far_as_they_overlap() -> None:
    params = linear(16, 64, 64)
    work = work_of("linear", params, *cost("linear", params))

    def run(count: int, hidden_us: float) -> float:
        device = replace(DEVICE, classes=(replace(LINEAR, hidden_us=hidden_us), OTHER))
        return run_time([command_time(work, "linear", device)] * count, device)

    time = command_time(work, "linear", DEVICE)
    assert run(3, 0.0) == pytest.approx(10e-6 + 3 * time.total, rel=1e-12)
    assert run(3, 1.0) == pytest.approx(10e-6 + 3 * (time.total - 1e-6), rel=1e-12)
    # No more passes beside another command than what is fixed.
    assert run(1, 100.0) == pytest.approx(10e-6 + time.total - time.start, rel=1e-12)


def test_what_lies_behind_the_caches_takes_longer_and_comes_ahead_in_a_run() -> None:
    kind = replace(LINEAR, far_us=3.0, far_step_ns=20.0, cold_us=5.0, step_ns=10.0)
    device = replace(DEVICE, classes=(kind, OTHER))
    near = Work(1000, 1000, "float32", depth=100, reuse=((1000, 1 << 20),), code=1 << 20)
    far, cold = replace(near, reuse=((1000, 1 + (1 << 20)),)), replace(near, code=1 + (1 << 20))
    starts = [command_time(work, "linear", device).start for work in (near, far, cold)]
    assert starts[0] == pytest.approx(1e-6 * (2.0 + 0.25) + 100 * 10e-9, rel=1e-12)
    assert starts[1] - starts[0] == pytest.approx(3e-6 + 100 * 20e-9, rel=1e-9)
    assert starts[2] - starts[0] == pytest.approx(5e-6, rel=1e-9)
    # A class that hides nothing pays all of it; one that hides something, its steps alone.
    assert command_time(far, "linear", device).hidden == 0
    hides = replace(device, classes=(replace(kind, hidden_us=0.5), OTHER))
    found = [command_time(work, "linear", hides).hidden for work in (near, far, cold)]
    assert found == pytest.approx([0.5e-6, 3.5e-6, 5.5e-6], rel=1e-12)
    nowhere = replace(hides, memory=DEVICE.memory[1:])  # without caches nothing is farther
    assert command_time(far, "linear", nowhere).start == pytest.approx(starts[2], rel=1e-12)


def test_code_that_left_the_first_cache_is_fetched() -> None:
    kind = replace(LINEAR, cool_us=0.5, cold_us=5.0)
    device = replace(DEVICE, classes=(kind, OTHER), first_kib=32)
    codes = (0, 32 << 10, 1 + (32 << 10), 1 << 20, 1 + (1 << 20))
    works = [Work(1000, 1000, "float32", code=code) for code in codes]
    starts = [1e6 * command_time(work, "linear", device).start for work in works]
    assert [start - starts[0] for start in starts] == pytest.approx([0, 0, 0.5, 0.5, 5.5])
    nowhere = replace(device, first_kib=0)
    assert 1e6 * command_time(works[3], "linear", nowhere).start == pytest.approx(starts[0])


@pytest.mark.parametrize(
    ("given", "said"), [({"lanes": 5}, "'lanes' is 5"), ({"wake_share": 1.5}, "'wake_share' is")]
)
def test_vectors_and_shares_that_there_are_not_are_refused(given: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(DEVICE, **given)


def test_narrower_vectors_cut_work_into_other_tasks() -> None:
    params = linear(130, 72, 840)
    work = work_of("linear", params, *cost("linear", params))
    kind = replace(LINEAR, grid="panels", pack_ns=1.0)
    assert work.packed(kind) == 2 * 72 * 840  # rows by 120
    wide = replace(DEVICE, cores=2, classes=(kind, OTHER))
    narrow = work.on(replace(wide, lanes=8))
    assert narrow.packed(kind) == 72 * 840  # and by 132
    assert work.on(wide) is work
    times = [command_time(work, "linear", replace(wide, lanes=n)).start for n in (16, 8)]
    assert times[1] < times[0]


def test_the_longest_item_ends_last_and_the_others_even_out() -> None:
    causal = Work(1, 1, "float16", groups=8, rows=64, depth=100, longest=190)
    kind = replace(LINEAR, tile_columns=1)
    assert causal.steps(kind) == 190
    assert causal.steps(replace(kind, units=132)) == 190  # 32 tiles at once
    assert causal.steps(replace(kind, units=4)) == 800  # eight rounds of tiles as in the mean
    assert replace(causal, longest=0).steps(replace(kind, units=5)) == 700


def test_attention_has_a_longest_query() -> None:
    """Its steps are the elements of keys that a query sees."""
    sizes = {"batch": 1, "heads": 2, "kv_heads": 2, "head_dim": 8, "v_dim": 8}
    fields = {**sizes, "q_len": 10, "kv_len": 30, "dtype": 1}
    operations = 4 * 2 * 10 * 8
    assert work_of("attention", fields, operations * 30, 1).longest == 8 * 30
    causal = work_of("attention", {**fields, "causal": 1}, operations * 25, 1)
    assert (causal.depth, causal.longest) == (8 * 25, 8 * 30)
    window = work_of("attention", {**fields, "causal": 1, "window": 4}, operations * 4, 1)
    assert (window.depth, window.longest) == (8 * 4, 8 * 4)
    wide = work_of("attention", {**fields, "head_dim": 16, "v_dim": 16}, 2 * operations * 30, 1)
    assert wide.longest == 16 * 30
    cache = work_of("attention", {**fields, "causal": 1, "has_position": 1}, operations * 25, 1)
    assert (cache.depth, cache.longest, cache.form) == (25, 30, "cache")


def _fields(stem: str, **given: object) -> Params:
    """Returns all parameters of a kernel, 0 but for those given."""
    zeros = {name: 0 if count == 1 else (0,) * count for name, _, count in KERNELS[stem].fields}
    return {**zeros, **given}  # type: ignore[dict-item]


CONV = {"in_channels": 16, "groups": 1, "x_strides": (9, 1, 0, 9, 9), "x_dtype": 1, "w_dtype": 1}
COPY = {"rank": 2, "shape": (4, 6, 1, 1, 1, 1, 1, 1), "y_strides": (6, 1, 0, 0, 0, 0, 0, 0)}
WINDOW = {"in_size": (1, 8, 8), "out_size": (1, 4, 4), "kernel": (1, 2, 2)}
ROWS = {"rank": 2, "shape": (4, 6, 1, 1, 1, 1, 1, 1), "n_inputs": 2, "n_instructions": 1}
FLAT, TURNED, REPEATED = (6, 1, *(0,) * 6), (1, 4, *(0,) * 6), (0, 1, *(0,) * 6)
NONE = (0,) * (10 * 8)
INDEX = {"rank": 2, "shape": ROWS["shape"], "n": 1, "y_strides": FLAT}
MEAN = {"in_size": (1, 8, 8), "out_size": (1, 1, 1), "kernel": (1, 1, 1), "adaptive": 1}


@pytest.mark.parametrize(
    ("stem", "given", "form"),
    [
        ("matmul", {"a_k": 1, "b_n": 1, "dtype": 1}, "packed"),
        ("matmul", {"a_k": 1, "b_k": 1, "dtype": 2}, "packed"),
        ("matmul", {"a_k": 1, "b_k": 7, "b_n": 9, "dtype": 1}, "loose"),
        ("matmul", {"a_k": 5, "b_n": 1, "dtype": 1}, "loose"),
        ("matmul", {"a_k": 1, "b_n": 1, "dtype": 0}, "loose, float32"),
        ("matmul", {"a_k": 1, "a_m": 49, "b_n": 1, "dtype": 1}, "packed, unaligned"),
        ("matmul", {"a_k": 1, "b_k": 1, "b_n": 12, "dtype": 1}, "packed, unaligned"),
        ("linear", {"x_dtype": 1, "w_dtype": 1}, "packed"),
        ("linear", {"x_dtype": 1, "w_dtype": 1, "ldx": 49}, "packed, unaligned"),
        ("linear", {"x_dtype": 0, "w_dtype": 0, "ldx": 49}, "loose, float32"),
        ("linear", {"x_dtype": 1, "w_dtype": 2}, "loose"),
        ("conv", CONV, "packed"),
        ("conv", {**CONV, "x_dtype": 0, "w_dtype": 0}, "loose, float32"),
        (
            "conv",
            {**CONV, "x_dtype": 0, "w_dtype": 0, "groups": 4},
            "loose, float32, groups of few channels",
        ),
        ("conv", {**CONV, "x_strides": (9, 64, 0, 8, 1)}, "loose"),
        ("conv", {**CONV, "in_channels": 3}, "few channels"),
        ("conv", {**CONV, "in_channels": 12, "groups": 4}, "loose"),
        ("copy", {**COPY, "x_strides": (6, 1, 0, 0, 0, 0, 0, 0)}, "straight"),
        ("copy", {**COPY, "x_strides": (1, 4, 0, 0, 0, 0, 0, 0)}, "across"),
        ("copy", {**COPY, "x_strides": (1, 0, 0, 0, 0, 0, 0, 0)}, "straight"),
        ("copy", {"rank": 0}, "straight"),
        ("copy", {**COPY, "shape": (1, 1) + (1,) * 6, "x_strides": (5,) * 8}, "straight"),
        ("attention", {"dtype": 1}, ""),
        ("attention", {}, "loose, float32"),
        ("pointwise", {**ROWS, "x_strides": (*FLAT, *REPEATED, *NONE), "y_strides": FLAT}, ""),
        ("pointwise", {**ROWS, "x_strides": (*FLAT, *TURNED, *NONE), "y_strides": FLAT}, "apart"),
        ("pointwise", {**ROWS, "x_class": (0, 2, *(0,) * 10)}, "integers"),
        ("pointwise", {**ROWS, "code": (1, 2, 0, 1, 0, 2, *(0,) * 378)}, "integers"),
        ("index", {**INDEX, "idx_strides": (1, 0, *(0,) * 46)}, ""),
        ("index", {**INDEX, "idx_strides": (6, 1, *(0,) * 46)}, "scattered"),
        ("reduce", {"reduced_rank": 1, "reduced": (9,), "reduced_strides": (1,)}, "straight"),
        ("reduce", {"reduced_rank": 1, "reduced": (9,), "reduced_strides": (64,)}, "across"),
        ("reduce", {"reduced_rank": 1, "reduced": (1,), "reduced_strides": (64,)}, "straight"),
        ("softmax", {"inner": 1, "size": 64}, "straight"),
        ("softmax", {"inner": 1, "size": 63}, "straight, few columns"),
        ("softmax", {"inner": 5}, "across"),
        ("pool", WINDOW, ""),
        ("pool", MEAN, "shared"),
        ("conv_depthwise", {"out_channels": 16, "kernel": (1, 3, 3)}, ""),
        ("conv_depthwise", {"out_channels": 8, "kernel": (1, 3, 3)}, "ragged"),
        ("conv_depthwise", {"out_channels": 8, "kernel": (1, 1, 1)}, "single tap"),
        ("norm", {}, ""),
    ],
)
def test_forms_of_operands(stem: str, given: dict[str, object], form: str) -> None:
    assert form_of(stem, _fields(stem, **given)) == form


def test_pieces_that_are_fetched_one_by_one() -> None:
    rows = {**ROWS, "y_strides": FLAT}
    for walks, pieces in (
        ((FLAT, REPEATED), 0), ((TURNED, TURNED), 8), ((FLAT, (12, 1, *(0,) * 6)), 4)
    ):  # fmt: skip
        strides = (*walks[0], *walks[1], *NONE)
        assert work_of("pointwise", {**rows, "x_strides": strides}, 24, 1).pieces == pieces
    long = {**rows, "shape": (4, 1025, 1, 1, 1, 1, 1, 1), "x_strides": (*TURNED, *TURNED, *NONE)}
    assert work_of("pointwise", long, 24, 1).pieces == 0
    moved = work_of("index", {**INDEX, "idx_strides": (1, 0, *(0,) * 46)}, 0, 1)
    assert (moved.rows, moved.pieces) == (24, 4)  # rows of a table
    both = {**INDEX, "n": 2, "idx_strides": (6, 1, *(0,) * 6, 1, 0, *(0,) * 38)}
    assert work_of("index", both, 0, 1).pieces == 2 * 24
    assert work_of("copy", {**COPY, "x_strides": FLAT}, 0, 1).pieces is None
    kind = replace(OTHER, stems=("index",), pack_ns=10.0, task_rows=16, task_columns=1)
    device = replace(DEVICE, classes=(kind, OTHER))
    parts = {p.what: p.seconds for p in command_time(moved, "index", device).parts}
    assert parts["packed elements"] == pytest.approx(4 * 10e-9)


def test_pools_take_windows_of_one_channel() -> None:
    common = {"batch": 2, "in_channels": 6, "out_channels": 6}
    window = work_of("pool", {**common, **WINDOW}, 1, 1)
    assert (window.rows, window.columns, window.depth) == (2 * 4 * 4, 6, 4)
    assert work_of("pool", {**common, **MEAN}, 1, 1).depth == 64


def test_classes_of_forms_and_sizes() -> None:
    large = replace(LINEAR, name="large", form="packed", least_rows=64, least_operations=1000)
    packed = replace(LINEAR, name="packed", form="packed")
    device = replace(DEVICE, classes=(large, packed, LINEAR, OTHER))
    cases = {
        ("packed", 64, 1000): "large",
        ("packed", 63, 1000): "packed",
        ("packed", 64, 999): "packed",
        ("loose", 64, 1000): "linear",
        ("", 64, 1000): "linear",
    }
    for (form, rows, operations), name in cases.items():
        assert device.class_of("linear", rows, form, operations).name == name
    for classes in ((packed, large, LINEAR, OTHER), (LINEAR, packed, OTHER)):
        with pytest.raises(ValueError, match="kernel 'linear' is in the classes"):
            replace(DEVICE, classes=classes)


@pytest.mark.parametrize("name", ["a100", "ane-m1", "cpu", "h200"])
def test_products_have_the_rates_of_products(name: str) -> None:
    hardware = TargetConfig.named(name).hardware
    assert hardware is not None and hardware.roofline is not None
    device = hardware.roofline
    for stem in PRODUCTS:
        assert device.class_of(stem).products, stem


@pytest.mark.parametrize("stem", sorted(KERNELS))
def test_every_kernel_has_work(stem: str) -> None:
    fields = {name: 1 if count == 1 else (1,) * count for name, _, count in KERNELS[stem].fields}
    work = work_of(stem, fields, 100, 100)
    time = command_time(work, stem, DEVICE)
    assert work.groups >= 1 and work.rows >= 1 and work.columns >= 1
    assert time.total > time.start > 0


def test_what_has_no_known_sizes_is_not_rounded_up_to_tiles() -> None:
    """Else a kernel that a class of large tiles took in computed as much as a tile of it."""
    plain = Work(1000, 1000, "float32", sized=False)
    assert plain.whole(replace(LINEAR, units=132)) == 1
    assert Work(1000, 1000, "float32").whole(LINEAR) == 1024
    assert not work_of("rope", {}, 100, 100).sized
    fields = {"batch": 2, "channels": 32, "spatial": 100, "groups": 8}
    norm = work_of("group_norm", fields, 100, 100)
    assert norm.sized and (norm.groups, norm.columns, norm.depth) == (16, 400, 400)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"peaks": ()}, "'peaks' is empty"),
        ({"memory": ()}, "ends with the one level of kib = 0"),
        ({"memory": (DEVICE.memory[0],)}, "ends with the one level of kib = 0"),
        ({"memory": (DEVICE.memory[1], DEVICE.memory[1])}, "ends with the one level of kib = 0"),
        (
            {"memory": (DEVICE.memory[0], DEVICE.memory[0], DEVICE.memory[1])},
            "of 1024 KiB is behind 'cache' of 1024 KiB",
        ),
        ({"classes": ()}, "ends with the one class without stems"),
        ({"classes": (LINEAR,)}, "ends with the one class without stems"),
        ({"classes": (OTHER, OTHER)}, "ends with the one class without stems"),
        ({"classes": (LINEAR, replace(LINEAR, name="again"), OTHER)}, "'linear' and 'again'"),
    ],
)
def test_contradictions_are_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        replace(DEVICE, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"compute_share": 0.0}, "reaches nothing"),
        ({"memory_share": 0.0}, "reaches nothing"),
        ({"overlap": 0.99}, "below 1"),
        ({"tile_rows": 0}, "below 1"),
        ({"tile_columns": 0}, "below 1"),
        ({"units": 0}, "below 1"),
        ({"task_operations": -1}, "less than nothing"),
        ({"task_rows": 16}, "one of 'task_rows' and 'task_columns'"),
        ({"grid": "hexagons"}, "the grid 'hexagons'; there are panels, blocks"),
        ({"item_rows": 6}, "an item of no size"),
        ({"item_depth": -1}, "an item of no size"),
        ({"core_share": 1.5}, "reaches more than all"),
    ],
)
def test_a_class_without_meaning_is_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=f"class 'other'.*{said}"):
        replace(OTHER, **changed)  # type: ignore[arg-type]


# ---- fitting ----


def profiled(device: Roofline, count: int, seed: int, noise: float = 0.0) -> Profile:
    """Returns products of random sizes with the times that a device takes for them."""
    draw, commands, times = random.Random(seed), [], []
    for index in range(count):
        m, n, k = (draw.choice((1, 8, 24, 64, 200, 1000, 3000)) for _ in range(3))
        params = linear(m, n, k)
        operations, nbytes = cost("linear", params)
        time = command_time(work_of("linear", params, operations, nbytes), "linear", device)
        times.append(time)
        seconds = time.total * math.exp(noise * draw.gauss(0, 1))
        commands.append(
            CommandProfile(
                index,
                "linear",
                "",
                "n",
                "aten.linear",
                "",
                "",
                nbytes,
                0,
                operations,
                seconds,
                params,
            )
        )
    whole = run_time(times, device)
    return Profile("drawn", "forward", "cpu", "device", 0, 1, tuple(commands), whole)


def test_a_device_is_found_again_from_its_times() -> None:
    pytest.importorskip("scipy")
    truth = replace(DEVICE, call_us=0.0)
    guess = replace(LINEAR, start_us=1.0, compute_share=1.0, memory_share=1.0, overlap=2.0)
    start = replace(truth, classes=(guess, OTHER))
    found = calibrate([profiled(truth, 120, 1)], start, [profiled(truth, 40, 2)])
    (error,) = found.classes
    assert error.name == "linear" and error.fitted > 8 and error.held_out > 8
    assert error.mean < 0.02 and error.median <= error.worst
    assert [run.name for run in found.runs] == ["drawn forward"] * 2
    assert all(abs(run.error) < 0.02 for run in found.runs)
    fitted = found.roofline.classes[0]
    assert (fitted.tile_rows, fitted.tile_columns) == (16, 64)
    assert fitted.memory_share == pytest.approx(0.8, rel=0.05)


def test_what_was_measured_beside_others_counts_less() -> None:
    """A profile whose run took longer than its commands one by one was disturbed."""
    pytest.importorskip("scipy")
    truth = replace(DEVICE, call_us=0.0)
    quiet, other = profiled(truth, 40, 1), profiled(truth, 40, 2)
    slower = tuple(replace(c, seconds=1.5 * c.seconds) for c in other.commands)
    commands = sum(c.seconds for c in slower)

    def off(run: float) -> float:
        disturbed = replace(other, commands=slower, run_seconds=run)
        (one,), _ = held_out([quiet], calibrate([quiet, disturbed], truth).roofline, [])
        return one.mean

    told, untold = off(1.5 * commands), off(commands)
    assert told < 0.5 * untold


def test_held_out_errors_are_those_of_unseen_commands() -> None:
    pytest.importorskip("scipy")
    truth = replace(DEVICE, call_us=0.0)
    found = calibrate([profiled(truth, 120, 1, noise=0.3)], truth)
    (error,) = found.classes
    assert 0.1 < error.mean < 0.6  # of lognormal noise of 0.3, no fit gets rid


def test_few_commands_leave_numbers_of_the_same_kernels_near_where_they_are() -> None:
    pytest.importorskip("scipy")
    truth = replace(DEVICE, call_us=0.0)
    start = replace(truth, classes=(replace(LINEAR, compute_share=0.4, start_us=2.5), OTHER))
    few, others = profiled(truth, 16, 1, noise=0.4), profiled(truth, 60, 3)

    def off(known: bool) -> float:
        found = calibrate([few], start, known=known).roofline
        fitted = found.classes[0]
        assert not known or (fitted.tile_rows, fitted.tile_columns) == (16, 64)
        (one,), _ = held_out([others], found, [], unseen=True)
        return one.mean

    assert off(known=True) < off(known=False)


def test_what_cannot_be_fitted_is_refused_or_kept() -> None:
    pytest.importorskip("scipy")
    truth = replace(DEVICE, call_us=0.0)
    with pytest.raises(Error, match="6 are the fewest"):
        calibrate([profiled(truth, 3, 1)], truth)
    other = replace(profiled(truth, 30, 1), device="another")
    with pytest.raises(Error, match="several devices: device; another"):
        calibrate([profiled(truth, 30, 1)], truth, [other])
    few = calibrate([profiled(truth, 10, 1)], truth)
    assert few.roofline.classes == truth.classes and few.classes[0].fitted == 0


def test_products_of_few_rows_are_a_class_of_their_own() -> None:
    one, few = (replace(LINEAR, name=f"up to {n}", most_rows=n, start_us=n) for n in (1, 16))
    device = replace(DEVICE, classes=(one, few, LINEAR, OTHER))
    found = {rows: device.class_of("linear", rows).name for rows in (1, 2, 16, 17, 10**6)}
    assert found == {1: "up to 1", 2: "up to 16", 16: "up to 16", 17: "linear", 10**6: "linear"}
    assert device.class_of("linear").name == "linear" and device.class_of("norm", 1) is OTHER
    params = linear(16, 64, 64)
    time = command_time(work_of("linear", params, *cost("linear", params)), "linear", device)
    assert time.start == pytest.approx(1e-6 * (16 + 0.25), rel=1e-12)
    for classes in ((few, one, LINEAR, OTHER), (LINEAR, one, OTHER), (one, one, OTHER)):
        with pytest.raises(ValueError, match="kernel 'linear' is in the classes"):
            replace(DEVICE, classes=classes)
    with pytest.raises(ValueError, match="below 1"):
        replace(LINEAR, most_rows=-1)

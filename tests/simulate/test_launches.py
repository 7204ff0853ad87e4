"""What a GPU's launch rules say of commands: the tiles that are launched, by hand."""

from __future__ import annotations

import pytest

from npusim.abi.kernels import KERNELS, Params
from npusim.codegen.cuda import matmul_rules, tma_matmul
from npusim.simulate.launches import busy_seconds, launch_of, stored_apart
from npusim.simulate.roofline import command_time, work_of
from npusim.targets.roofline import MemoryLevel, Peak, Roofline, RooflineClass

FLOAT32, FLOAT16 = 0, 1
TILES = RooflineClass(
    "tiles", ("linear",), 2.0, 0.5, 1.0, 1.0, 0.0, 1, 1, True, pack_ns=1.0, grid="launches"
)
OTHER = RooflineClass("other", (), 2.0, 0.5, 1.0, 1.0, 0.0, 1, 1, False)
DEVICE = Roofline(0.0, (Peak("float16", 1.0, 1.0),), (MemoryLevel("dram", 0, 1e9),), (TILES, OTHER))


def _fields(stem: str, **given: object) -> Params:
    zeros = {name: 0 if count == 1 else (0,) * count for name, _, count in KERNELS[stem].fields}
    return {**zeros, **given}  # type: ignore[dict-item]


def _linear(m: int, n: int, k: int, dtype: int) -> Params:
    lines = {"ldx": k, "ldy": n, "ldw": (k, 0, 0, 0), "rows": (n, 0, 0, 0), "segments": 1}
    codes = {"x_dtype": dtype, "w_dtype": dtype, "y_dtype": dtype}
    return _fields("linear", m=m, n=n, k=k, **lines, **codes)


def _busy(stem: str, params: Params) -> float | None:
    found = busy_seconds(stem, launch_of(stem, params))
    return None if found is None else 1e6 * found


def test_a_linear_takes_the_tiles_that_are_launched() -> None:
    aligned = _linear(4096, 1024, 512, FLOAT16)
    (tile,) = tma_matmul.tiles(aligned, 1)
    launched = tma_matmul.microseconds(aligned, tile) - tma_matmul.GPU.tma_matmul.begin_us
    assert _busy("linear", aligned) == pytest.approx(launched)
    # Rows that begin on no 16 bytes are loaded by no TMA: eight steps of the rule's own tiles.
    tile_of_8 = matmul_rules.TILES[3]
    assert _busy("linear", _linear(100, 64, 500, FLOAT16)) == pytest.approx(
        8 * tile_of_8.alone_step_us + 4 * (tile_of_8.alone_step_us - tile_of_8.step_us)
    )


def test_rounds_of_tiles_over_the_processors_are_in_it() -> None:
    one, two = (_busy("linear", _linear(128 * 132 * n, 128, 640, FLOAT32)) for n in (1, 2))
    assert one is not None and two is not None and two > 1.9 * one


@pytest.mark.parametrize(
    ("stem", "params"),
    [
        ("linear", _linear(0, 8, 8, FLOAT16)),
        ("matmul", _fields("matmul", batch=(0,) * 6, m=4, n=4, k=4)),
        ("conv", _fields("conv", groups=1)),
        ("conv", _fields("conv")),
        ("conv_depthwise", _fields("conv_depthwise")),
        ("attention", _fields("attention")),
        ("attention", _fields("attention", batch=1, heads=1, kv_heads=1, q_len=9, kv_len=9)),
        ("norm", _fields("norm", rows=4, size=4)),
    ],
)
def test_what_no_rule_estimates_has_no_time_of_tiles(stem: str, params: Params) -> None:
    launch = launch_of(stem, params)
    assert not launch or busy_seconds(stem, launch) is None


@pytest.mark.parametrize("size", [-5, 2**62, 10**30, 1.5])
def test_sizes_that_no_command_has_are_no_time(size: float) -> None:
    for stem, name in (("linear", "m"), ("matmul", "k"), ("attention", "q_len")):
        given = {**_linear(9, 8, 8, FLOAT16), "m": size} if stem == "linear" else {name: size}
        found = busy_seconds(stem, launch_of(stem, _fields(stem, **given)))
        assert found is None or found > 0
    bare = {"out_size": (1, 4, 4), "out_channels": 8, "batch": 1, "x_strides": (1,) * 5}
    params = _fields("conv_depthwise", **bare)  # of a window without points
    assert busy_seconds("conv_depthwise", launch_of("conv_depthwise", params)) is None


def test_results_whose_rows_begin_on_no_16_bytes_are_stored_one_by_one() -> None:
    assert stored_apart("linear", _linear(6, 200, 64, FLOAT16)) == 0
    assert stored_apart("linear", _linear(6, 196, 64, FLOAT16)) == 6 * 196
    assert stored_apart("linear", _linear(6, 196, 64, FLOAT32)) == 0
    image = {"batch": 2, "out_size": (1, 3, 5), "out_channels": 150, "y_dtype": FLOAT16}
    conv = _fields("conv", **image, y_strides=(2250, 1, 0, 750, 150))
    assert stored_apart("conv", conv) == 2 * 15 * 150
    assert stored_apart("conv", {**conv, "y_strides": (2400, 1, 0, 800, 160)}) == 0
    assert stored_apart("attention", _fields("attention")) == 0


def test_a_class_of_launches_takes_its_arithmetic_from_the_rule() -> None:
    params = _linear(256, 196, 512, FLOAT16)
    time = command_time(work_of("linear", params, 1, 1), "linear", DEVICE)
    busy = _busy("linear", params)
    assert busy is not None and 1e6 * time.compute == pytest.approx(busy / 0.5)
    assert 1e6 * time.start == pytest.approx(2.0 + 1e-3 * 256 * 196)
    # What no rule estimates is as fast as the peak.
    empty = command_time(work_of("linear", _linear(0, 8, 8, FLOAT16), 500, 1), "linear", DEVICE)
    assert 1e6 * empty.compute == pytest.approx(500 / 1e6 / 0.5)

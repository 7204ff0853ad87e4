"""What a GPU's launch rules say of commands: the tiles that are launched, by hand."""

from __future__ import annotations

import pytest

from npusim.abi.kernels import KERNELS, Params
from npusim.codegen.cuda import convolutions, group_norms, matmul_rules, tma_matmul
from npusim.simulate.forms import FEW_CHANNELS, LOOSE
from npusim.simulate.launches import busy_seconds, form_in_launch, launch_of, stored_apart
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
        ("group_norm", _fields("group_norm")),
        ("group_norm", _fields("group_norm", batch=1, groups=2)),
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


def _image(channels: int, size: int, kernel: int, stride: int, batch: int = 1) -> Params:
    """Returns a convolution of float16 to 64 channels, of an image whose channels lie apart."""
    out = (size + 2 * (kernel // 2) - kernel) // stride + 1
    area = size * size
    return _fields(
        "conv",
        batch=batch,
        in_channels=channels,
        out_channels=64,
        groups=1,
        in_size=(1, size, size),
        out_size=(1, out, out),
        kernel=(1, kernel, kernel),
        stride=(1, stride, stride),
        dilation=(1, 1, 1),
        pad=(0, *(kernel // 2,) * 2),
        x_strides=(channels * area, area, 0, size, 1),
        y_strides=(64 * out * out, 1, 0, 64 * out, 64),
        x_dtype=FLOAT16,
        w_dtype=FLOAT16,
        y_dtype=FLOAT16,
    )


def test_patches_wait_for_their_lines_and_share_a_processor() -> None:
    fit = convolutions._FIT.patches
    # 64 by 64 points are 32 tiles, a block each; 3 by 3 windows fill 9 lines of 4: three steps.
    # A patch has 30 lines of 20, which four warps ask for at once.
    each = 8 * fit.load_us + 3 * fit.step_us + fit.tile_us
    assert _busy("conv", _image(3, 64, 3, 1)) == pytest.approx(
        3 * fit.weights_us + fit.wait_us + each
    )
    # Of sixteen images there are four blocks on a processor.
    assert _busy("conv", _image(3, 64, 3, 1, 16)) == pytest.approx(
        3 * fit.weights_us + fit.wait_us + 4 * each
    )


def test_windows_that_fit_into_no_block_are_computed_as_loose_factors() -> None:
    small, large = _image(3, 64, 3, 1), _image(3, 64, 15, 8)
    for params, form in ((small, FEW_CHANNELS), (large, LOOSE)):
        launch = launch_of("conv", params)
        assert form_in_launch("conv", FEW_CHANNELS, launch) == form
        assert form_in_launch("conv", "packed", launch) == "packed"
        assert work_of("conv", params, 1, 1).form == form
        assert _busy("conv", params) is not None
    assert form_in_launch("conv", FEW_CHANNELS, b"") == FEW_CHANNELS


def _groups(channels: int, groups: int, spatial: int) -> Params:
    strides = (channels * spatial, 1, channels)
    return _fields(
        "group_norm",
        batch=1,
        channels=channels,
        groups=groups,
        spatial=spatial,
        x_strides=strides,
        y_strides=strides,
        x_dtype=FLOAT16,
        w_dtype=FLOAT16,
        y_dtype=FLOAT16,
    )


def test_a_block_walks_a_group_three_times() -> None:
    fit = group_norms.GPU.group_norms
    assert _busy("group_norm", _groups(64, 8, 100)) == pytest.approx(3 * 4 * fit.step_us)  # of 800


def test_blocks_that_share_groups_put_their_moments_together() -> None:
    fit = group_norms.GPU.group_norms
    # 64 channels are 8 packs, of which 32 rows at once: 4,096 positions are 32 parts of 128.
    params = _groups(64, 8, 4096)
    launched = fit.second_us + fit.pass_us + 8 * fit.number_us
    moments = 2 * (8 * fit.fold_us + fit.part_us)
    assert _busy("group_norm", params) == pytest.approx(launched + moments)
    silu = _busy("group_norm", {**params, "act": 34})
    assert silu is not None and silu > launched + moments
    # One group of all channels has eight times as many moments of a block.
    single = _busy("group_norm", _groups(64, 1, 4096))
    assert single == pytest.approx(launched + 2 * (64 * fit.fold_us + fit.part_us))

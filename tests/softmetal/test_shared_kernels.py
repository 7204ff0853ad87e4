"""Kernels whose text CUDA and Metal share, at the edges: on the software Metal device.

`tests/codegen` runs the same texts as CUDA's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from npusim.abi.kernels import INDEX_TENSORS, RANK
from npusim.ir.types import DTYPES
from tests.softmetal import metal
from tests.softmetal.programs import KernelFailure, Kernels

NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=["forward", "shuffle", *metal.EAGER])
def kernels(device: metal.Device, request: pytest.FixtureRequest) -> Iterator[Kernels]:
    metal.set_option("ORDER", request.param)
    yield Kernels(device)


def _code(tensor: torch.Tensor) -> int:
    return DTYPES[str(tensor.dtype).removeprefix("torch.")][0]


def _padded(values: list[int], count: int = RANK) -> list[int]:
    return [*values, *[0] * (count - len(values))]


# index and scatter: one index tensor over the first dimension of a matrix


def _indexing(matrix: torch.Tensor, indices: torch.Tensor, key: str) -> dict[str, Any]:
    """Returns the parameters of matrix[indices], or of its inverse."""
    rows, columns = matrix.shape
    return {
        "idx_dtype": _code(indices),
        "n": 1,
        "rank": 2,
        "shape": _padded([len(indices), columns]),
        "x_strides" if key == "index" else "y_strides": _padded([0, 1]),
        "y_strides" if key == "index" else "src_strides": _padded([columns, 1]),
        "idx_strides": _padded([1], INDEX_TENSORS * RANK),
        "k_size": _padded([rows], INDEX_TENSORS),
        "k_stride": _padded([columns], INDEX_TENSORS),
    }


def _index(kernels: Kernels, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    y = torch.full((len(indices), x.shape[1]), 77).to(x.dtype)
    params = {**_indexing(x, indices, "index"), "element_size": x.element_size()}
    kernels.call("index", [x, indices, y], **params)
    return y


def _scatter(
    kernels: Kernels, y: torch.Tensor, indices: torch.Tensor, src: torch.Tensor, mode: int
) -> torch.Tensor:
    params = {**_indexing(y, indices, "scatter"), "mode": mode, "dtype": _code(y)}
    kernels.call("scatter", [src, indices, y], **params)
    return y


@pytest.mark.parametrize("columns", [1, 8])
def test_index_takes_rows_from_both_ends(kernels: Kernels, columns: int) -> None:
    given = torch.tensor([4, -1, 0, -5, 2])
    for dtype in (torch.bool, torch.bfloat16, torch.float32, torch.int64):
        x = torch.arange(5 * columns).reshape(5, columns).to(dtype)
        assert torch.equal(_index(kernels, x, given), x[given])
    narrow = given.clamp(min=0).to(torch.uint8)
    assert torch.equal(_index(kernels, x, narrow), x[narrow.long()])


def test_index_of_nothing_launches_nothing(kernels: Kernels) -> None:
    """And reads no index, whatever it says."""
    x = torch.ones(1, 4)
    assert torch.equal(_index(kernels, x, torch.tensor([0])), x)
    params = {**_indexing(x, torch.tensor([9]), "index"), "element_size": 4}
    params["shape"] = _padded([1, 0])
    y = torch.zeros(1, 4)
    kernels.call("index", [x, torch.tensor([9]), y], **params)
    assert torch.equal(y, torch.zeros(1, 4))


@pytest.mark.parametrize("value", [5, -6, 2**31, -(2**63), 2**63 - 1])
def test_indices_out_of_range_are_reported_and_nothing_is_touched(
    kernels: Kernels, value: int
) -> None:
    x, given = torch.ones(5, 8), torch.tensor([1, value, 2])
    with pytest.raises(KernelFailure) as raised:
        _index(kernels, x, given)
    assert raised.value.args == (1, value, 5)
    with pytest.raises(KernelFailure) as raised:
        _scatter(kernels, x, given, torch.zeros(3, 8), mode=0)
    assert raised.value.args == (1, value, 5)


def test_the_last_of_equal_indices_stays(kernels: Kernels) -> None:
    src = torch.arange(40.0).reshape(10, 4)
    y = _scatter(kernels, torch.zeros(3, 4), torch.tensor([1, -2, 1, 2, 1] * 2), src, mode=0)
    assert torch.equal(y, torch.stack([torch.zeros(4), src[9], src[8]]))


def test_sums_round_in_row_major_order(kernels: Kernels) -> None:
    """Not in the order of threads: 2048 + 1 + 1 in float16 is 2048, 1 + 1 + 2048 is 2050."""
    for dtype in (torch.float16, torch.bfloat16):
        src = torch.tensor([[1.0], [1.0], [2048.0], [1.0], [1.0]]).to(dtype)
        expected = torch.zeros(1, 1, dtype=dtype)
        for row in src:
            expected = expected + row
        zeros = torch.zeros(1, 1, dtype=dtype)
        y = _scatter(kernels, zeros, torch.zeros(5, dtype=torch.int64), src, mode=1)
        assert torch.equal(y, expected)


@pytest.mark.parametrize(("mode", "expected"), [(3, [NAN, INF, 0.0]), (4, [NAN, -2.0, -INF])])
def test_nan_wins_in_largest_and_smallest(
    kernels: Kernels, mode: int, expected: list[float]
) -> None:
    src = torch.tensor([[1.0], [NAN], [5.0], [-2.0], [INF], [-INF]])
    given = torch.tensor([0, 0, 0, 1, 1, 2])
    y = _scatter(kernels, torch.zeros(3, 1), given, src, mode)
    assert torch.equal(y.flatten().isnan(), torch.tensor(expected).isnan())
    assert torch.equal(y.flatten()[1:], torch.tensor(expected[1:]))


def test_integers_wrap_and_booleans_stay_booleans(kernels: Kernels) -> None:
    given, src = torch.tensor([0, 0, 0]), torch.tensor([[100], [27], [3]])
    y = _scatter(kernels, torch.zeros(1, 1, dtype=torch.int8), given, src.to(torch.int8), mode=1)
    assert y.item() == -126
    y = _scatter(kernels, torch.ones(1, 1, dtype=torch.int64), given, src << 40, mode=2)
    assert y.item() == 0
    ones = torch.tensor([[True], [True], [False]])
    assert (
        _scatter(kernels, torch.zeros(1, 1, dtype=torch.bool), given, ones, mode=1).item() is True
    )
    assert (
        _scatter(kernels, torch.ones(1, 1, dtype=torch.bool), given, ones, mode=2).item() is False
    )


# rope


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, near: bool) -> torch.Tensor:
    """Returns x[b, h, t, :] with its first elements turned, as abi/kernels.py says."""
    rotary = cos.shape[-1]
    a, y = x[..., :rotary].float(), x.clone()
    if near:
        other = torch.stack([-a[..., 1::2], a[..., ::2]], -1).flatten(-2)
    else:
        other = torch.cat([-a[..., rotary // 2 :], a[..., : rotary // 2]], -1)
    y[..., :rotary] = (a * cos.float()[:, None] + other * sin.float()[:, None]).to(x.dtype)
    return y


def _rope(
    kernels: Kernels,
    x: torch.Tensor,
    turns: tuple[torch.Tensor, torch.Tensor],
    *,
    near: bool = False,
    cache: torch.Tensor | None = None,
    position: int = 0,
) -> torch.Tensor:
    """Turns queries, and keys that go to a cache where there is one; returns the queries."""
    batch, heads, length, dim = x.shape
    cos, sin = turns
    limit = 0 if cache is None else cache.shape[2]
    y, stride = torch.full_like(x, 7), [heads * length * dim, length * dim, dim]
    to_cache = [heads * limit * dim, limit * dim, dim]
    rotary = cos.shape[-1]
    second = cache is not None
    operands = [x, *([x.clone()] if second else []), cos, sin]
    operands += [torch.tensor([position])] if second else []
    kernels.call(
        "rope",
        [*operands, y, *([] if cache is None else [cache])],
        batch=batch,
        length=length,
        rotary_dim=rotary,
        heads=[heads, heads * second, 0],
        head_dim=[dim, dim * second, 0],
        limit=[0, limit, 0],
        x_strides=_padded([*stride, *stride], 9),
        y_strides=_padded([*stride, *to_cache], 9),
        cs_strides=[length * rotary, rotary] * 2,
        rotate=[1, 1, 0],
        at_position=[0, 1, 0],
        parts=1 + second,
        has_position=int(second),
        interleaved=int(near),
        dtype=_code(x),
        cs_dtype=_code(cos),
    )
    return y


@pytest.mark.parametrize("near", [False, True])
def test_rope_turns_pairs_and_copies_the_rest(kernels: Kernels, near: bool) -> None:
    """All of a head, or a part of an odd one; infinity and NaN stay in their pairs."""
    generator = torch.Generator().manual_seed(4)
    for dim, rotary in ((8, 8), (9, 4)):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(2, 3, 4, dim, generator=generator).to(dtype)
            x[0, 0, 0, -1], x[1, 0, 0, 0] = NAN, INF
            angle = torch.rand(2, 4, rotary, generator=generator) + 0.1
            turns = (angle.cos().to(dtype), angle.sin().to(dtype))
            got = _rope(kernels, x, turns, near=near)
            torch.testing.assert_close(got, _turned(x, *turns, near), equal_nan=True)


def test_rope_appends_at_a_position_and_keeps_the_other_rows(kernels: Kernels) -> None:
    x = torch.randn(2, 2, 3, 6, generator=torch.Generator().manual_seed(8))
    angle = torch.rand(2, 3, 6, generator=torch.Generator().manual_seed(9))
    turns = (angle.cos(), angle.sin())
    want = _turned(x, *turns, near=False)
    for position in (0, 2):
        cache = torch.full((2, 2, 5, 6), 7.0)
        got = _rope(kernels, x, turns, cache=cache, position=position)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(cache[:, :, position : position + 3], want)
        cache[:, :, position : position + 3] = 7
        assert torch.equal(cache, torch.full_like(cache, 7))
    for position in (-1, 3, 2**31, -(2**63)):
        cache = torch.full((2, 2, 5, 6), 7.0)
        with pytest.raises(KernelFailure) as raised:
            _rope(kernels, x, turns, cache=cache, position=position)
        assert raised.value.args == (1, position, 2)
        assert torch.equal(cache, torch.full_like(cache, 7))


# pool and resize


def _strides(shape: torch.Size, channels_last: bool) -> list[int]:
    """Returns strides of [batch, channels, height, width]: batch, channel, depth, height, width."""
    _, c, h, w = shape
    if channels_last:
        return [h * w * c, 1, 0, w * c, c]
    return [c * h * w, h * w, 0, w, 1]


def _stored(x: torch.Tensor, channels_last: bool) -> torch.Tensor:
    return (x.permute(0, 2, 3, 1) if channels_last else x).contiguous()


def _pool(
    kernels: Kernels,
    x: torch.Tensor,
    size: tuple[int, int],
    *,
    average: bool = False,
    channels_last: bool = False,
    indices: bool = False,
    **window: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, channels, height, width = x.shape
    shape = torch.Size((batch, channels, *size))
    stored = torch.empty(_stored(torch.empty(shape), channels_last).shape, dtype=x.dtype)
    where = torch.full(stored.shape, -1, dtype=torch.int64)
    params: dict[str, Any] = {
        "batch": batch,
        "in_channels": channels,
        "out_channels": channels,
        "in_size": [1, height, width],
        "out_size": [1, *size],
        "kernel": [1, 1, 1],
        "stride": [1, 1, 1],
        "pad": [0, 0, 0],
        "dilation": [1, 1, 1],
        "x_strides": _strides(x.shape, channels_last),
        "y_strides": _strides(shape, channels_last),
        "op": int(average),
        "adaptive": 0,
        "count_include_pad": 1,
        "has_indices": int(indices),
        "divisor": 0,
        "x_dtype": _code(x),
        "y_dtype": _code(x),
        **window,
    }
    operands = [_stored(x, channels_last), stored, *([where] if indices else [])]
    kernels.call("pool", operands, **params)
    if channels_last:
        return stored.permute(0, 3, 1, 2), where.permute(0, 3, 1, 2)
    return stored, where


def _image(dtype: torch.dtype, channels: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(2, channels, 7, 9, generator=generator).to(dtype)


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_largest_of_a_window_and_where_it_lies(kernels: Kernels, channels_last: bool) -> None:
    """Padded, dilated, with windows that ceil_mode adds; NaN and all -inf among the elements."""
    x = _image(torch.float32)
    x[0, 0, 2, 3] = x[0, 0, 4, 3] = NAN
    x[1] = -INF
    x[0, 1, :, :] = 4.0  # the first of equal ones
    want, where = F.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True, return_indices=True)
    size = (want.shape[2], want.shape[3])
    window: dict[str, Any] = {
        "kernel": [1, 3, 3],
        "stride": [1, 2, 2],
        "pad": [0, 1, 1],
        "dilation": [1, 2, 2],
    }
    for indices in (False, True):
        got = _pool(kernels, x, size, channels_last=channels_last, indices=indices, **window)
        assert torch.equal(got[0].nan_to_num(9e9), want.nan_to_num(9e9))
        assert not indices or torch.equal(got[1], where)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint8, torch.int8])
def test_channels_at_once_are_channels_one_by_one(kernels: Kernels, dtype: torch.dtype) -> None:
    x = (_image(torch.float32) * 30).to(dtype)
    want = F.max_pool2d(x.float(), 3, 2, 1).to(dtype)
    window: dict[str, Any] = {"kernel": [1, 3, 3], "stride": [1, 2, 2], "pad": [0, 1, 1]}
    for channels_last in (False, True):
        got, _ = _pool(kernels, x, (4, 5), channels_last=channels_last, **window)
        assert torch.equal(got, want)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("include", [False, True])
def test_averages_divide_by_what_they_count(
    kernels: Kernels, include: bool, channels_last: bool
) -> None:
    window: dict[str, Any] = {"kernel": [1, 3, 2], "stride": [1, 2, 2], "pad": [0, 1, 1]}
    for dtype, divisor in ((torch.float32, None), (torch.float16, None), (torch.float32, 5)):
        x = _image(dtype)
        want = F.avg_pool2d(x.float(), (3, 2), 2, 1, True, include, divisor)
        size = (want.shape[2], want.shape[3])
        given: dict[str, Any] = {
            **window,
            "count_include_pad": int(include),
            "divisor": divisor or 0,
        }
        got, _ = _pool(kernels, x, size, average=True, channels_last=channels_last, **given)
        torch.testing.assert_close(got.float(), want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (7, 9), (9, 2)])
def test_adaptive_windows(kernels: Kernels, size: tuple[int, int]) -> None:
    for dtype, channels_last in ((torch.float32, False), (torch.float16, True)):
        x = _image(dtype)
        given: dict[str, Any] = {"channels_last": channels_last, "adaptive": 1}
        got, _ = _pool(kernels, x, size, average=True, **given)
        want = F.adaptive_avg_pool2d(x.float(), size)
        torch.testing.assert_close(got.float(), want, rtol=2e-3, atol=1e-3)
        got, _ = _pool(kernels, x, size, **given)
        assert torch.equal(got, F.adaptive_max_pool2d(x, size))


MODES = {0: "nearest", 1: "bilinear", 2: "bicubic", 3: "nearest-exact"}


@pytest.mark.parametrize("mode", MODES)
def test_resize_takes_pytorchs_positions(kernels: Kernels, mode: int) -> None:
    """From and to a single row, up and down and along one side, with NaN and infinities."""
    for (height, width), size in (
        *(((7, 9), (3, 20)), ((1, 9), (4, 1)), ((5, 1), (1, 3))),
        *(((7, 9), (7, 18)), ((7, 9), (13, 9)), ((7, 9), (7, 9))),
    ):
        for align in (0, 1) if mode in (1, 2) else (0,):
            x = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))
            x[0, 0, 0, 0] = NAN
            if width > 1:  # a third of 3 / 2 is 1 / 2 or not, as a compiler contracts
                x[1, 1, height // 2, width // 2] = INF
            want = F.interpolate(x, size, mode=MODES[mode], align_corners=bool(align) or None)
            y = torch.empty(want.shape)
            kernels.call(
                "resize",
                [x, y],
                batch=2,
                channels=3,
                in_size=[1, height, width],
                out_size=[1, *size],
                x_strides=_strides(x.shape, False),
                y_strides=_strides(want.shape, False),
                scale=[1.0, -1.0, -1.0],
                mode=mode,
                align_corners=align,
                x_dtype=0,
                y_dtype=0,
            )
            torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5, equal_nan=True)

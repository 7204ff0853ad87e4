"""Kernels along rows at their seams: sizes around SIMD groups, threadgroups and registers, strides,
and values at the ends of their dtypes; the same bits in every order of threads.

The references are PyTorch in float64, or in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from npusim.abi.scalar import OPCODES
from npusim.ir.types import DTYPES
from tests.softmetal import metal
from tests.softmetal.programs import Kernels

SIZES = (1, 31, 32, 33, 1023, 1024, 1025, 5000)
FLOATS = ("float32", "float16", "bfloat16")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
INF, NAN = float("inf"), float("nan")


def code(dtype: str) -> int:
    """The number of a dtype."""
    return DTYPES[dtype][0]


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> Tensor:
    """Normal numbers, or integers around 0."""
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(shape, generator=generator).to(kind)
    return torch.randint(-9, 10, shape, generator=generator).to(kind)


def run(
    device: metal.Device,
    stem: str,
    given: Sequence[Tensor],
    results: Sequence[Tensor],
    **params: Any,
) -> None:
    """Runs a kernel in every order into `results`, which have to hold the same bits each time."""
    kernels = Kernels(device)
    found: list[bytes] = []
    for order in metal.ORDERS:
        metal.set_option("ORDER", order)
        for y in results:
            y.view(torch.uint8).fill_(0xA5)
        operands = [x.clone().reshape(-1) for x in given] + [y.reshape(-1) for y in results]
        kernels.call(stem, operands, **params)
        found.append(b"".join(y.reshape(-1).view(torch.uint8).numpy().tobytes() for y in results))
        for x, left in zip(given, operands, strict=False):
            assert left.view(torch.uint8).equal(x.reshape(-1).view(torch.uint8)), "x was written"
    assert len(set(found)) == 1


def check(got: Tensor, want: Tensor, scale: float = 1) -> None:
    """Compares with a reference of more digits; NaN and infinities exactly."""
    if not got.dtype.is_floating_point:
        assert got.equal(want.to(got.dtype)), (got, want)
        return
    tolerance = TOLERANCE[got.dtype] * scale
    torch.testing.assert_close(
        got.double(), want.to(got.dtype).double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


# Softmax and norms


def odd_rows(size: int, dtype: str) -> Tensor:
    """Rows of ordinary numbers, infinities, NaN, equal, huge and tiny ones."""
    x = numbers(9, size, dtype=dtype, seed=size)
    least = torch.finfo(x.dtype).tiny
    x[1] = -INF
    x[2, : (size + 1) // 2] = -INF
    x[3, -1] = INF
    x[4, size // 2] = NAN
    x[5] = torch.finfo(x.dtype).max
    x[6] = torch.tensor([least / 4, -least / 2, 0.0, -0.0]).repeat(size)[:size]
    x[7, 0] = -torch.finfo(x.dtype).max
    return x


@pytest.mark.parametrize(("place", "size"), list(enumerate(SIZES)))
def test_softmax(device: metal.Device, place: int, size: int) -> None:
    dtype, log = FLOATS[place % 3], place % 2
    x = odd_rows(size, dtype)
    y = torch.empty_like(x)
    codes = {"x_dtype": code(dtype), "y_dtype": code(dtype)}
    run(device, "softmax", [x], [y], outer=9, size=size, inner=1, log=log, **codes)
    of = torch.log_softmax if log else torch.softmax
    check(y, of(x.double(), -1), 4)


@pytest.mark.parametrize("log", [0, 1])
def test_softmax_of_columns_into_another_dtype(device: metal.Device, log: int) -> None:
    x = odd_rows(99, "float16").reshape(9, 33, 3)
    y = torch.empty_like(x, dtype=torch.float32)
    codes = {"x_dtype": code("float16"), "y_dtype": code("float32")}
    run(device, "softmax", [x], [y], outer=9, size=33, inner=3, log=log, **codes)
    of = torch.log_softmax if log else torch.softmax
    check(y, of(x.double(), 1), 4)


def test_nothing_to_compute_launches_nothing(device: metal.Device) -> None:
    some = torch.zeros(1)
    codes = {"x_dtype": 0, "y_dtype": 0}
    for outer, size, inner in ((0, 5, 1), (5, 0, 1), (5, 5, 0)):
        sizes = {"outer": outer, "size": size, "inner": inner}
        run(device, "softmax", [some], [some.clone()], log=0, **sizes, **codes)
        run(device, "scan", [some], [some.clone()], op=0, **sizes, **codes)
        indices = torch.zeros(1, dtype=torch.int64)
        run(device, "sort", [some], [some.clone(), indices], k=0, descending=0, dtype=0, **sizes)


@pytest.mark.parametrize(("place", "size"), list(enumerate(SIZES)))
def test_norms_of_rows_apart(device: metal.Device, place: int, size: int) -> None:
    dtype, kind, more = FLOATS[place % 3], place % 2, place % 4
    x = torch.cat([odd_rows(size, dtype), numbers(9, 3, dtype=dtype)], 1)
    x[8] = 1 + 100 * (1 - kind) + numbers(size + 3, seed=5).to(x.dtype)  # a mean that costs digits
    y = torch.empty(9, size + 1, dtype=x.dtype)
    vectors = [numbers(size, dtype=dtype, seed=i) for i in range((more > 0) + (more > 1))]
    params = {"rows": 9, "size": size, "x_row_stride": size + 3, "y_row_stride": size + 1}
    params |= {"has_weight": int(more > 0), "has_bias": int(more > 1), "w_dtype": code(dtype)}
    codes = {"x_dtype": code(dtype), "y_dtype": code(dtype)}
    run(device, "norm", [x, *vectors], [y], kind=kind, eps=1e-5, **params, **codes)
    wide, (weight, bias) = x[:, :size].double(), [*(v.double() for v in vectors), None, None][:2]
    if kind == 0:
        want = torch.layer_norm(wide, (size,), weight, bias, 1e-5)
    else:
        want = torch.rms_norm(wide, (size,), weight, 1e-5) + (0 if bias is None else bias)
    ordinary = [0, 1, 2, 3, 4, 6, 8]  # the squares of the others are more than float holds
    check(y[ordinary, :size], want[ordinary], 16)
    assert y[:, size:].view(torch.uint8).eq(0xA5).all(), "between the rows nothing is written"


@pytest.mark.parametrize(("channels_last", "spatial"), [(0, 1), (1, 33), (0, 341), (1, 2100)])
def test_group_norm(device: metal.Device, channels_last: int, spatial: int) -> None:
    x = numbers(2, 8, spatial, dtype="float16", seed=spatial)
    x[0, 0, 0], x[1, 4, 0] = NAN, INF
    if channels_last:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    y = torch.empty(2, 8, spatial)
    weight, bias = numbers(8, seed=1), numbers(8, seed=2)
    params = {"batch": 2, "channels": 8, "spatial": spatial, "groups": 2}
    params |= {
        "x_strides": x.stride(),
        "y_strides": y.stride(),
        "eps": 1e-5,
        "act": OPCODES["relu"][0],
    }
    params |= {"x_dtype": code("float16"), "w_dtype": 0, "y_dtype": 0}
    memory = x.transpose(1, 2) if channels_last else x
    run(device, "group_norm", [memory, weight, bias], [y], has_weight=1, has_bias=1, **params)
    want = torch.group_norm(x.double(), 2, weight.double(), bias.double(), 1e-5).relu()
    check(y, want, 16)


# Reductions

OPS = ("sum", "mean", "max", "min", "prod", "any", "all", "argmax", "argmin", "var", "std")
OPS += ("sum_squares", "l2_norm", "sum_magnitudes", "logsumexp")


def reduced(op: str, x: Tensor, correction: float = 1) -> Tensor:
    """Reduces the last dimension in float64, or in integers."""
    wide = x.double() if x.dtype.is_floating_point else x.long()
    if op == "sum_squares":
        return (wide * wide).sum(-1)
    if op in ("l2_norm", "sum_magnitudes"):
        return torch.linalg.vector_norm(wide, 2 if op == "l2_norm" else 1, -1)
    if op in ("any", "all", "argmax", "argmin", "sum", "mean", "prod", "logsumexp"):
        return torch.logsumexp(wide, -1) if op == "logsumexp" else getattr(torch, op)(wide, -1)
    if op in ("max", "min"):
        return getattr(torch, f"a{op}")(wide, -1)
    return getattr(torch, op)(wide, -1, correction=correction)


def reduce(device: metal.Device, op: str, x: Tensor, y: Tensor, **params: Any) -> None:
    """Reduces the last dimension of x, as it lies in its memory."""
    params = {"correction": 1.0, "rank": x.dim() - 1, "reduced_rank": 1} | params
    params = {"shape": x.shape[:-1], "x_strides": x.stride()[:-1], "y_strides": y.stride()} | params
    params = {"reduced": x.shape[-1:], "reduced_strides": x.stride()[-1:]} | params
    codes = {"x_dtype": code(str(x.dtype)[6:]), "y_dtype": code(str(y.dtype)[6:])}
    memory = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    run(device, "reduce", [memory], [y], op=OPS.index(op), **codes, **params)


@pytest.mark.parametrize(("place", "op"), list(enumerate(OPS)))
def test_reductions_of_odd_rows(device: metal.Device, place: int, op: str) -> None:
    """Elements side by side, in a row and in a few, and outputs side by side."""
    dtype = FLOATS[place % 3]
    kind = getattr(torch, dtype)
    whole = {"any": torch.bool, "all": torch.bool, "argmax": torch.int64, "argmin": torch.int64}
    for size, outputs in ((SIZES[place % 8], 9), (3 + place, 40), (40 + place, 40)):
        x = odd_rows(size, dtype).repeat(5, 1)[:outputs]
        if size == 40 + place:
            x = x.t().contiguous().t()
        y = torch.empty(outputs, dtype=whole.get(op, kind))
        reduce(device, op, x, y)
        check(y, reduced(op, x), 4)


@pytest.mark.parametrize("op", ["sum", "mean", "l2_norm", "std", "prod", "sum_squares"])
def test_what_floats_cannot_hold_on_the_way(device: metal.Device, op: str) -> None:
    """Sums, squares and products that leave float's range and come back, and that cancel."""
    rows = [[3e38, 3e38, -3e38], [1e30, -1e30, 1e30], [1e-30, 2e-30, -3e-30], [1e8, 1.0, -1e8]]
    rows += [[1e30, 1e30, 1e-30], [2e-45, 1e-45, 0.0], [16777216.0, 1.0, 1.0], [1e20, 1e20, 1e-37]]
    x, y = torch.tensor(rows), torch.empty(len(rows))
    reduce(device, op, x, y)
    torch.testing.assert_close(y, reduced(op, x).float(), rtol=3e-7, atol=1e-45)


def test_partial_sums_keep_the_digits_that_cancel(device: metal.Device) -> None:
    large, order = numbers(500, seed=1) * 1e6, torch.randperm(2000)
    x = torch.cat([large, -large, numbers(1000, seed=2).abs()])[order].reshape(1, -1)
    y = torch.empty(1)
    reduce(device, "sum", x, y)
    torch.testing.assert_close(y, reduced("sum", x).float(), rtol=2e-7, atol=0)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "bool"])
def test_sums_and_extremes_of_integers_wrap(device: metal.Device, dtype: str) -> None:
    kind = getattr(torch, dtype)
    x = numbers(33, 37, dtype="int64").to(kind)
    if dtype == "int64":
        x[:4, :3] = torch.tensor([2**62, -(2**63), 2**63 - 1])
    for op in ("sum", "prod", "max", "argmin") if dtype == "int64" else ("sum", "min"):
        y = torch.empty(33, dtype=kind if op in ("max", "min") else torch.int64)
        reduce(device, op, x, y)
        check(y, reduced(op, x.long()))


def test_reductions_of_nothing(device: metal.Device) -> None:
    x = torch.empty(3, 0)
    for op, want in (("sum", 0.0), ("mean", NAN), ("prod", 1.0), ("max", -INF), ("var", NAN)):
        y = torch.empty(3)
        memory = {"reduced": (0,), "reduced_strides": (1,), "x_strides": (0,)}
        reduce(device, op, torch.zeros(3, 1), y, **memory)
        check(y, torch.full((3,), want))
    assert x.numel() == 0


@pytest.mark.parametrize("op", ["sum", "argmax", "max", "l2_norm"])
def test_few_outputs_of_many_elements(device: metal.Device, op: str) -> None:
    x = numbers(2, 20_000, dtype="bfloat16", seed=3)
    x[1, 7_000] = x[1, 19_999] = 9.0
    y = torch.empty(2, dtype=torch.int64 if op == "argmax" else torch.bfloat16)
    reduce(device, op, x, y)
    check(y, reduced(op, x), 4)


def test_reduction_between_any_strides(device: metal.Device) -> None:
    x = numbers(4, 5, 6, 7, seed=2)
    y = torch.empty(6, 4)
    params = {"rank": 2, "shape": (4, 6), "x_strides": (210, 7), "y_strides": (1, 4)}
    params |= {"reduced_rank": 2, "reduced": (7, 5), "reduced_strides": (1, 42), "correction": 0.5}
    run(device, "reduce", [x], [y], op=OPS.index("var"), x_dtype=0, y_dtype=0, **params)
    check(y.t(), x.permute(0, 2, 3, 1).reshape(4, 6, 35).double().var(-1, correction=0.5), 4)


# Scans and sorts

SCANS = ("sum", "prod", "max", "min", "logsumexp")


def scanned(op: str, x: Tensor) -> Tensor:
    """Scans dimension 1 in float64, or in integers."""
    wide = x.double() if x.dtype.is_floating_point else x
    if op in ("max", "min"):
        return getattr(torch, f"cum{op}")(wide, 1).values
    return getattr(torch, f"cum{op}" if op != "logsumexp" else "logcumsumexp")(wide, 1)


@pytest.mark.parametrize(("place", "op"), list(enumerate(SCANS * 2)))
def test_scans(device: metal.Device, place: int, op: str) -> None:
    size, inner, dtype = SIZES[place % 8], (1, 3)[place % 2], FLOATS[place % 3]
    x = numbers(5, size, inner, dtype=dtype, seed=place)
    x[1, size // 2], x[2, 0], x[3, -1] = NAN, -INF, INF
    y = torch.empty_like(x, dtype=torch.float32)
    codes = {"x_dtype": code(dtype), "y_dtype": 0, "op": SCANS.index(op)}
    run(device, "scan", [x], [y], outer=5, size=size, inner=inner, **codes)
    torch.testing.assert_close(y, scanned(op, x).float(), rtol=2e-6, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("size", [4, 300])
def test_scans_leave_the_range_of_floats_and_come_back(device: metal.Device, size: int) -> None:
    x = torch.zeros(1, size, 1)
    x[0, :4, 0] = torch.tensor([3e38, 3e38, -3e38, -3e38])
    y = torch.empty_like(x)
    run(device, "scan", [x], [y], outer=1, size=size, inner=1, op=0, x_dtype=0, y_dtype=0)
    torch.testing.assert_close(y, scanned("sum", x).float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("op", "size"), [("sum", 33), ("prod", 70), ("max", 1025), ("min", 5)])
def test_scans_of_integers_wrap(device: metal.Device, op: str, size: int) -> None:
    x = numbers(2, size, 1, dtype="int64", seed=4)
    x[0, :3, 0] = torch.tensor([2**62, 2**63 - 1, -(2**63)])
    y = torch.empty_like(x)
    codes = {"x_dtype": 4, "y_dtype": 4, "op": SCANS.index(op)}
    run(device, "scan", [x], [y], outer=2, size=size, inner=1, **codes)
    check(y, scanned(op, x))


def test_a_scan_of_large_integers_into_floats(device: metal.Device) -> None:
    x = torch.tensor([2**40 + 1, -(2**40), 2**60 + 2**20, -(2**60), 5, -(2**63)]).reshape(1, 6, 1)
    y = torch.empty(1, 6, 1)
    codes = {"x_dtype": 4, "y_dtype": 0, "op": 0}
    run(device, "scan", [x], [y], outer=1, size=6, inner=1, **codes)
    check(y, x.cumsum(1).double())


@pytest.mark.parametrize(("place", "size"), list(enumerate(SIZES)))
def test_sorts_are_stable(device: metal.Device, place: int, size: int) -> None:
    dtype = (*FLOATS, "int64", "int32", "uint8", "bool", "int8")[place]
    descending, inner = place // 2 % 2, 1 + place % 2
    x = (numbers(3, size, inner, seed=place) * 4).round().clamp(0 if place > 4 else -9)
    x = x.to(getattr(torch, dtype))
    if x.dtype.is_floating_point:
        flat = x.reshape(-1)
        flat[: 2 * size : 5], flat[1 : 2 * size : 7], flat[2 : 2 * size : 9] = NAN, INF, -INF
        flat[3 : 2 * size : 11], flat[4 : 2 * size : 13] = -0.0, torch.finfo(x.dtype).tiny / 4
    if dtype == "int64":
        x[0, : size // 2] = torch.iinfo(x.dtype).max if descending else torch.iinfo(x.dtype).min
        x[1, size // 2 :] = torch.iinfo(x.dtype).min if descending else torch.iinfo(x.dtype).max
    for k in {size, (size + 2) // 3}:
        values = torch.empty(3, k, inner, dtype=x.dtype)
        indices = torch.empty(3, k, inner, dtype=torch.int64)
        params = {"outer": 3, "size": size, "inner": inner, "k": k, "descending": descending}
        run(device, "sort", [x], [values, indices], dtype=code(dtype), **params)
        want = torch.sort(x, dim=1, stable=True, descending=bool(descending))
        assert indices.equal(want.indices[:, :k])
        torch.testing.assert_close(values, want.values[:, :k], rtol=0, atol=0, equal_nan=True)

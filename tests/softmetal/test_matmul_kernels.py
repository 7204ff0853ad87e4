"""Matrix products of Metal at the edges of tiles, in every order of threads, with and without
matrices of SIMD groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from npusim.abi.kernels import KERNELS
from npusim.abi.scalar import OPCODES
from npusim.codegen.launch_config import LaunchConfig
from npusim.codegen.metal.matmul import RULES
from tests.softmetal.matrix import CODES, close, kernels, random, results_of
from tests.softmetal.programs import Kernels

__all__ = ["kernels"]
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def _linear(
    kernels: Kernels,
    m: int,
    rows: Sequence[int],
    k: int,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype] = (F32, F32, F32),
    *,
    gated: bool = False,
    has_bias: bool = False,
    residual: int = 0,
    act: str = "copy",
    poison: float | None = None,
    norm_eps: float | None = None,
) -> LaunchConfig:
    """Compares linear with PyTorch; rows of x and y are farther apart than they are long.

    With `norm_eps` it is normed_linear. Returns how it was launched.
    """
    n = sum(rows) // (2 if gated else 1)
    x_dtype, w_dtype, y_dtype = dtypes
    x = random(m, k + 3, dtype=x_dtype, seed=1)
    w = [random(r, k + i, dtype=w_dtype, seed=2 + i) for i, r in enumerate(rows)]
    if poison is not None:
        x[m // 2, 0] = poison
    bias, r = random(sum(rows), seed=8), random(m, n + 1, dtype=y_dtype, seed=9)
    y = torch.full((m, n + 2), 7.0, dtype=y_dtype)
    norm = random(k, dtype=x_dtype, seed=7)
    operands = [x, *w, *([] if norm_eps is None else [norm])]
    operands += [*([bias] if has_bias else []), *([r] if residual else [])]
    stem = "linear" if norm_eps is None else "normed_linear"
    params = dict(
        m=m,
        n=n,
        k=k,
        ldx=k + 3,
        ldy=n + 2,
        ldr=n + 1,
        rows=list(rows),
        ldw=[k + i for i in range(len(rows))],
        segments=len(rows),
        gated=int(gated),
        x_dtype=CODES[x_dtype],
        w_dtype=CODES[w_dtype],
        y_dtype=CODES[y_dtype],
        r_dtype=CODES[y_dtype],
        has_bias=int(has_bias),
        residual=residual,
        act=OPCODES[act][0],
        act_lo=-1.5,
        act_hi=2.5,
        **({} if norm_eps is None else {"norm_eps": norm_eps}),
    )
    got = results_of(kernels, stem, operands, y, **params)
    whole, rows_of_x = torch.cat([part[:, :k] for part in w]).double(), x[:, :k].double()
    if norm_eps is not None and k:
        rows_of_x = torch.rms_norm(rows_of_x, (k,), norm.double(), norm_eps)
    want = rows_of_x @ whole.T
    if has_bias:
        want += bias
    if gated:
        want = torch.nn.functional.silu(want[:, :n]) * want[:, n:]
    else:
        want += r[:, :n] if residual == 1 else 0
        want = want.clamp(-1.5, 2.5) if act == "clamp" else want
        want += r[:, :n] if residual == 2 else 0
    close(got[:, :n], want, k**0.5)
    assert (got[:, n:] == 7).all(), "something was written behind a row"
    if poison is not None:
        assert got[:, :n].isfinite().all(1).sum() == m - 1
    return RULES[stem](KERNELS[stem].unpack(KERNELS[stem].pack(params)))


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [(7, 9, 1, F32), (65, 63, 8, F16), (8, 1, 65, BF16), (9, 33, 7, F32), (33, 65, 0, F16)],
)
def test_linear_at_the_edges_of_tiles(
    kernels: Kernels, m: int, n: int, k: int, dtype: torch.dtype
) -> None:
    _linear(kernels, m, [n], k, (dtype, dtype, dtype))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 7, 1), (1, 9, 131), (3, 1, 63), (4, 8, 0)])
def test_linear_of_few_rows(kernels: Kernels, m: int, n: int, k: int) -> None:
    _linear(kernels, m, [n], k, (F16, F16, F32))


def test_linear_of_few_rows_over_many_columns(kernels: Kernels) -> None:
    """A SIMD group has several rows of W, the last one rows that do not exist."""
    _linear(kernels, 2, [2049], 5, has_bias=True)
    _linear(kernels, 1, [2004, 46], 3, gated=True, act="silu")


@pytest.mark.parametrize("m", [2, 20])
def test_linear_with_all_that_follows_sums(kernels: Kernels, m: int) -> None:
    """Segments of W, bias, both residuals, a clamp and a gate."""
    _linear(kernels, m, [5, 1, 30, 4], 17, has_bias=True, residual=1, act="clamp")
    _linear(kernels, m, [33], 9, (BF16, F32, F16), residual=2, act="clamp")
    _linear(kernels, m, [20, 36], 40, (F16, F16, F16), has_bias=True, gated=True, act="silu")


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("m", [3, 40])
def test_a_row_of_no_numbers_stays_in_its_row(kernels: Kernels, m: int, poison: float) -> None:
    _linear(kernels, m, [9], 12, poison=poison)


# Few rows, normalised on the way


@pytest.mark.parametrize(("m", "n", "k"), [(1, 7, 1), (1, 9, 131), (3, 1, 63), (4, 8, 0)])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_normed_linear(kernels: Kernels, m: int, n: int, k: int, dtype: torch.dtype) -> None:
    _linear(kernels, m, [n], k, (dtype, dtype, dtype), norm_eps=1e-5)


def test_normed_linear_with_all_that_follows_sums(kernels: Kernels) -> None:
    more = {"norm_eps": 0.3, "has_bias": True}
    _linear(kernels, 2, [5, 1, 30, 4], 170, residual=1, act="clamp", **more)
    _linear(kernels, 1, [20, 36], 40, (F16, F16, F16), gated=True, act="silu", **more)
    _linear(kernels, 1, [2049], 5, (BF16, BF16, F32), residual=2, **more)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_normed_row_of_no_numbers_stays_in_its_row(kernels: Kernels, poison: float) -> None:
    _linear(kernels, 3, [9], 12, poison=poison, norm_eps=1e-6)


# K in parts, which a second launch adds up


@pytest.mark.parametrize(
    ("m", "rows", "k", "options"),
    [
        (20, [9], 512, {}),
        (33, [33, 5], 1030, {"has_bias": True, "residual": 1, "act": "clamp"}),
        (7, [20, 6], 700, {"has_bias": True, "gated": True, "act": "silu"}),
        (1, [1], 2048, {}),
        (4, [5, 3], 3001, {"has_bias": True, "gated": True, "act": "silu"}),
        (3, [17], 2177, {"residual": 2}),
    ],
)
def test_linear_in_parts_of_k(
    kernels: Kernels, m: int, rows: list[int], k: int, options: dict[str, Any]
) -> None:
    config = _linear(kernels, m, rows, k, (F16, F16, F32), **options)
    assert len(config.launches) == 2 and config.defines["SPLIT"] > 1


def test_rows_of_no_numbers_in_parts_of_k(kernels: Kernels) -> None:
    for m, k in ((3, 2100), (20, 600)):
        _linear(kernels, m, [9], k, poison=float("nan"))


def _matmul(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, alpha: float) -> dict[str, object]:
    """The parameters of a product with one batch dimension."""
    return {
        "batch": [1] * 5 + [y.shape[0]],
        "a_batch": [0] * 5 + [a.stride(0)],
        "b_batch": [0] * 5 + [b.stride(0)],
        "y_batch": [0] * 5 + [y.stride(0)],
        "m": a.shape[1],
        "n": b.shape[2],
        "k": a.shape[2],
        "a_m": a.stride(1),
        "a_k": a.stride(2),
        "b_k": b.stride(1),
        "b_n": b.stride(2),
        "y_m": y.stride(1),
        "dtype": CODES[y.dtype],
        "alpha": alpha,
    }


@pytest.mark.parametrize(
    ("sizes", "dtype", "across"),
    [
        ((2, 7, 9, 1), F32, "ab"),
        ((1, 65, 63, 8), F16, "a"),
        ((3, 8, 1, 65), BF16, "b"),
        ((1, 9, 33, 63), F32, ""),
        ((2, 1, 7, 20), torch.int32, "b"),
        ((1, 2, 3, 0), F32, ""),
    ],
)
def test_matmul_at_the_edges_of_tiles(
    kernels: Kernels, sizes: tuple[int, int, int, int], dtype: torch.dtype, across: str
) -> None:
    """`across`: which operands lie with neighbours in K apart."""
    batch, m, n, k = sizes
    a = random(batch, *((k, m) if "a" in across else (m, k)), dtype=dtype, seed=3)
    b = random(batch, *((k, n) if "b" in across else (n, k)), dtype=dtype, seed=4)
    left = a.transpose(1, 2) if "a" in across else a
    right = b if "b" in across else b.transpose(1, 2)
    y = torch.zeros(batch, m, n, dtype=dtype)
    _check_matmul(kernels, (a, left), (b, right), y)


def _check_matmul(
    kernels: Kernels,
    a: tuple[torch.Tensor, torch.Tensor],
    b: tuple[torch.Tensor, torch.Tensor],
    y: torch.Tensor,
) -> LaunchConfig:
    """Compares 3 * a·b with PyTorch, of operands as they lie and as they are meant."""
    params = _matmul(a[1], b[1], y, 3.0)
    got = results_of(kernels, "matmul", [a[0], b[0]], y, **params)
    want = a[1].double() @ b[1].double() * 3
    if y.dtype.is_floating_point:
        close(got, want, 3 * a[1].shape[2] ** 0.5)
    else:
        assert torch.equal(got.double(), want)
    return RULES["matmul"](KERNELS["matmul"].unpack(KERNELS["matmul"].pack(params)))


@pytest.mark.parametrize("lie", ["along", "across", "apart"])
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((2, 1, 7, 9), F32),
        ((3, 4, 130, 33), F16),
        ((1, 3, 1, 200), BF16),
        ((2, 2, 33, 0), F32),
        ((1, 1, 2050, 3), F16),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_matmul_of_few_rows_or_columns(
    kernels: Kernels,
    sizes: tuple[int, int, int, int],
    dtype: torch.dtype,
    lie: str,
    swapped: bool,
) -> None:
    """`lie`: how neighbours of the other operand do, in K and in its columns."""
    batch, few, columns, k = sizes
    x = random(batch, few, k, dtype=dtype, seed=3)
    step = 2 if lie == "apart" else 1
    shape = (batch, k, step * columns) if lie == "across" else (batch, columns, step * k)
    wide = random(*shape, dtype=dtype, seed=4)
    w = wide if lie == "across" else wide[:, :, ::step].transpose(1, 2)
    if swapped:
        y = torch.zeros(batch, columns, few, dtype=dtype)
        operands = (wide, w.transpose(1, 2)), (x, x.transpose(1, 2))
    else:
        y = torch.zeros(batch, few, columns, dtype=dtype)
        operands = (x, x), (wide, w)
    config = _check_matmul(kernels, *operands, y)
    assert config.defines["FEW"] == few or min(few, columns) == columns
    assert config.defines["SPLIT"] == 1


@pytest.mark.parametrize(
    ("sizes", "dtype", "across"),
    [
        ((2, 20, 9, 513), F32, False),
        ((1, 33, 40, 1030), F16, True),
        ((3, 7, 9, 700), torch.int32, False),
        ((2, 3, 9, 2049), F32, False),
        ((3, 2, 40, 2100), BF16, True),
        ((1, 9, 1, 2100), F16, False),
    ],
)
def test_matmul_in_parts_of_k(
    kernels: Kernels, sizes: tuple[int, int, int, int], dtype: torch.dtype, across: bool
) -> None:
    batch, m, n, k = sizes
    a = random(batch, m, k, dtype=dtype, seed=3)
    b = random(batch, *((k, n) if across else (n, k)), dtype=dtype, seed=4)
    y = torch.zeros(batch, m, n, dtype=dtype)
    config = _check_matmul(kernels, (a, a), (b, b if across else b.transpose(1, 2)), y)
    assert len(config.launches) == 2 and config.defines["SPLIT"] > 1


@pytest.mark.parametrize("offsets", [[0, 5, 5, 40], [33, 33, 34, 34], [-1, 50, 60, 70], [0] * 4])
def test_grouped_matmul_with_groups_of_any_size(kernels: Kernels, offsets: list[int]) -> None:
    m, n, k = 41, 9, 17
    a, b = random(m, k, seed=5), random(4, n, k, seed=6)
    y = torch.full((1, m, n), 7.0)
    params = _matmul(a[None], b.transpose(1, 2), y, 1.0) | {
        "batch": [1] * 5 + [4],
        "b_batch": [0] * 5 + [b.stride(0)],
    }
    ends = torch.tensor(offsets, dtype=torch.int32)
    got = results_of(kernels, "grouped_matmul", [a, b, ends], y, **params)[0]
    want = torch.zeros(m, n)
    begin = 0
    for matrix, end in zip(b, offsets, strict=True):
        end = max(begin, min(end, m))
        want[begin:end] = a[begin:end] @ matrix.T
        begin = end
    close(got, want, k**0.5)

"""Matrix products of Metal at the edges of tiles, in every order of threads, with and without
matrices of SIMD groups."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from npusim.abi.scalar import OPCODES
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
) -> None:
    """Compares linear with PyTorch; rows of x and y are farther apart than they are long."""
    n = sum(rows) // (2 if gated else 1)
    x_dtype, w_dtype, y_dtype = dtypes
    x = random(m, k + 3, dtype=x_dtype, seed=1)
    w = [random(r, k + i, dtype=w_dtype, seed=2 + i) for i, r in enumerate(rows)]
    if poison is not None:
        x[m // 2, 0] = poison
    bias, r = random(sum(rows), seed=8), random(m, n + 1, dtype=y_dtype, seed=9)
    y = torch.full((m, n + 2), 7.0, dtype=y_dtype)
    operands = [x, *w, *([bias] if has_bias else []), *([r] if residual else [])]
    got = results_of(
        kernels,
        "linear",
        operands,
        y,
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
    )
    whole = torch.cat([part[:, :k] for part in w]).double()
    want = x[:, :k].double() @ whole.T
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
    got = results_of(kernels, "matmul", [a, b], y, **_matmul(left, right, y, 3.0))
    want = left.double() @ right.double() * 3
    if dtype.is_floating_point:
        close(got, want, 3 * k**0.5)
    else:
        assert torch.equal(got.double(), want)


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

"""Attention on the software Metal device: tiles, few rows and the plain form, at their edges."""

from __future__ import annotations

import math

import pytest
import torch

from npusim.codegen.metal.attention import attention
from tests.softmetal import metal
from tests.softmetal.matrix import CODES, close, kernels, random, results_of
from tests.softmetal.programs import KernelFailure, Kernels

__all__ = ["kernels"]
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def _attention(
    kernels: Kernels,
    shape: tuple[int, int, int, int, int, int, int],
    dtype: torch.dtype = F32,
    *,
    mask: torch.Tensor | None = None,
    causal_offset: int | None = None,
    window: int = 0,
    softcap: float = 0.0,
    position: int | None = None,
    poison: int | None = None,
) -> torch.Tensor:
    """Compares with float64; `poison`: a query that is NaN, and so is its row alone."""
    batch, heads, kv_heads, queries, keys, d, columns = shape
    q = random(batch, heads, queries, d, dtype=dtype, seed=1)
    k = random(batch, kv_heads, keys, d, dtype=dtype, seed=2)
    v = random(batch, kv_heads, keys, columns, dtype=dtype, seed=3)
    used = keys if position is None else position + queries
    offset = causal_offset if position is None else position
    if poison is not None:
        q[0, 0, poison, 0] = float("nan")
    k[:, :, used:], v[:, :, used:] = float("nan"), float("nan")
    y = torch.zeros(batch, heads, queries, columns, dtype=dtype)
    operands = [q, k, v]
    operands += [] if mask is None else [mask.contiguous()]
    operands += [] if position is None else [torch.tensor([position])]
    whole = None if mask is None else mask.expand(batch, heads, queries, keys)
    scale = 1 / math.sqrt(max(d, 1))
    got = results_of(
        kernels,
        "attention",
        operands,
        y,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        q_len=queries,
        kv_len=keys,
        head_dim=d,
        v_dim=columns,
        q_strides=q.stride()[:3],
        k_strides=k.stride()[:3],
        v_strides=v.stride()[:3],
        y_strides=y.stride()[:3],
        mask_strides=whole.stride() if whole is not None else [0] * 4,
        causal_offset=offset or 0,
        window=window,
        has_mask=int(mask is not None),
        mask_dtype=CODES.get(mask.dtype, 9) if mask is not None else CODES[dtype],
        causal=int(offset is not None),
        has_position=int(position is not None),
        dtype=CODES[dtype],
        scale=scale,
        softcap=softcap,
    )
    group = heads // kv_heads
    wide_k, wide_v = (t[:, :, :used].double().repeat_interleave(group, 1) for t in (k, v))
    scores = q.double() @ wide_k.transpose(2, 3) * scale
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    if whole is not None:
        added = torch.where(whole, 0.0, -torch.inf) if whole.dtype == torch.bool else whole
        scores = scores.float() + added[..., :used].float()
    at = torch.arange(queries)[:, None] + (offset or 0) - torch.arange(used)
    hidden = (at < 0) if offset is not None else torch.zeros(queries, used, dtype=torch.bool)
    hidden = hidden | (at >= window) if window else hidden
    weights = scores.double().masked_fill(hidden, -torch.inf).softmax(-1)
    nothing = (scores.masked_fill(hidden, -torch.inf) == -torch.inf).all(-1, keepdim=True)
    want = weights.masked_fill(nothing, 0) @ wide_v
    close(got, want, 2.0)
    if poison is not None:
        assert got.isnan().any(-1).sum() == 1
    return got


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 2, 1, 7, 9, 8, 8), F32),
        ((2, 2, 2, 33, 65, 7, 9), F16),
        ((1, 1, 1, 8, 63, 65, 1), BF16),
        ((1, 1, 1, 5, 17, 130, 128), F32),
    ],
)
def test_many_queries(
    kernels: Kernels, shape: tuple[int, int, int, int, int, int, int], dtype: torch.dtype
) -> None:
    _attention(kernels, shape, dtype)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 4, 2, 1, 65, 8, 9), F16),
        ((2, 1, 1, 3, 7, 63, 65), F32),
        ((1, 1, 1, 1, 1, 1, 1), BF16),
        ((1, 1, 1, 2, 300, 16, 300), F32),
        ((1, 1, 1, 2, 3, 0, 4), F32),
    ],
)
def test_few_queries(
    kernels: Kernels, shape: tuple[int, int, int, int, int, int, int], dtype: torch.dtype
) -> None:
    """Heads too long for either, and those of no length, are the plain form's."""
    _attention(kernels, shape, dtype)


# Keys shared by several threadgroups, whose results a second launch combines

LONG = (1, 4, 2, 1, 700, 16, 24)


def parts_of(shape: tuple[int, int, int, int, int, int, int]) -> int:
    """How many threadgroups share the keys of such an attention."""
    names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_dim")
    sizes = dict(zip(names, shape, strict=True))
    fields = {"has_mask": 0, "has_position": 0, "dtype": 0}
    return attention({**sizes, **fields}).defines["PARTS"]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (LONG, F16),
        ((1, 7, 1, 1, 129, 130, 40), BF16),
        ((1, 2, 1, 4, 513, 8, 65), F32),
        ((1, 1, 1, 1, 4200, 1, 1), F32),
        ((1, 1, 1, 2, 300, 16, 300), F32),
    ],
)
def test_keys_in_parts(
    kernels: Kernels, shape: tuple[int, int, int, int, int, int, int], dtype: torch.dtype
) -> None:
    assert parts_of(shape) > 1
    _attention(kernels, shape, dtype)


@pytest.mark.parametrize("used", [1, 2, 127, 128, 129, 256, 257, 700])
def test_as_many_parts_as_keys_in_use(kernels: Kernels, used: int) -> None:
    """Nobody reads what the others would have left; a window ends parts earlier."""
    assert parts_of(LONG) > 2
    _attention(kernels, LONG, F16, position=used - 1)
    _attention(kernels, LONG, position=used - 1, window=130)
    if used > 2:
        _attention(kernels, (1, 4, 2, 3, 700, 16, 24), position=used - 3, window=129, softcap=3.0)


def test_parts_that_a_row_sees_nothing_of(kernels: Kernels) -> None:
    """Whole parts are hidden from a row, by masks, by infinities, or by its place."""
    shape = (1, 2, 1, 2, 600, 16, 16)
    assert parts_of(shape) > 2
    attend = torch.ones(1, 2, 2, 600, dtype=torch.bool)
    attend[:, 0, :, :300], attend[:, 1, 0, 130:], attend[:, 1, 1] = False, False, False
    got = _attention(kernels, shape, F16, mask=attend)
    assert (got[0, 1, 1] == 0).all() and (got[0, :, 0] != 0).any()
    added = random(1, 1, 2, 600, seed=8)
    added[:, :, 0, 100:500] = -torch.inf
    added[:, :, 1] = torch.finfo(torch.float32).min
    _attention(kernels, shape, mask=added)
    _attention(kernels, shape, causal_offset=-1)
    _attention(kernels, shape, causal_offset=298)


def test_a_part_of_no_numbers_is_not_lost(kernels: Kernels) -> None:
    _attention(kernels, (1, 2, 1, 2, 500, 8, 8), poison=1)
    added = torch.zeros(1, 2, 1, 700)
    added[0, 0, 0, 400], added[0, 1, 0, 3] = float("nan"), float("inf")
    got = _attention(kernels, (1, 2, 1, 1, 700, 8, 8), mask=added)
    assert got.isnan().all()


@pytest.mark.parametrize("key", [0, 300, 699])
def test_a_key_that_outweighs_all_parts(kernels: Kernels, key: int) -> None:
    added = torch.zeros(1, 4, 1, 700)
    added[..., key] = 300
    _attention(kernels, LONG, mask=added)


@pytest.mark.parametrize("queries", [2, 40])
def test_causal_windows_caps_and_caches(kernels: Kernels, queries: int) -> None:
    """What a cache holds behind the tokens in use is never read."""
    shape = (1, 4, 2, queries, 70, 16, 16)
    _attention(kernels, shape, causal_offset=70 - queries, softcap=2.0)
    _attention(kernels, shape, F16, causal_offset=-1)  # the first query sees nothing
    _attention(kernels, shape, position=11, window=5)


@pytest.mark.parametrize("queries", [3, 34])
def test_masks(kernels: Kernels, queries: int) -> None:
    shape = (2, 2, 1, queries, 37, 8, 8)
    attend = random(2, 1, queries, 37, seed=7) > 0
    attend[:, :, 1] = False  # a row that sees nothing is 0
    _attention(kernels, shape, F16, mask=attend)
    added = random(1, 2, queries, 37, seed=8)
    added[:, :, 1] = torch.finfo(torch.float32).min  # hidden, but by no infinity: the mean
    added[:, :, 2] = -torch.inf
    got = _attention(kernels, shape, mask=added)
    assert (got[:, :, 1] != 0).all() and (got[:, :, 2] == 0).all()


@pytest.mark.parametrize("queries", [2, 20])
def test_a_query_of_no_numbers_stays_in_its_row(kernels: Kernels, queries: int) -> None:
    _attention(kernels, (1, 2, 1, queries, 40, 8, 8), poison=1)


def test_a_position_outside_of_the_cache_is_reported(device: metal.Device) -> None:
    for position in (-1, 9):
        with pytest.raises(KernelFailure) as found:
            _attention(Kernels(device), (1, 1, 1, 2, 10, 8, 8), position=position)
        assert found.value.args == (1, position, 8)

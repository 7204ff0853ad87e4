"""Kernels over pages: the bits of a row whatever else there is, what is refused, what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda.paging import paged_attention
from npusim.ops.paged import reference_paged_append, reference_paged_attention
from npusim.selftest.single_op import assert_close
from tests.codegen import host

pytestmark = pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")

PAGES, TABLE, PAGE = 14, 12, 64  # three chunks of keys
HEADS, GROUPS, SIZE = 4, 2, 16
CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
PLACES = 0b111 << 3  # positions, requests and tables of an attention
POOLS = 0b11 << 1  # its keys and values, which only appends of its rows write
Pools = tuple[Tensor, Tensor]


def attention_params(
    dtype: torch.dtype, rows: int, page: int, window: int = 0, size: int = SIZE
) -> dict[str, Any]:
    stride = [GROUPS * page * size, page * size, size]
    return {
        "heads": HEADS, "kv_heads": GROUPS, "length": rows, "head_dim": size, "v_dim": size,
        "pages": PAGES * PAGE // page, "page_tokens": page, "requests": 3,
        "table_length": TABLE * PAGE // page, "window": window, "q_strides": [size, HEADS * size],
        "k_strides": stride, "v_strides": stride, "y_strides": [size, HEADS * size],
        "dtype": CODES[dtype], "scale": 0.3, "softcap": 0.0,
    }  # fmt: skip


def append_params(dtype: torch.dtype, rows: int) -> dict[str, Any]:
    return {
        "heads": GROUPS, "length": rows, "head_dim": SIZE, "pages": PAGES, "page_tokens": PAGE,
        "requests": 3, "table_length": TABLE, "x_strides": [SIZE, GROUPS * SIZE],
        "y_strides": [GROUPS * PAGE * SIZE, PAGE * SIZE, SIZE], "dtype": CODES[dtype],
    }  # fmt: skip


def key(stem: str, params: dict[str, Any]) -> host.Key:
    return stem, KERNELS[stem].pack(params)


def random_pools(dtype: torch.dtype, seed: int, size: int = SIZE) -> Pools:
    draw = torch.Generator().manual_seed(seed)
    made = (torch.randn(PAGES, GROUPS, PAGE, size, generator=draw).to(dtype) for _ in "kv")
    k, v = made
    return k, v


def tables(seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(PAGES, generator=draw)[:TABLE] for _ in range(3)])


def attend(kernel: host.HostKernel, q: Tensor, pools: Pools, places: Sequence[Tensor]) -> Tensor:
    """Returns [rows, heads, size]; what is not written is NaN."""
    y = torch.full_like(q, torch.nan)
    host.call(kernel, [q, *pools, *places, y])
    return y


def reference(q: Tensor, pools: Pools, places: Sequence[Tensor], window: int) -> Tensor:
    found = reference_paged_attention(
        q.double().permute(1, 0, 2)[None], *(x.double() for x in pools), *places,
        scale=0.3, softcap=0.0, window=window,
    )  # fmt: skip
    return found[0].permute(1, 0, 2)


@pytest.mark.parametrize(
    ("dtype", "window", "size"),
    [(dtype, window, SIZE) for dtype in CODES for window in (0, 300)]
    + [(torch.bfloat16, 300, 64)],  # whole lines, which are copied at constant offsets
)
def test_a_row_gets_the_same_bits_alone_and_among_others(
    dtype: torch.dtype, window: int, size: int, tmp_path: Path
) -> None:
    """Alone its chunks are shared by blocks, among many a block has them all."""
    counts = (1, 7, 200)
    keys = [key("paged_attention", attention_params(dtype, n, PAGE, window, size)) for n in counts]
    kernels = host.build(keys, tmp_path, unwritten=PLACES | POOLS if window else 0)
    alone, several, many = (kernels[k] for k in keys)
    if dtype != torch.float32:
        splits = [kernel.config.defines["SPLIT"] for kernel in (alone, several, many)]
        assert splits[0] > 1 and splits[2] == 1
    pools, named = random_pools(dtype, 1, size), tables(2)
    positions = torch.tensor([0, 63, 64, 255, 256, 511, 767])
    requests = torch.tensor([0, 1, 2, 0, 1, 2, 1])
    q = torch.randn(7, HEADS, size, generator=torch.Generator().manual_seed(4)).to(dtype)
    y = attend(several, q, pools, (positions, requests, named))
    assert_close(y, reference(q, pools, (positions, requests, named), window).to(dtype), 2.0, "y")
    for i in range(7):
        one = attend(alone, q[i : i + 1], pools, (positions[i : i + 1], requests[i : i + 1], named))
        assert torch.equal(one[0], y[i]), i
    where = torch.arange(200) % 7
    no_row = torch.arange(200) % 5 == 3
    spread = (positions[where], torch.where(no_row, -1, requests[where]), named)
    found = attend(many, q[where].contiguous(), pools, spread)
    assert torch.equal(found, torch.where(no_row[:, None, None], torch.zeros_like(found), y[where]))


@pytest.mark.parametrize(("page", "size"), [(16, SIZE), (64, SIZE), (64, 64)])
def test_what_no_row_has_written_does_not_show(page: int, size: int, tmp_path: Path) -> None:
    dtype = torch.bfloat16
    wanted = key("paged_attention", attention_params(dtype, 1, page, size=size))
    kernel = host.build([wanted], tmp_path)[wanted]
    pools = tuple(x.reshape(-1, GROUPS, page, size) for x in random_pools(dtype, 1, size))
    q = torch.randn(1, HEADS, size, generator=torch.Generator().manual_seed(4)).to(dtype)
    named = torch.arange(TABLE * PAGE // page).repeat(3, 1)
    position = 5 * page + 4
    places = (torch.tensor([position]), torch.tensor([1]), named)
    y = attend(kernel, q, pools, places)
    for pool in pools:
        pool[5, :, 5:] = torch.nan
        pool[6:] = torch.inf
    named[:, 6:] = -1
    assert torch.equal(attend(kernel, q, pools, places), y)
    pools[1][2, :, 7] = torch.nan  # one that the row sees
    assert attend(kernel, q, pools, places).isnan().all()


@pytest.mark.parametrize(
    ("wrong", "value", "limit"),
    [("position", -1, 767), ("position", 768, 767), ("request", 3, 2), ("request", -2, 2),
     ("page", PAGES, PAGES - 1), ("page", -1, PAGES - 1)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_outside_are_reported(
    dtype: torch.dtype, wrong: str, value: int, limit: int, tmp_path: Path
) -> None:
    """Likewise where they are read before other launches have ended, as those above a limit are."""
    attention = key("paged_attention", attention_params(dtype, 2, PAGE))
    append = key("paged_append", append_params(dtype, 2))
    kernels = {}
    for wanted, places in ((attention, PLACES), (append, PLACES >> 2)):
        folder = tmp_path / wanted[0]
        folder.mkdir()
        kernels |= host.build([wanted], folder, unwritten=places if value > limit else 0)
    pools, named = random_pools(dtype, 1), tables(2)
    positions, requests = torch.tensor([3, 80]), torch.tensor([0, 1])
    if wrong == "position":
        positions[1] = value
    elif wrong == "request":
        requests[1] = value
    else:
        named[1, 1] = value
    q = torch.ones(2, HEADS, SIZE, dtype=dtype)
    with pytest.raises(host.KernelFailure) as raised:
        attend(kernels[attention], q, pools, (positions, requests, named))
    assert raised.value.args == (1, value, limit)
    before = pools[0].clone()
    x = torch.ones(2, GROUPS, SIZE, dtype=dtype)
    with pytest.raises(host.KernelFailure) as raised:
        host.call(kernels[append], [x, positions, requests, named, pools[0]])
    assert raised.value.args == (1, value, limit)
    want = reference_paged_append(
        x[:1].permute(1, 0, 2)[None], before, positions[:1], requests[:1], named
    )
    assert torch.equal(pools[0], want)  # the other row, and nothing else


def test_the_last_of_rows_at_one_place_is_kept(tmp_path: Path) -> None:
    wanted = key("paged_append", append_params(torch.bfloat16, 6))
    kernel = host.build([wanted], tmp_path)[wanted]
    pool, named = random_pools(torch.bfloat16, 1)[0], tables(2)
    named[2, 0] = named[0, 1]  # a page of two requests
    positions, requests = torch.tensor([70, 5, 70, 6, 5, 0]), torch.tensor([0, 1, 0, 2, -1, 1])
    x = torch.randn(6, GROUPS, SIZE).bfloat16()
    want = reference_paged_append(x.permute(1, 0, 2)[None], pool, positions, requests, named)
    host.call(kernel, [x, positions, requests, named, pool])
    assert torch.equal(pool, want)


def test_blocks_share_the_keys_of_few_rows_alone() -> None:
    for rows, window, split in ((1, 0, 3), (40, 0, 3), (64, 0, 2), (133, 0, 1), (1, 256, 2)):
        given = KERNELS["paged_attention"].unpack(
            KERNELS["paged_attention"].pack(attention_params(torch.bfloat16, rows, PAGE, window))
        )
        config = paged_attention(given)
        assert config.defines["SPLIT"] == split, (rows, window)
        assert bool(config.scratch) == (split > 1)

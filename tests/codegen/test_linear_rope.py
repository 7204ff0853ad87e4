"""Products that turn and append their columns: the values of the commands they join, any kernel."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import npusim
from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import matmul_rules, nvrtc, one_order
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.ops.paged import reference_paged_append
from npusim.ops.rope import reference_rope
from npusim.targets import TargetConfig
from tests.codegen import host
from tests.codegen.cases import paged_step
from tests.codegen.entry_parameters import entry_parameters, taken
from tests.codegen.ptxas import SPILLED, spilled
from tests.codegen.test_matmul_rules import _full, _linear

STEM = "linear_rope_append"
PAGES, TABLE, PAGE, REQUESTS = 9, 4, 16, 3


def joined(m: int, heads: int, kv_heads: int, size: int, k: int, slots: int = 0) -> dict[str, Any]:
    rows = (heads * size, kv_heads * size, kv_heads * size, 0)
    linear = _linear(m, sum(rows), k, segments=3, rows=rows, ldw=(k, k, k, 0), has_bias=1)
    pool = (kv_heads * PAGE * size, PAGE * size, size)
    return _full(STEM, linear | {
        "slots": slots, "norm_eps": 1e-6, "heads": heads, "kv_heads": kv_heads, "length": m,
        "head_dim": size, "pages": PAGES, "page_tokens": PAGE, "requests": REQUESTS,
        "table_length": TABLE, "y_strides": (size, heads * size), "k_pool_strides": pool,
        "v_pool_strides": pool, "cs_strides": (size, size), "dtype": 2, "cs_dtype": 2,
    })  # fmt: skip


class Step:
    """Operands of a few rows, of which two go to one place and one nowhere."""

    def __init__(self, m: int, heads: int, kv_heads: int, size: int, k: int) -> None:
        draw = torch.Generator().manual_seed(6)

        def random(*shape: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(shape, generator=draw) * scale).bfloat16()

        counts = (heads * size, kv_heads * size, kv_heads * size)
        self.x, self.bias = random(m, k), random(sum(counts)).float()
        self.weights = [random(n, k, scale=k**-0.5) for n in counts]
        self.angles = [random(m, size), random(m, size)]
        self.pools = [random(PAGES, kv_heads, PAGE, size) for _ in "kv"]
        positions, requests = torch.arange(m) * 5 % (TABLE * PAGE), torch.arange(m) % REQUESTS
        positions[4], requests[4] = positions[1], requests[1]
        requests[2] = -1
        tables = torch.randperm(PAGES, generator=draw).repeat(2)[: REQUESTS * TABLE]
        self.places = [positions, requests, tables.view(REQUESTS, TABLE)]
        self.y = torch.full((m, heads * size), torch.nan).bfloat16()

    def operands(self) -> list[Tensor]:
        given = [self.x, *self.weights, self.bias, *self.angles, *self.places, self.y]
        return [*given, *self.pools]

    def expected(self, heads: int, kv_heads: int, size: int) -> list[Tensor]:
        product = self.x.float() @ torch.cat(self.weights).float().T + self.bias
        m = len(self.x)
        split = product.bfloat16().view(1, m, heads + 2 * kv_heads, size).transpose(1, 2)
        q, k, v = split.split([heads, kv_heads, kv_heads], 1)
        cos, sin = (angle[None] for angle in self.angles)
        q, k = (reference_rope(x, cos, sin, interleaved=False, rotary_dim=size) for x in (q, k))
        pools = [reference_paged_append(x, pool, *self.places)
                 for x, pool in zip((k, v), self.pools, strict=True)]  # fmt: skip
        return [q[0].transpose(0, 1).reshape(m, -1), *pools]


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("kind", ["", "joined", "apart"])
def test_values_are_those_of_the_commands_it_joins(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On devices without TMA: tiles and a launch after them, or a block a head."""
    m, heads, kv_heads, size, k = 7, 2, 1, 64, 72
    if kind == "apart":
        monkeypatch.setattr(one_order, "_FIT", replace(one_order._FIT, joined_rows=0))
    params = joined(m, heads, kv_heads, size, k)
    names = one_order.configs(STEM, params)
    name = next(name for name in names if "swapped" in name) if kind else ""
    key = STEM, KERNELS[STEM].pack(params)
    kernel = host.build([key], tmp_path, name)[key]
    assert len(kernel.config.launches) == (1 if kind == "joined" else 2)
    step = Step(m, heads, kv_heads, size, k)
    want = step.expected(heads, kv_heads, size)
    before = [pool.clone() for pool in step.pools]
    host.call(kernel, step.operands())
    for found, exact in zip([step.y, *step.pools], want, strict=True):
        assert float((found.float() - exact.float()).norm() / exact.float().norm()) < 5e-3
    for pool, exact, old in zip(step.pools, want[1:], before, strict=True):
        kept = (exact == old).all(-1)
        assert torch.equal(pool[kept], old[kept]) and not kept.all()
    step.places[1][0] = REQUESTS
    with pytest.raises(host.KernelFailure) as failed:
        host.call(kernel, step.operands())
    assert failed.value.args[1:] == (REQUESTS, REQUESTS - 1)


def test_tiles_compile_without_spilling(compiler: nvrtc.Nvrtc) -> None:
    params = joined(64, 12, 2, 128, 1536, slots=24)
    name = next(name for name in one_order.configs(STEM, params) if "swapped" in name)
    source, config, options = specialise(STEM, KERNELS[STEM].pack(params), 0x3AE, name)
    assert len(config.launches) == 1 and config.launches[0].shared <= 231424
    options = ("--gpu-architecture=sm_90a", *options, "--ptxas-options=-v")
    cubin, log = compiler.compile(source, options, STEM)
    assert spilled(log) <= SPILLED
    assert entry_parameters(cubin) == {"npusim_kernel": taken(config, 14)}


def test_tiles_turn_up_to_a_number_of_rows_where_they_have_both_halves_of_a_head() -> None:
    def tiles(size: int, m: int = 8) -> set[tuple[str, int]]:
        ways = one_order.configs(STEM, joined(m, 4, 2, size, 512))
        return {(n.split()[4], len(ways[n]().launches)) for n in ways if "swapped" in n}

    assert tiles(64) == {("64x8", 1)}
    assert tiles(128) == {("64x8", 1), ("128x8", 1)}
    assert tiles(96) == {("64x8", 2)}
    most = one_order._FIT.joined_rows
    assert {launches for _, launches in tiles(64, most)} == {1}
    assert {launches for _, launches in tiles(64, most + 1)} == {2}


@pytest.mark.parametrize("size", [64, 96, 128])
def test_all_numbers_of_rows_have_one_order(size: int) -> None:
    """Where a tile turns its columns, where a launch after it does, and where tiles are wide."""
    ways = [one_order.configs(STEM, joined(m, 4, 2, size, 1536)) for m in (1, 64, 65, 300, 2000)]
    assert len({re.findall(r" o(\d+)", next(iter(names)))[0] for names in ways}) == 1


def test_beyond_it_products_have_the_tiles_that_they_have_by_themselves() -> None:
    for slots, stem in ((0, "linear"), (24, "linear_behind_norm")):
        params = joined(256, 12, 2, 128, 1536, slots)
        ways = one_order.configs(STEM, params)
        alone = one_order.configs(stem, matmul_rules.product_of(params))
        assert list(ways) == list(alone)
        for name in alone:
            first, *rest = ways[name]().launches
            if not name.endswith("tiles"):
                assert (first,) == alone[name]().launches
            assert [launch.entry for launch in rest] == ["npusim_rope"]


@pytest.mark.parametrize(
    ("between", "size", "stems"),
    [("", 64, {STEM}), ("", 128, {STEM}),
     ("norm", 64, {"linear", "norm", "paged_rope_append"}),
     ("reader", 64, {"linear", "paged_rope_append"}),
     ("writer", 64, {"linear", "paged_append", "paged_rope_append"}),
     ("", 32, {"linear", "paged_rope_append"})],
)  # fmt: skip
def test_a_product_turns_its_columns_where_nobody_else_reads_them_and_its_operands_stay(
    between: str, size: int, stems: set[str]
) -> None:
    target = replace(TargetConfig.named("cuda:sm_90a"), code_format="")
    program = npusim.compile(paged_step(between, size), target)
    found = {program.kernels[c.kernel].name for c in program.methods[0].commands}
    assert found - {"copy"} == stems

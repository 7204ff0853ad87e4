"""Attention in every launch configuration, over edge values, cuts of keys, and caches in use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import npusim
from npusim.codegen import generate
from npusim.codegen.choice import Choice
from npusim.codegen.cuda.variants import variants
from npusim.ir.opdef import REGISTRY, Case
from npusim.lowering.assemble import assemble
from npusim.program.program import CompiledProgram
from npusim.selftest.single_op import assert_close, graph_of, reference, tensors_for
from npusim.targets import TargetConfig
from tests.gpu.device import require_gpu

require_gpu()

_SDPA, _CACHED = "aten.scaled_dot_product_attention.default", "npu.cached_attention"


def _attended(
    heads: tuple[int, int],
    rows: tuple[int, int],
    dim: int,
    v_dim: int = 0,
    *more: Any,
    **attrs: Any,
) -> tuple[str, Case]:
    shapes = ((2, heads[0], rows[0], dim), (2, heads[1], rows[1], dim))
    values = (2, heads[1], rows[1], v_dim or dim)
    return _SDPA, Case((*shapes, values, *(more or (None,))), {"enable_gqa": True, **attrs})


def _cached(
    rows: tuple[int, int], dim: int, position: int, window: int = 0, softcap: float = 0.0
) -> tuple[str, Case]:
    cache = (1, 2, rows[1], dim)
    given = ((1, 6, rows[0], dim), cache, cache, ((1,), ("int", position, position + 1)))
    return _CACHED, Case(given, {"scale": dim**-0.5, "softcap": softcap, "window": window})


CASES = {
    "one tile": _attended((2, 2), (64, 64), 64),
    "cut tiles": _attended((2, 2), (197, 197), 64),
    "many tiles": _attended((2, 1), (130, 1500), 64),
    "causal": _attended((4, 2), (300, 300), 128, is_causal=True),
    "heads of 32": _attended((2, 2), (150, 277), 32),
    "heads of 40": _attended((3, 3), (150, 277), 40),
    "heads of 72": _attended((2, 2), (150, 277), 72),
    "heads of 88, causal": _attended((2, 1), (277, 277), 88, is_causal=True),
    "heads of 80": _attended((2, 2), (150, 277), 80),
    "heads of 96": _attended((2, 2), (150, 277), 96),
    "heads of 256": _attended((4, 2), (150, 277), 256),
    "long queries": _attended((2, 2), (150, 277), 192, 128),
    "short queries": _attended((2, 2), (150, 277), 48, 80),
    "mask": _attended((2, 2), (150, 277), 64, 0, ((150, 277), "bool")),
    "added": _attended((2, 2), (150, 277), 128, 0, (2, 1, 150, 277)),
    "cache": _cached((150, 700), 128, 77),
    "full cache": _cached((150, 300), 64, 150),
    "window": _cached((150, 700), 64, 333, window=100),
    "soft cap": _cached((150, 700), 256, 5, softcap=0.7),
}


def in_every_way(op: str, case: Case, tensors: list[Any], dtype: str) -> Iterator[tuple[str, Any]]:
    """Yields the program by the rule and by every variant, named, and last the expected result."""
    target = TargetConfig.named("cuda")
    graph = graph_of(REGISTRY[op], case, tensors, dtype)
    program = assemble(graph, target)
    (key,) = {(program.kernels[c.kernel].name, c.params) for c in program.methods[0].commands}
    names = ("", *variants(*key))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        made = pool.map(lambda name: generate(program, target, {key: Choice(variant=name)}), names)
        yield from zip(names, made, strict=True)
    yield "expected", reference(graph, tensors)[0]


def run_all(
    op: str, case: Case, tensors: list[Any], dtype: str, scale: float = 4.0
) -> list[Tensor]:
    """Runs every configuration twice; results are as expected, and the same bits again."""
    device, results = npusim.Device("cuda"), []
    *programs, (_, want) = in_every_way(op, case, tensors, dtype)
    assert any(name.startswith("bulk") for name, _ in programs)
    for name, program in programs:
        assert isinstance(program, CompiledProgram)
        session = npusim.load(program, device=device)
        given = [t for t in tensors if t is not None]
        first, second = (session(*given)[0] for _ in range(2))
        assert torch.equal(first.view(torch.int16), second.view(torch.int16)), name
        assert_close(first, want, scale, name)
        results.append(first)
    return results


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_every_tile_computes_the_same(name: str, dtype: str) -> None:
    op, case = CASES[name]
    tensors = tensors_for(case, dtype, name)
    if op == _CACHED:  # rows that are not in use may hold anything
        q, k, v, position = tensors
        assert q is not None and k is not None and v is not None and position is not None
        used = int(position) + q.shape[2]
        k[:, :, used:], v[:, :, used:] = torch.nan, torch.inf
    run_all(op, case, tensors, dtype)


def test_rows_without_keys_are_zero_and_what_is_no_number_stays_so() -> None:
    op, case = _attended((2, 2), (150, 277), 64, 0, (2, 1, 150, 277))
    q, k, v, mask = tensors_for(case, "bfloat16", "edges")
    assert q is not None and k is not None and v is not None and mask is not None
    mask[:, :, 3] = -torch.inf  # no keys
    mask[:, :, 70] = torch.finfo(torch.bfloat16).min  # all alike
    mask[:, :, 71, 5:] = -torch.inf
    mask[:, :, 72, 200] = torch.nan
    mask[:, :, 73, 200] = torch.inf
    q[:, :, 140] = torch.nan
    q[:, :, 141] = torch.inf
    for y in run_all(op, case, [q, k, v, mask], "bfloat16"):
        assert (y[:, :, 3] == 0).all()
        torch.testing.assert_close(y[:, :, 70].float(), v.float().mean(2), atol=2e-2, rtol=0)
        assert y[:, :, [72, 73, 140, 141]].isnan().all()
        assert y[:, :, [4, 71, 74, 142]].isfinite().all()


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_operands_off_16_bytes_go_by_other_tiles(dim: int) -> None:
    op, case = _attended((2, 2), (150, 277), dim)
    tensors = tensors_for(case, "bfloat16", "shifted")
    device = npusim.Device("cuda")
    *programs, (_, want) = in_every_way(op, case, tensors, "bfloat16")
    moved = []
    for t in tensors[:3]:
        assert t is not None
        flat = torch.zeros(t.numel() + 1, dtype=t.dtype, device="cuda")
        flat[1:] = t.flatten()
        moved.append(flat[1:].view(t.shape))
    for name, program in programs:
        got = npusim.load(program, device=device)(*moved)[0]
        assert_close(got.cpu(), want, 4.0, name)


@pytest.mark.parametrize("position", [-1, 601])
def test_a_position_outside_is_an_error(position: int) -> None:
    op, case = _cached((100, 700), 64, position)
    tensors = tensors_for(case, "bfloat16", "outside")
    graph = graph_of(REGISTRY[op], case, tensors, "bfloat16")
    target = TargetConfig.named("cuda")
    program = assemble(graph, target)
    (key,) = {(program.kernels[c.kernel].name, c.params) for c in program.methods[0].commands}
    for name in variants(*key):
        made = generate(program, target, {key: Choice(variant=name)})
        with pytest.raises(npusim.Error, match=f"out of range: {position}, limit 600"):
            npusim.load(made, device=npusim.Device("cuda"))(*tensors)

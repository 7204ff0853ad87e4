"""Programs to generate code for, before code generation: the conformance cases, and models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

import npusim
import npusim.ops
from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda.rules import RULES
from npusim.errors import UnsupportedOpError
from npusim.ir.graph import Graph
from npusim.ir.opdef import REGISTRY, Case, OpDef
from npusim.ir.types import TensorType
from npusim.lowering.assemble import assemble
from npusim.passes.run import run_passes
from npusim.program.program import CompiledProgram
from npusim.selftest.single_op import graph_of, tensors_for
from npusim.targets import TargetConfig
from tests.end_to_end.architectures import small_model
from tests.models import build
from tests.passes.conftest import Draft

TARGET = TargetConfig.named("cuda:sm_90a")  # whatever GPU is there


@dataclass(frozen=True)
class Example:
    """A conformance case, lowered for CUDA."""

    op: OpDef
    dtype: str
    tensors: list[Tensor | None]
    graph: Graph
    program: CompiledProgram


def examples(*ops: str) -> Iterator[Example]:
    """Yields the conformance cases, of some ops or of all, whose kernels CUDA has."""
    for op in (REGISTRY[name] for name in ops or REGISTRY):
        for index, case in enumerate(op.cases):
            for dtype in op.dtypes:
                lowered = _lowered(op.name, index, dtype)
                if lowered is not None:
                    yield Example(op, dtype, _tensors(op, case, dtype), *lowered)


def _tensors(op: OpDef, case: Case, dtype: str) -> list[Tensor | None]:
    return tensors_for(case, dtype, f"{op.name}{case.inputs}")


@cache
def _lowered(name: str, index: int, dtype: str) -> tuple[Graph, CompiledProgram] | None:
    """Returns an op's case as a graph and a program; none where CUDA has no kernels for it."""
    op = REGISTRY[name]
    case = op.cases[index]
    graph = graph_of(op, case, _tensors(op, case, dtype), dtype)
    try:
        program = assemble(graph, TARGET)
    except UnsupportedOpError:
        return None
    assert all(kernel.name in RULES for kernel in program.kernels)
    return graph, program


def spread(each: int) -> Iterator[Example]:
    """Yields about `each` examples of every kernel, of different ops and dtypes."""
    seen: Counter[str] = Counter()
    taken: set[tuple[str, str]] = set()
    for example in examples():
        stems = {kernel.name for kernel in example.program.kernels}
        new = (example.op.name, example.dtype) not in taken
        if new and any(seen[stem] < each for stem in stems):
            taken.add((example.op.name, example.dtype))
            seen.update(stems)
            yield example


class NormBetween(nn.Module):
    """A projection, and a gated feed-forward of its norm, each added to what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.o = nn.Linear(24, 80, bias=False).bfloat16()
        self.norm = nn.RMSNorm(80, eps=1e-6).bfloat16()
        self.norm.weight.data.normal_()
        self.gate = nn.Linear(80, 40).bfloat16()
        self.up = nn.Linear(80, 40).bfloat16()
        self.down = nn.Linear(40, 80).bfloat16()

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """Maps [..., 24] and [..., 80] to [..., 80]."""
        y = residual + self.o(x)
        normed = self.norm(y)
        return y + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


def norm_between() -> tuple[NormBetween, tuple[Tensor, Tensor], CompiledProgram]:
    """Returns a model, inputs, and its program for an architecture whose products do norms."""
    target = TARGET.with_arch("sm_90a")
    torch.manual_seed(0)
    model = NormBetween().eval()
    given = torch.randn(2, 20, 24).bfloat16(), torch.randn(2, 20, 80).bfloat16()
    return model, given, assemble(run_passes(npusim.extract_ir(model, given), target), target)


class ManyRows(nn.Module):
    """Attention of so many rows, of heads of whole loads, that tiles by TMA compute it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Maps three [B, H, N, E] to [B, H, N, E]."""
        return nn.functional.scaled_dot_product_attention(q, k, v)


@cache
def models() -> tuple[CompiledProgram, ...]:
    """Returns programs of small models in 16-bit: their fused kernels, which no single op calls."""
    return tuple(_models())


def _models() -> Iterator[CompiledProgram]:
    target = replace(TARGET, code_format="")  # no code
    for name in ("resnet18", "mobilenet_v2"):
        model, (x,) = build(name, small=True)
        yield npusim.compile((model.half(), (x.half(),)), target)
    for name, quantize in (("qwen2-tied", "none"), ("qwen3", "int4-g32")):
        module = npusim.extract_llm(
            small_model(name, torch.bfloat16), max_context=200, prefill_chunk=128
        )
        yield npusim.compile(module, target, quantize=quantize)
    grouped = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, groups=2)).eval().half()
    yield npusim.compile((grouped, (torch.randn(1, 8, 9, 9).half(),)), target)  # a strip a thread
    norm = nn.Sequential(nn.Conv2d(8, 16, 1), nn.GroupNorm(4, 16), nn.SiLU()).eval().half()
    yield npusim.compile((norm, (torch.randn(1, 8, 40, 40).half(),)), target)  # shared groups
    plain = nn.Linear(128, 96).eval(), (torch.randn(1, 128),)  # float32: no tensor cores
    yield npusim.compile(plain, target, quantize="int8")
    wide = nn.Linear(256, 96).bfloat16().eval()
    for rows in (8, 96):  # by tiles of rows, and by TMA
        given = (torch.randn(rows, 256).bfloat16(),)
        yield npusim.compile((wide, given), target, quantize="int8")
    heads = tuple(torch.randn(1, 2, 160, 64).bfloat16() for _ in range(3))
    yield npusim.compile((ManyRows().eval(), heads), target)
    yield norm_between()[2]
    yield npusim.compile(paged_step(), target)


def between_ranks() -> list[tuple[str, bytes]]:
    """Returns kernels that only programs of several ranks have, with their parameters."""
    sums = [
        {"elements": elements, "ranks": ranks, "dtype": 2, "residual": residual}
        for elements, ranks, residual in ((64, 2, 0), (1 << 17, 2, 1), (1 << 17, 4, 1))
    ]
    return [
        *(("all_reduce", KERNELS["all_reduce"].pack(p)) for p in sums),
        ("all_gather", KERNELS["all_gather"].pack({"bytes": 64, "ranks": 2})),
    ]


def paged_step(between: str = "", size: int = 64) -> Graph:
    """A step over pages up to the append: products, heads of so many columns, their turn.

    Args:
        between: "norm": queries have a norm before they turn; "reader": they are an output, too;
            "writer": products read a page of a state that is appended to before heads turn.
    """
    heads, rows, kind, draft = 2, 6, "bfloat16", Draft()
    x = draft.x(1, rows, 128, dtype=kind)
    places = [draft.c([0, 1, 2, 0, 3, 1], "int64", "positions"),
              draft.c([0, 0, 0, 1, 0, -1], "int64", "requests"),
              draft.c([[3, 1], [0, -1]], "int64", "tables")]  # fmt: skip
    types = {name: TensorType(kind, (5, 1, 4, size)) for name in ("keys", "values")}
    pools = [draft.state(name, type) for name, type in types.items()]
    draft.types |= dict(zip(pools, types.values(), strict=True))
    if between == "writer":
        read = TensorType(kind, (5, 1, rows, 128))
        state = draft.state("read", read)
        draft.types[state] = read
        new = draft.call("aten.view.default", x, size=(1, 1, rows, 128))
        x = draft.call("aten.slice.Tensor", state, dim=0, start=1, end=2, step=1)
        x = draft.call("aten.view.default", x, size=(1, rows, 128))
    made = []
    for name, count in (("q", heads), ("k", 1), ("v", 1)):
        w, bias = (draft.w(*shape, dtype=kind, name=f"{name}_{what}") for what, shape in
                   (("w", (count * size, 128)), ("bias", (count * size,))))  # fmt: skip
        y = draft.call("aten.linear.default", x, w, bias)
        y = draft.call("aten.view.default", y, size=(1, rows, count, size))
        if between == "norm" and name == "q":
            weight = draft.w(size, dtype=kind, name="norm")
            y = draft.call("aten.rms_norm.default", y, weight, normalized_shape=(size,), eps=1e-6)
        made.append(draft.call("aten.permute.default", y, dims=(0, 2, 1, 3)))
    if between == "writer":
        draft.update(state, draft.call("npu.paged_append", new, state, *places))
    angles = [draft.x(1, rows, size, dtype=kind, name=name) for name in ("cos", "sin")]
    turned, *left = draft.call("npu.paged_rope_append", *made, *angles, *pools, *places,
                               interleaved=False, rotary_dim=size)  # fmt: skip
    for pool, value in zip(pools, left, strict=True):
        draft.update(pool, value)
    return draft.graph(turned, *(made[:1] if between == "reader" else []))

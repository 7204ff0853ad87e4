"""What npusim claims of Core ATen: for every operator, backend and dtype, who computes it.

Owns the list of the operators (the installed PyTorch's `core` tag), one call of each to ask about
and to test, and the reasons for those that no backend computes. Nothing here runs on a device: a
claim is what extraction, `supports` and the lowering say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from npusim.abi.kernels import KERNELS
from npusim.codegen.generator import generator_of
from npusim.errors import ExportError, UnsupportedOpError
from npusim.frontends.decompositions import decompositions
from npusim.frontends.torch_export import extract_ir
from npusim.ir.graph import Graph
from npusim.ir.opdef import Case, find
from npusim.lowering.assemble import assemble
from npusim.lowering.supported import unsupported_nodes
from npusim.ops import schema
from npusim.selftest.single_op import attributes, graph_of, tensors_for
from npusim.targets import TargetConfig
from tests.conformance.torch_samples import Call, Sample

DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "bool")
BACKENDS = ("cpu", "cuda", "metal")

NATIVE, DECOMPOSED, FALLBACK, NONE = "native", "decomposed", "fallback", "none"

_RANDOM = "random: no two runs agree, so there is nothing to compile once and compare"
_SHAPE = "a Python number that a graph with static shapes already has"
_TRANSFORM = (
    "extraction writes it over pairs of real numbers, as products with matrices; PyTorch runs a "
    "size that is symbolic, or a prime in the thousands"
)

# Operators that are neither lowered nor decomposed, with who is left and why.
UNCOVERED: dict[str, tuple[str, str]] = {
    "aten._local_scalar_dense.default": (NONE, "a Python number known only once the model runs"),
    "aten.nonzero.default": (NONE, "the shape of its result depends on values"),
    "aten.rand.default": (FALLBACK, _RANDOM),
    "aten.randn.default": (FALLBACK, _RANDOM),
    "aten.randperm.default": (FALLBACK, _RANDOM),
    "aten.sym_numel.default": (NONE, _SHAPE),
    "aten.sym_size.int": (NONE, _SHAPE),
    "aten.sym_stride.int": (NONE, _SHAPE),
    "aten.sym_storage_offset.default": (NONE, _SHAPE),
    "aten.sym_is_contiguous.default": (NONE, _SHAPE),
    "aten.resize_.default": (NONE, "changes its argument in place, which a graph refuses"),
    "aten.atan2.out": (NONE, "writes into an argument; a graph has aten.atan2.default"),
    "aten._native_batch_norm_legit.default": (
        NONE,
        "changes its running statistics; a graph has _native_batch_norm_legit_functional, "
        "decomposed",
    ),
    "aten._fft_r2c.default": (NONE, _TRANSFORM),
    "aten._fft_c2r.default": (NONE, _TRANSFORM),
}

_PLANE = (2, 3, 6, 5)
_BOTH = {"output_mask": (True, True, True)}

# A call of each operator that extraction decomposes.
DECOMPOSED_CASES: dict[str, Case] = {
    "aten._adaptive_avg_pool2d_backward.default": Case(((2, 3, 4, 3), _PLANE)),
    "aten._cdist_forward.default": Case(((2, 4, 3), (2, 5, 3)), {"p": 2.0, "compute_mode": None}),
    "aten._embedding_bag.default": Case(
        ((10, 4), ((7,), ("int", 0, 10)), ((3,), ("int", 0, 1)), None), {"mode": 1}
    ),
    "aten._native_batch_norm_legit.no_stats": Case(
        (_PLANE, (3,), (3,)), {"training": True, "momentum": 0.1, "eps": 1e-3}
    ),
    "aten._pdist_forward.default": Case(((5, 3),), {"p": 2.0}),
    "aten.avg_pool2d_backward.default": Case(
        ((2, 3, 3, 2), _PLANE),
        {"kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0), "ceil_mode": False,
         "count_include_pad": True, "divisor_override": None},
    ),
    "aten.col2im.default": Case(
        ((2, 12, 9),),
        {"output_size": (4, 4), "kernel_size": (2, 2), "dilation": (1, 1), "padding": (0, 0),
         "stride": (1, 1)},
    ),
    "aten.convolution_backward.default": Case(
        ((2, 4, 6, 5), _PLANE, (4, 3, 3, 3)),
        {"bias_sizes": (4,), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1),
         "transposed": False, "output_padding": (0, 0), "groups": 1, **_BOTH},
    ),
    "aten.embedding_dense_backward.default": Case(
        ((4, 3), ((4,), ("int", 0, 6))),
        {"num_weights": 6, "padding_idx": -1, "scale_grad_by_freq": False},
    ),
    "aten.grid_sampler_2d.default": Case(
        (_PLANE, (2, 4, 4, 2)), {"interpolation_mode": 0, "padding_mode": 0, "align_corners": False}
    ),
    "aten.masked_scatter.default": Case(((3, 4), ((3, 4), "bool"), (12,))),
    "aten.max_pool2d_with_indices_backward.default": Case(
        ((2, 3, 3, 2), _PLANE, ((2, 3, 3, 2), ("int", 0, 30))),
        {"kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1),
         "ceil_mode": False},
    ),
    "aten.native_dropout.default": Case(((3, 4),), {"p": 0.5, "train": False}),
    "aten.native_group_norm.default": Case(
        ((2, 6, 5), (6,), (6,)), {"N": 2, "C": 6, "HxW": 5, "group": 3, "eps": 1e-3}
    ),
    "aten.native_group_norm_backward.default": Case(
        ((2, 6, 5), (2, 6, 5), (2, 3), ((2, 3), "positive"), (6,)),
        {"N": 2, "C": 6, "HxW": 5, "group": 3, **_BOTH},
    ),
    "aten.native_layer_norm.default": Case(
        ((3, 5), (5,), (5,)), {"normalized_shape": (5,), "eps": 1e-3}
    ),
    "aten.native_layer_norm_backward.default": Case(
        ((3, 5), (3, 5), (3, 1), ((3, 1), "positive"), (5,), (5,)),
        {"normalized_shape": (5,), **_BOTH},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """Who computes an operator in a dtype.

    Attributes:
        status: native, decomposed, fallback or none (not even PyTorch on the CPU).
        reason: what stands against a kernel; empty when nothing does.
    """

    status: str
    reason: str = ""


@dataclass(frozen=True)
class Example:
    """A call to test a claim on, and its graph."""

    graph: Graph
    sample: Sample


@cache
def core_operators() -> tuple[str, ...]:
    """Returns the operators that PyTorch tags as core, by name."""
    names = (n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names())
    every = (schema.resolve(f"aten.{name}") for name in names if "::" not in name)
    found = {str(overload) for overload in every if torch.Tag.core in overload.tags}
    return tuple(sorted(found))


def is_decomposed(name: str) -> bool:
    """Tells whether extraction takes an operator apart, and nothing lowers it whole."""
    definition = find(name)
    return (definition is None or definition.lower is None) and schema.resolve(name) in _table()


@cache
def _table() -> Any:
    return decompositions()


@cache
def claim(name: str, dtype: str, backend: str) -> Claim:
    """Returns who computes an operator in a dtype on a backend."""
    if name in UNCOVERED:
        return Claim(*UNCOVERED[name])
    made = example(name, dtype)
    if isinstance(made, Claim):
        return made
    target = TargetConfig.named(backend)
    try:
        refused = unsupported_nodes(made.graph, target)
    except UnsupportedOpError as error:  # no node, but what is handed out
        return Claim(FALLBACK, str(error).splitlines()[1].strip())
    if refused:
        node, why = refused[0]
        return Claim(FALLBACK, why if node.op == name else f"{node.op}: {why}")
    generator = generator_of(target)
    known = KERNELS if generator is None else generator.stems
    missing = sorted({k.name for k in assemble(made.graph, target).kernels} - set(known))
    if missing:
        return Claim(FALLBACK, f"no kernel {missing[0]}")
    return Claim(DECOMPOSED if is_decomposed(name) else NATIVE)


@cache
def example(name: str, dtype: str) -> Example | Claim:
    """Returns a call of an operator in a dtype, or the claim that there is none."""
    definition = find(name)
    if definition is not None and definition.lower is not None:
        case = definition.cases[0] if definition.cases else _UNSPECIFIED[name]
    else:
        case = DECOMPOSED_CASES[name]
    tensors = tensors_for(case, dtype, f"{name}{case.inputs}")
    call = _call(name, case, dtype, tensors)
    given = tuple(t for t in tensors if t is not None)
    try:
        expected = schema.result_leaves(call(*(t.clone() for t in given)))
    except (RuntimeError, ValueError, TypeError) as error:
        return Claim(NONE, f"PyTorch refuses it: {str(error).splitlines()[0]}")
    sample = Sample(f"{name} in {dtype}", call, given, tuple(expected))
    if not is_decomposed(name):
        assert definition is not None
        return Example(graph_of(definition, case, tensors, dtype), sample)
    try:
        return Example(extract_ir(call, given), sample)
    except (ExportError, UnsupportedOpError) as error:
        return Claim(FALLBACK, str(error).splitlines()[0])


def _call(name: str, case: Case, dtype: str, tensors: list[Tensor | None]) -> Call:
    """Returns a module that calls an operator; its tensors are the case's."""
    attrs = attributes(name, case, dtype)
    present = [t is not None for t in tensors]
    function: Callable[..., Any] = schema.call

    def of_tensors(*given: Tensor) -> Any:
        rest = iter(given)
        operands = [next(rest) if there else None for there in present]
        return function(schema.resolve(name), operands, attrs)

    return Call(of_tensors, tuple(t for t in tensors if t is not None), {})


# Operators whose result PyTorch leaves unspecified: lowered, with nothing to compare.
_UNSPECIFIED: dict[str, Case] = {
    "aten.empty.memory_format": Case((), {"size": (2, 3)}),
    "aten.empty_strided.default": Case((), {"size": (2, 3), "stride": (3, 1)}),
}


def all_claims(name: str, backend: str) -> dict[str, Claim]:
    """Returns the claims on an operator by dtype."""
    return {dtype: claim(name, dtype, backend) for dtype in DTYPES}

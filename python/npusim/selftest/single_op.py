"""Turns an OpDef's case into a graph of one node, and into tensors to run it on."""

from __future__ import annotations

import zlib
from typing import Any

import torch

from npusim.ir.graph import Attr, Graph, Node, Output, Value
from npusim.ir.opdef import Case, OpDef
from npusim.ops import schema
from npusim.ops.reference import infer_types, run_graph, type_of

_HALVES = (torch.float16, torch.bfloat16)

# What a "close enough" element is, per dtype: (relative, absolute). 16-bit floats are compared with
# a float32 reference rounded once, so one unit in the last place is the honest bound.
TOLERANCE = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (2e-6, 2e-6),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 1.6e-2),
}


def tensors_for(case: Case, dtype: str, seed: str) -> list[torch.Tensor | None]:
    """Returns a case's operands; the same for the same seed text."""
    generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))
    return [None if entry is None else _tensor(entry, dtype, generator) for entry in case.inputs]


def _tensor(entry: Any, dtype: str, generator: torch.Generator) -> torch.Tensor:
    shape, spec = entry if entry and isinstance(entry[0], tuple) else (entry, "randn")
    kind = getattr(torch, dtype)
    if isinstance(spec, tuple) and spec[0] != "int":  # (dtype, values …)
        return torch.tensor(spec[1:], dtype=getattr(torch, spec[0])).reshape(shape)
    if isinstance(spec, tuple):  # ("int", low, high)
        return torch.randint(spec[1], spec[2], shape, generator=generator)
    if spec == "bool" or kind is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not kind.is_floating_point:
        low = 1 if spec in ("positive", "above_one") else -7
        return torch.randint(low, 8, shape, generator=generator).to(kind)
    if spec == "randn":
        return torch.randn(shape, generator=generator).to(kind)
    uniform = torch.rand(shape, generator=generator)
    least, most = {
        "rand": (0.0, 1.0),
        "positive": (0.1, 3.0),
        "unit": (-0.95, 0.95),
        "unit_positive": (0.05, 0.95),
        "above_one": (1.05, 4.0),
    }[spec]
    return (least + (most - least) * uniform).to(kind)


def attributes(op: str, case: Case, dtype: str) -> dict[str, Attr]:
    """Returns the node's attributes: the case's over the schema's defaults."""
    attrs = schema.attributes(op, case.attrs)
    if not case.inputs:  # a tensor made from nothing has the dtype it is asked for
        attrs["dtype"] = dtype
    return attrs


def graph_of(op: OpDef, case: Case, tensors: list[torch.Tensor | None], dtype: str) -> Graph:
    """Returns a graph whose only node is the case."""
    values = [None if t is None else Value(f"x{i}", type_of(t)) for i, t in enumerate(tensors)]
    attrs = attributes(op.name, case, dtype)
    types = infer_types(op.name, [None if v is None else v.type for v in values], attrs)
    outputs = tuple(Value(f"y{i}", t) for i, t in enumerate(types))
    node = Node(
        "node", op.name, tuple(None if v is None else v.name for v in values), outputs, attrs
    )
    return Graph(
        name="case",
        inputs=tuple(v for v in values if v is not None),
        outputs=tuple(Output(v.name, v.name) for v in outputs),
        weights=(),
        constants=(),
        nodes=(node,),
    )


def reference(graph: Graph, tensors: list[torch.Tensor | None]) -> list[torch.Tensor]:
    """Returns what the graph should give: 16-bit floats computed in float32 and rounded once.

    Bytes are made of operands as they are.
    """
    given = [t for t in tensors if t is not None]
    types = [graph.types[o.value] for o in graph.outputs]
    as_given = "dtype" in graph.nodes[0].attrs or any(t.dtype == "uint8" for t in types)
    if as_given or not any(t.dtype in _HALVES for t in given):
        return run_graph(graph, given)
    wide = [t.float() if t.dtype in _HALVES else t for t in given]
    node = graph.nodes[0]
    inputs = tuple(Value(v.name, type_of(t)) for v, t in zip(graph.inputs, wide, strict=True))
    by_name = {v.name: v.type for v in inputs}
    operands = [None if i is None else by_name[i] for i in node.inputs]
    outputs = tuple(
        Value(v.name, t)
        for v, t in zip(node.outputs, infer_types(node.op, operands, node.attrs), strict=True)
    )
    widened = Graph(
        "wide",
        inputs,
        graph.outputs,
        (),
        (),
        (Node(node.name, node.op, node.inputs, outputs, node.attrs),),
    )
    results = run_graph(widened, wide)
    return [r.to(getattr(torch, t.dtype)) for r, t in zip(results, types, strict=True)]


def assert_close(got: torch.Tensor, want: torch.Tensor, scale: float, what: str) -> None:
    """Compares dtype, shape and values; integers and bools exactly."""
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    relative, absolute = TOLERANCE.get(want.dtype, (0.0, 0.0))
    torch.testing.assert_close(
        got,
        want,
        rtol=relative * scale,
        atol=absolute * scale,
        equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )

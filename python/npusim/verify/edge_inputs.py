"""Inputs at the edges of what a model can be given: zeros, NaN, empty and full masks, extremes.

Owns which ones a graph is tried with, so that PyTorch and npusim have to agree on each: where sums
overflow, or NaN becomes an integer, the result is nobody's promise, and such graphs are spared it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from npusim.analysis.compose import scalar_program
from npusim.analysis.shapes import VIEWS
from npusim.ir.graph import Graph, Node
from npusim.ir.types import is_float
from npusim.ops.edge_values import float_edges, numbers_of
from npusim.verify.comparison import Comparison
from npusim.verify.report import EdgeResult, Progress

_HIDES = -1e4  # what a mask of floats holds, or less, where it hides
_OVERFLOWS = 2.0**100  # times a small number: PyTorch's own formulas differ in where they do
_WIDE = (torch.float32, torch.float64)  # fused chains of narrower floats overflow later


def edge_inputs(graph: Graph, inputs: Sequence[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yields (name, tensors like the inputs) for each kind of edge that the inputs have.

    Args:
        graph: what is computed, before or after passes.
        inputs: ordinary ones, which say what is a mask: a bool, an integer of 0 and 1, a float of
            0 and of what hides.
    """
    floats = [_is_float(t) and not _is_mask(t) for t in inputs]
    if any(floats):
        yield "zeros", _each(inputs, floats, torch.zeros_like)
        if not any(_makes_integers(node, graph) for node in graph.nodes):
            yield "NaN", _each(inputs, floats, lambda t: torch.full_like(t, torch.nan))
        if _is_pointwise(graph) and all(t.dtype in _WIDE for t in inputs if _is_float(t)):
            numbers = numbers_of(graph)
            gelu = any(node.op == "aten.gelu.default" for node in graph.nodes)  # NaN of infinity
            yield "extremes", _each(inputs, floats, lambda t: _edges(t, numbers, gelu))
    masks = [_is_mask(t) for t in inputs]
    if any(masks):
        yield "empty masks", _each(inputs, masks, _empty)
        yield "full masks", _each(inputs, masks, _full)


def on_edges(
    graph: Graph | None,
    inputs: Sequence[Tensor],
    reference: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    outputs: Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Comparison, ...]],
    progress: Progress,
) -> tuple[EdgeResult, ...]:
    """Compares on each kind of edge; what PyTorch refuses is not tried.

    Args:
        graph: as `edge_inputs` takes it; None tries nothing.
        reference: returns PyTorch's results.
        outputs: compares a run on inputs with such results.
    """
    results: list[EdgeResult] = []
    tried = () if graph is None else edge_inputs(graph, inputs)
    for done, (name, changed) in enumerate(tried):
        progress(f"edge inputs, {name}", done, 0)
        try:
            expected = reference(changed)
        except Exception:  # whatever the model raises on inputs that are none of its own
            continue
        results.append(EdgeResult(name, outputs(changed, expected), tuple(changed)))
    return tuple(results)


def _each(
    inputs: Sequence[Tensor], chosen: Sequence[bool], change: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    pairs = zip(inputs, chosen, strict=True)
    return [change(t) if yes else t for t, yes in pairs]


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point()


def _is_mask(tensor: Tensor) -> bool:
    if tensor.dtype == torch.bool:
        return True
    if not tensor.numel() or tensor.is_complex():
        return False
    if tensor.is_floating_point():
        hides = tensor <= _HIDES
        return bool(hides.any()) and bool((hides | (tensor == 0)).all())
    return tensor.dim() > 1 and bool(((tensor == 0) | (tensor == 1)).all())


def _empty(mask: Tensor) -> Tensor:
    """Returns a mask that shows nothing."""
    return torch.full_like(mask, mask.min()) if _is_float(mask) else torch.zeros_like(mask)


def _full(mask: Tensor) -> Tensor:
    """Returns a mask that shows everything."""
    return torch.zeros_like(mask) if _is_float(mask) else torch.ones_like(mask)


def _edges(tensor: Tensor, numbers: Sequence[float], no_infinities: bool) -> Tensor:
    """Returns edge values, those of PyTorch's dtype around a graph's numbers, over and over."""
    values = torch.from_numpy(float_edges(str(tensor.dtype).removeprefix("torch."), numbers))
    values = values[(values.abs() < _OVERFLOWS) | ~values.isfinite()]
    if no_infinities:
        values = values[~values.isinf()]
    count = -(-tensor.numel() // values.numel())
    return values.repeat(count)[: tensor.numel()].reshape(tensor.shape)


def _makes_integers(node: Node, graph: Graph) -> bool:
    """Tells whether a node makes integers of floats: of NaN that is whatever a machine says."""
    made = any(not is_float(v.type.dtype) and v.type.dtype != "bool" for v in node.outputs)
    return made and any(i is not None and is_float(graph.types[i].dtype) for i in node.inputs)


def _is_pointwise(graph: Graph) -> bool:
    """Tells whether nothing in a graph sums, so that each element is what its operands say."""
    for node in graph.nodes:
        if node.op not in VIEWS and (node.inputs and scalar_program(node, graph) is None):
            return False
    return True

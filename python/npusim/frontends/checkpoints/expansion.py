"""Weights of a graph, replaced by what computes them from a checkpoint's own tensors.

The computation is PyTorch code (a module without weights), traced once for each set of types that
there is, and joined to the graph in front of everything. Where codes, scales and zero points are
what one of npusim's own layouts holds, they are kept beside the weight: products then multiply the
codes themselves (`passes/quantize_weights.py`), and the weight is computed for other users alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import nn

from npusim.errors import ExportError
from npusim.frontends.checkpoints.packing import Packing, fits, packed_nodes
from npusim.frontends.torch_export import extract_ir
from npusim.ir.graph import Constant, Graph, Node, Source, Value, Weight
from npusim.ir.rewrite import Names
from npusim.ir.types import TensorType

# What makes the graphs of a model read the tensors that its checkpoint holds.
Rewritten: TypeAlias = "Callable[[Mapping[str, Graph]], dict[str, Graph]]"


@dataclass(frozen=True)
class Stored:
    """What a checkpoint holds for a weight.

    Attributes:
        tensors: key in the checkpoint -> its type, in the order of the arguments of `expand`.
        expand: makes the weight of them, by PyTorch. Compared by value: a frozen dataclass.
        packing: where their arithmetic is that of a layout of npusim's; None: it is of none.
    """

    tensors: Mapping[str, TensorType]
    expand: Callable[..., torch.Tensor]
    packing: Packing | None = None


class _Expansion(nn.Module):
    """The functions as a module that can be traced: the weight, and the parts of a packed one."""

    def __init__(
        self, expand: Callable[..., torch.Tensor], packing: Packing | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self._expand, self._packing, self._dtype = expand, packing, dtype

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight = self._expand(*tensors).to(self._dtype)
        return (weight, *(self._packing.parts(*tensors) if self._packing else ()))


def expanded(graph: Graph, stored: Mapping[str, Stored]) -> Graph:
    """Returns a graph that reads a checkpoint's own tensors.

    Args:
        stored: by the key of the weight, one of its aliases included.

    Raises:
        ShapeError, ExportError: the tensors do not make the weight.
    """
    names = Names(graph)
    weights: list[Weight] = []
    constants, nodes = list(graph.constants), []
    for weight in graph.weights:
        keys = (weight.key, *weight.aliases)
        found = next((stored[key] for key in keys if key in stored), None)
        if found is None:
            weights.append(weight)
            continue
        packing = found.packing if fits(found.packing, weight.type) else None
        made = _traced(found.expand, packing, tuple(found.tensors.values()), weight.type)
        renamed = {}
        for value, (key, type) in zip(made.inputs, found.tensors.items(), strict=True):
            weights.append(Weight(names.fresh(f"{weight.name}_{value.name}"), key, type))
            renamed[value.name] = weights[-1].name
        if made.outputs[0].value in renamed:  # floats as they are, which loading converts
            weights[-1] = replace(weights[-1], name=weight.name, type=weight.type)
            continue
        module = weight.key.rpartition(".")[0]
        constants += _joined_constants(made, weight.name, names, renamed)
        floats = names.fresh(f"{weight.name}_floats") if packing else weight.name
        nodes += _joined_nodes(made, weight.name, floats, names, renamed, module)
        if packing is not None:
            parts = [renamed[output.value] for output in made.outputs[1:]]
            nodes += packed_nodes(packing, weight, floats, parts, names, Source(module))
    return replace(
        graph, weights=tuple(weights), constants=tuple(constants), nodes=(*nodes, *graph.nodes)
    )


@lru_cache(maxsize=256)
def _traced(
    expand: Callable[..., torch.Tensor],
    packing: Packing | None,
    given: tuple[TensorType, ...],
    wanted: TensorType,
) -> Graph:
    arguments = tuple(
        torch.empty(type.shape, dtype=getattr(torch, type.dtype), device="meta") for type in given
    )
    module = _Expansion(expand, packing, getattr(torch, wanted.dtype)).eval()
    made = extract_ir(module, arguments, model_name=type(expand).__name__)
    output = made.outputs[0]
    if made.types[output.value].shape != wanted.shape:
        raise ExportError(
            f"A checkpoint's {', '.join(map(str, given))} are a weight of "
            f"{list(made.types[output.value].shape)}, not of {list(wanted.shape)}."
        )
    return made


def _joined_constants(
    made: Graph, name: str, names: Names, renamed: dict[str, str]
) -> list[Constant]:
    joined = []
    for constant in made.constants:
        renamed[constant.name] = names.fresh(f"{name}_{constant.name}")
        joined.append(replace(constant, name=renamed[constant.name]))
    return joined


def _joined_nodes(
    made: Graph, name: str, floats: str, names: Names, renamed: dict[str, str], module: str
) -> list[Node]:
    """Returns the nodes under fresh names; the weight is called `floats`."""
    result = made.outputs[0].value
    joined = []
    for node in made.nodes:
        for value in node.outputs:
            renamed[value.name] = (
                floats if value.name == result else names.fresh(f"{name}_{value.name}")
            )
        joined.append(
            replace(
                node,
                name=names.fresh(f"{name}_{node.name}"),
                inputs=tuple(None if i is None else renamed[i] for i in node.inputs),
                outputs=tuple(Value(renamed[v.name], v.type) for v in node.outputs),
                source=Source(module),
            )
        )
    return joined

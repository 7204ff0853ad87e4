"""Weights of a graph, replaced by what computes them from a checkpoint's own tensors.

The computation is PyTorch code (a module without weights), traced once for each set of types that
there is, and joined to the graph in front of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import nn

from npusim.errors import ExportError
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
    """

    tensors: Mapping[str, TensorType]
    expand: Callable[..., torch.Tensor]


class _Expansion(nn.Module):
    """The function as a module that can be traced."""

    def __init__(self, expand: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self._expand, self._dtype = expand, dtype

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self._expand(*tensors).to(self._dtype)


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
        made = _traced(found.expand, tuple(found.tensors.values()), weight.type)
        renamed = {}
        for value, (key, type) in zip(made.inputs, found.tensors.items(), strict=True):
            weights.append(Weight(names.fresh(f"{weight.name}_{value.name}"), key, type))
            renamed[value.name] = weights[-1].name
        if made.outputs[0].value in renamed:  # floats as they are, which loading converts
            weights[-1] = replace(weights[-1], name=weight.name, type=weight.type)
            continue
        constants += _joined_constants(made, weight.name, names, renamed)
        nodes += _joined_nodes(made, weight.name, names, renamed, weight.key.rpartition(".")[0])
    return replace(
        graph, weights=tuple(weights), constants=tuple(constants), nodes=(*nodes, *graph.nodes)
    )


@lru_cache(maxsize=256)
def _traced(
    expand: Callable[..., torch.Tensor], given: tuple[TensorType, ...], wanted: TensorType
) -> Graph:
    arguments = tuple(
        torch.empty(type.shape, dtype=getattr(torch, type.dtype), device="meta") for type in given
    )
    module = _Expansion(expand, getattr(torch, wanted.dtype)).eval()
    made = extract_ir(module, arguments, model_name=type(expand).__name__)
    (output,) = made.outputs
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
    made: Graph, name: str, names: Names, renamed: dict[str, str], module: str
) -> list[Node]:
    """Returns the nodes under fresh names; the last result has the name of the weight."""
    result = made.outputs[0].value
    joined = []
    for node in made.nodes:
        for value in node.outputs:
            renamed[value.name] = (
                name if value.name == result else names.fresh(f"{name}_{value.name}")
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

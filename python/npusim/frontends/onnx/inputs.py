"""A model's inputs: their shapes, given or declared, and values that are fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto

from npusim.errors import ExportError, ShapeError
from npusim.frontends.onnx.builder import Builder
from npusim.frontends.onnx.kinds import Array
from npusim.frontends.onnx.scope import Scope
from npusim.ir.symbolic import is_symbolic


def add_inputs(
    builder: Builder,
    name: str,
    graph: GraphProto,
    scope: Scope,
    shapes: Mapping[str, Any],
    values: Mapping[str, Array],
) -> dict[str, int]:
    """Enters a model's inputs in the scope and the graph; returns their element types by name.

    Raises:
        ExportError: a shape is open; all of them are listed.
        ShapeError: a shape or value is given that does not fit, or for no input.
    """
    kinds: dict[str, int] = {}
    wanted = [i for i in graph.input if i.name not in scope.values]
    unknown = sorted({*shapes, *values} - {i.name for i in graph.input})
    if unknown:
        known = ", ".join(i.name for i in wanted) or "none"
        raise ShapeError(f"The model has no input {', '.join(unknown)}; it has: {known}.")
    problems, examples = [], []
    for info in graph.input:
        if info.name in values:
            array = np.asarray(values[info.name])
            needs = frozenset((info.name,))
            scope.values[info.name] = builder.known(array, needs=needs)
        elif info.name not in scope.values:
            if not info.type.HasField("tensor_type"):
                try:
                    scope.values[info.name] = _listed(builder, info, shapes, kinds)
                except KeyError:
                    what = info.type.WhichOneof("value") or "of no type"
                    problems.append(f"{info.name} is no tensor ({what.replace('_type', '')})")
                continue
            shape = _shape(info, shapes.get(info.name))
            if shape is None:
                problems.append(f"{info.name} has the shape {_written(info)}")
                examples.append(info)
                continue
            kind = info.type.tensor_type.elem_type
            scope.values[info.name] = builder.add_input(info.name, kind, shape)
            kinds[info.name] = kind
    if problems:
        raise ExportError(
            f"{name} leaves open what a graph must know: {'; '.join(problems)}.",
            hint=_advice(examples),
        )
    return kinds


def _listed(builder: Builder, info: Any, shapes: Mapping[str, Any], kinds: dict[str, int]) -> Any:
    """Adds an input that is a sequence or an optional, and returns it.

    Raises:
        KeyError: nothing is known of its elements.
    """
    given = shapes[info.name]
    type = info.type.optional_type.elem_type if info.type.HasField("optional_type") else info.type
    if given is None:
        return None
    if type.HasField("tensor_type"):
        kinds[info.name] = type.tensor_type.elem_type
        return builder.add_input(info.name, kinds[info.name], tuple(given))
    if not type.HasField("sequence_type"):
        raise KeyError(info.name)
    kind = type.sequence_type.elem_type.tensor_type.elem_type
    names = [f"{info.name}.{i}" for i in range(len(given))]
    kinds.update(dict.fromkeys(names, kind))
    return [builder.add_input(n, kind, tuple(s)) for n, s in zip(names, given, strict=True)]


def _shape(info: Any, given: Sequence[int] | None) -> tuple[int, ...] | None:
    """Returns an input's shape, or None when it is open."""
    declared = info.type.tensor_type
    if given is None:
        if not declared.HasField("shape"):
            return None
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in declared.shape.dim]
        return None if any(d < 0 for d in dims) else tuple(dims)
    shape = tuple(d if is_symbolic(d) else int(d) for d in given)
    if declared.HasField("shape"):
        fixed = [d.dim_value if d.HasField("dim_value") else None for d in declared.shape.dim]
        fits = len(fixed) == len(shape) and all(
            f is None or f == d for f, d in zip(fixed, shape, strict=True)
        )
        if not fits:
            raise ShapeError(
                f"{info.name} has the shape {_written(info)}; {list(shape)} does not fit."
            )
    return shape


def _advice(infos: Sequence[Any]) -> str:
    """Returns how to give the shapes of these inputs, in their own names."""
    if not infos:
        return ""
    shaped = [i for i in infos if i.type.tensor_type.HasField("shape")]
    open_dims = [
        d.dim_param
        for i in shaped
        for d in i.type.tensor_type.shape.dim
        if not d.HasField("dim_value") and d.dim_param
    ]
    name, dims = infos[0].name, ["1", "3", "224", "224"]
    if shaped:
        name = shaped[0].name
        dims = [
            str(d.dim_value) if d.HasField("dim_value") else "1"
            for d in shaped[0].type.tensor_type.shape.dim
        ]
    tail = "," if len(dims) == 1 else ""
    text = (
        f'Give sizes that fit the model, shapes={{"{name}": ({", ".join(dims)}{tail})}} '
        f"(`--shape {name}={'x'.join(dims)}`)"
    )
    if not open_dims:
        return f"{text}."
    return (
        f"{text}, or bounds of the sizes that calls choose: "
        f'dynamic_shapes={{"{open_dims[0]}": (1, 8)}} (`--dynamic {open_dims[0]}=1:8`).'
    )


def _written(info: Any) -> str:
    if not info.type.tensor_type.HasField("shape"):
        return "of no known rank"
    dims = info.type.tensor_type.shape.dim
    named = (str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims)
    return f"[{', '.join(named)}]"

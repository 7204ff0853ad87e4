"""Dimensions that an ONNX model leaves open, as symbolic sizes: their names and bounds.

`dim_param` names a dimension; equal names are equal sizes. Some exporters write expressions over
other names there (`past_sequence_length + 1`), which become expressions of these symbols.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from onnx import GraphProto

from npusim.errors import ExportError, ShapeError, SymbolicSizeError
from npusim.frontends.onnx.kinds import Array
from npusim.frontends.onnx.scope import Scope
from npusim.ir.size_text import parse_size
from npusim.ir.symbolic import symbol

Bounds = Mapping[str, "int | tuple[int, int]"]


def open_shapes(
    name: str,
    graph: GraphProto,
    scope: Scope,
    shapes: Mapping[str, Any],
    values: Mapping[str, Array],
    bounds: Bounds | None,
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the inputs that the caller did not fix, with symbols where open.

    Raises:
        ExportError: an open dimension has no bounds; all of them are listed.
        ShapeError: bounds of no open dimension, or impossible ones.
    """
    if not bounds:
        return {}
    symbols = {_identifier(key): _symbol(key, pair) for key, pair in bounds.items()}
    used: set[str] = set()
    missing: list[str] = []
    found: dict[str, tuple[int, ...]] = {}
    for info in graph.input:
        if info.name in scope.values or info.name in shapes or info.name in values:
            continue
        if not info.type.tensor_type.HasField("shape"):
            continue
        shape = []
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                shape.append(int(dim.dim_value))
                continue
            text = dim.dim_param or f"{info.name}_{axis}"
            size = _size(text, symbols, used)
            if size is None:
                missing.append(text)
            shape.append(0 if size is None else size)
        found[info.name] = tuple(shape)
    if missing:
        names = list(dict.fromkeys(missing))
        raise ExportError(
            f"{name} leaves open {', '.join(names)}, for which dynamic_shapes has no bounds.",
            hint=f'Give the greatest value, dynamic_shapes={{"{names[0]}": 8}} '
            f"(`--dynamic {names[0]}=8`), a least and a greatest one (1, 8), or twice the same "
            "number for a fixed size.",
        )
    unknown = sorted(set(symbols) - used)
    if unknown:
        names = sorted(set(_names(graph)))
        raise ShapeError(
            f"The model has no open dimension {', '.join(unknown)}; it has: "
            f"{', '.join(names) or 'none'}."
        )
    return found


def _names(graph: GraphProto) -> Iterator[str]:
    for info in graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") or dim.dim_value < 0:
                yield dim.dim_param or f"{info.name}_{axis}"


def _identifier(text: str) -> str:
    """Returns a dimension's name with letters, digits and "_" alone."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"


def _symbol(key: str, pair: Any) -> int:
    low, high = pair if isinstance(pair, (tuple, list)) else (min(1, pair), pair)
    try:
        return symbol(_identifier(key), int(low), int(high))
    except SymbolicSizeError as error:
        raise ShapeError(str(error)) from None


def _size(text: str, symbols: Mapping[str, int], used: set[str]) -> int | None:
    """Returns the size that a dimension's text stands for; None when it has no bounds."""
    if _identifier(text) in symbols:
        used.add(_identifier(text))
        return symbols[_identifier(text)]
    try:
        size = parse_size(text, symbols)
    except SymbolicSizeError:
        return None
    used.update(name for name in symbols if re.search(rf"\b{name}\b", text))
    return size

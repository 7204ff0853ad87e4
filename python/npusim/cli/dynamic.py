"""`--dynamic INPUT:AXIS=SIZE:MAX`: which sizes of the inputs calls may choose."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from npusim.cli.factory import Made
from npusim.errors import ExportError
from npusim.ir.symbolic import MAX_SIZE as _MAX_SIZE

_ITEM = re.compile(
    r"(?P<input>\w+):(?P<axis>\d+)="
    r"(?:(?P<factor>[1-9]\d*)\*)?(?P<name>[A-Za-z_]\w*)(?:\+(?P<rest>\d+))?"
    r"(?::(?P<low>\d+))?:(?P<high>\d+)"
)


def dynamic_shapes(items: Sequence[str], made: Made) -> dict[str, Any]:
    """Returns `--dynamic` items as torch.export's `dynamic_shapes`, by arguments' names.

    Raises:
        ExportError: an item is malformed, names no argument, or gives a size other bounds than an
            item before it.
    """
    from torch.export import Dim

    try:
        bound = inspect.signature(made.model.forward).bind(*made.args, **made.kwargs)
    except TypeError as error:
        raise ExportError(
            f"The example arguments do not fit the model's forward: {error}."
        ) from None
    arguments = bound.arguments
    names = list(arguments)
    bounds: dict[str, tuple[int, int]] = {}
    dims: dict[str, Any] = {}
    shapes: dict[str, Any] = dict.fromkeys(names)
    for item in items:
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ExportError(
                f"--dynamic {item} is not INPUT:AXIS=SIZE:MAX.",
                hint="SIZE is a name, a multiple or a sum: ids:1=seq:128, x:1=4*seq+1:128.",
            )
        if match["input"] not in shapes:
            known = ", ".join(names)
            raise ExportError(f"--dynamic {item}: the model's arguments are {known}.")
        name, pair = match["name"], (int(match["low"] or 1), int(match["high"]))
        if bounds.setdefault(name, pair) != pair:
            raise ExportError(
                f"--dynamic {item}: {name} ranges from {pair[0]} to {pair[1]} here, and from "
                f"{bounds[name][0]} to {bounds[name][1]} before."
            )
        if not pair[0] < pair[1] <= _MAX_SIZE:
            raise ExportError(
                f"--dynamic {item}: {name} ranges from {pair[0]} to {pair[1]}.",
                hint=f"MAX has to be greater than MIN (1 unless given), and at most {_MAX_SIZE}.",
            )
        _check_axis(item, arguments[match["input"]], int(match["axis"]))
        dim = dims.setdefault(name, Dim(name, min=pair[0], max=pair[1]))
        size = int(match["factor"] or 1) * dim if match["factor"] else dim
        size = size + int(match["rest"]) if match["rest"] else size
        shapes[match["input"]] = {**(shapes[match["input"]] or {}), int(match["axis"]): size}
    return shapes


def _check_axis(item: str, argument: Any, axis: int) -> None:
    shape = getattr(argument, "shape", None)
    if shape is None:
        kind = type(argument).__name__
        raise ExportError(f"--dynamic {item}: this argument is a {kind}, not a tensor.")
    if axis >= len(shape):
        raise ExportError(
            f"--dynamic {item}: the example argument has shape {list(shape)}, and no axis {axis}."
        )

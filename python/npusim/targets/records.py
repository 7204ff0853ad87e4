"""Data files as dataclasses: their fields are the schema, their defaults the only ones.

Read are objects, lists, integers, floats, booleans and text. An unknown or missing key, or a value
of another kind, is refused with the file and the place in it. Numbers are finite and not negative;
a rate, whose name ends with `_per_us` or `_per_second`, is above 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from npusim.errors import TargetConstraintError

T = TypeVar("T")

_RATES = ("_per_us", "_per_second")


def read_record(cls: type[T], data: object, file: str, key: str = "") -> T:
    """Returns an object of a data file as a dataclass.

    Args:
        cls: a dataclass, whose fields are numbers, booleans, text, tuples of one of these or of
            dataclasses, dataclasses, or one of them or None.
        data: as `json` reads it.
        file: named in errors.
        key: where in the file the object stands, such as "matmul.tiles[0]"; empty: at the top.

    Raises:
        TargetConstraintError: a key is missing or unknown, or a value is not of its kind.
    """
    if not isinstance(data, dict):
        raise _wrong(file, key, "an object", data)
    kinds = _kinds(cast(Hashable, cls))
    for name in data:
        if name not in kinds:
            raise TargetConstraintError(
                f"{file}: unknown key '{_below(key, name)}'.",
                hint=f"Known there: {', '.join(kinds)}.",
            )
    for name, (_, needed) in kinds.items():
        if needed and name not in data:
            raise TargetConstraintError(
                f"{file}: key '{_below(key, name)}' is missing.",
                hint=f"Needed there: {', '.join(n for n, (_, need) in kinds.items() if need)}.",
            )
    given = {name: _value(kinds[name][0], v, file, _below(key, name)) for name, v in data.items()}
    return cls(**given)


@cache
def _kinds(cls: Any) -> dict[str, tuple[Any, bool]]:
    """Returns the type of every field, and whether it has to be given."""
    types = get_type_hints(cls)
    rows = fields(cls)
    return {f.name: (types[f.name], f.default is f.default_factory is MISSING) for f in rows}


def _value(kind: Any, value: object, file: str, key: str) -> Any:
    if get_origin(kind) is UnionType:  # X | None
        kind = next(k for k in get_args(kind) if k is not type(None))
        return None if value is None else _value(kind, value, file, key)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _wrong(file, key, "a list", value)
        item = get_args(kind)[0]
        return tuple(_value(item, v, file, f"{key}[{i}]") for i, v in enumerate(value))
    if isinstance(kind, type) and is_dataclass(kind):
        return read_record(kind, value, file, key)
    if kind in (int, float):
        return _number(kind, value, file, key)
    if type(value) is not kind:
        raise _wrong(file, key, {bool: "true or false", str: "text"}[kind], value)
    return value


def _number(kind: type, value: object, file: str, key: str) -> int | float:
    positive = key.endswith(_RATES)
    wanted = ("a number" if kind is float else "an integer") + (
        " above 0" if positive else " that is not negative"
    )
    number = type(value) is int or (kind is float and type(value) is float)
    if not number or not math.isfinite(value) or value < 0 or (positive and value == 0):  # type: ignore[arg-type,operator]
        raise _wrong(file, key, wanted, value)
    return kind(value)  # type: ignore[no-any-return]


def _wrong(file: str, key: str, wanted: str, value: object) -> TargetConstraintError:
    shown = json.dumps(value)
    shown = shown if len(shown) <= 40 else f"{shown[:40]}…"
    place = f"'{key}' is" if key else "it holds"
    return TargetConstraintError(f"{file}: {place} {shown}, not {wanted}.")


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name

"""Data files as dataclasses: their fields are the schema, their defaults the only ones.

Read are tables, mappings by name, lists, integers, floats, booleans and text. An unknown or missing
key, or a value of another kind, is refused with the file, the line and the place in it. Numbers
are finite (but where a field says so) and not negative; which are above 0, and how great they may
be, follows from the unit in which their names end. What numbers mean together a dataclass says in
`__post_init__`, by raising a `ValueError` such as `Contradiction`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from npusim.errors import TargetConstraintError
from npusim.targets.key_lines import Path

T = TypeVar("T")
Where = Callable[[Path], str]  # the file and line of a key

# In the metadata of a field of floats: "inf" is one of its values; of integers: -1 is, for none.
INFINITE: Mapping[str, bool] = {"infinite": True}
FROM_MINUS_1: Mapping[str, bool] = {"from_minus_1": True}

_MOST = 2.0**53  # of any number: what a float counts by one
# The most that anybody can mean by a number with such a unit; by the rates among them the least is
# as far below 1.
_UNITS: Mapping[str, float] = {
    "_per_us": 1e18,
    "_per_second": 1e24,
    "_ops_per_s": 1e12,
    "gb_per_s": 1e9,
    "bytes_per_cycle": 2**30,
    "_mhz": 1e6,
    "kib": 2**40,
    "mib": 2**30,
}
_SHARES = ("_eff", "efficiency")  # at most 1, at least:
_LEAST_SHARE = 1e-6


class Contradiction(ValueError):
    """Numbers of a dataclass that do not go together.

    Attributes:
        path: of the one to change, below the dataclass.
    """

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class _Kind:
    type: Any
    needed: bool
    infinite: bool
    from_minus_1: bool


def read_record(cls: type[T], data: object, file: str | Where, path: Path = ()) -> T:
    """Returns a table of a data file as a dataclass.

    Args:
        cls: a dataclass, whose fields are numbers, booleans, text, one of some texts (`Literal`),
            tuples of one of these or of dataclasses, dataclasses, mappings from text to any of
            these, or one of them or None.
        data: as `tomllib` or `json` reads it.
        file: named in errors, or what says which line of which file a key stands on.
        path: where in the file the table stands; empty: at the top.

    Raises:
        TargetConstraintError: a key is missing or unknown, a value is not of its kind, or numbers
            contradict each other.
    """
    where: Where = file if callable(file) else lambda _: file
    if not isinstance(data, dict):
        raise wrong_value(where, path, "a table", data)
    kinds = _kinds(cast(Hashable, cls))
    for name in data:
        if name not in kinds:
            raise unknown_key(where, (*path, name), tuple(kinds))
    for name, kind in kinds.items():
        if kind.needed and name not in data:
            raise TargetConstraintError(
                f"{where(path)}: key '{key_text((*path, name))}' is missing.",
                hint=f"Needed there: {', '.join(n for n, k in kinds.items() if k.needed)}.",
            )
    given = {n: _value(kinds[n].type, v, where, (*path, n), kinds[n]) for n, v in data.items()}
    try:
        return cls(**given)
    except ValueError as error:
        inner = (*path, *getattr(error, "path", ()))
        said = f"'{key_text(inner)}': {error}" if inner else str(error)
        raise TargetConstraintError(f"{where(inner)}: {said.removesuffix('.')}.") from error


def to_data(record: object) -> Any:
    """Returns a dataclass as tables and lists, from which `read_record` makes it again.

    What is None is left out.
    """
    if is_dataclass(record):
        given = {f.name: getattr(record, f.name) for f in fields(record)}
        return {k: to_data(v) for k, v in given.items() if v is not None}
    if isinstance(record, Mapping):
        return {k: to_data(v) for k, v in record.items()}
    return [to_data(v) for v in record] if isinstance(record, tuple) else record


def key_text(path: Path) -> str:
    """Returns a path as a file says it: `mxu.rows`, `sram[0].kib`."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            key = key if re.fullmatch(r"[\w*-]+", key) else json.dumps(key)
            text += f".{key}" if text else key
    return text


def unknown_key(where: Where, path: Path, known: tuple[str, ...]) -> TargetConstraintError:
    """Returns the error about a key that nobody reads."""
    return TargetConstraintError(
        f"{where(path)}: unknown key '{key_text(path)}'.", hint=f"Known there: {', '.join(known)}."
    )


def wrong_value(where: Where, path: Path, wanted: str, value: object) -> TargetConstraintError:
    """Returns the error about a value that is not what its key wants."""
    shown = json.dumps(value, default=str)
    shown = shown if len(shown) <= 40 else f"{shown[:40]}…"
    place = f"'{key_text(path)}' is" if path else "it holds"
    return TargetConstraintError(f"{where(path)}: {place} {shown}, not {wanted}.")


@cache
def _kinds(cls: Any) -> dict[str, _Kind]:
    types = get_type_hints(cls)
    rows: tuple[Field[Any], ...] = fields(cls)
    return {
        f.name: _Kind(
            types[f.name],
            f.default is f.default_factory is MISSING,
            bool(f.metadata.get("infinite")),
            bool(f.metadata.get("from_minus_1")),
        )
        for f in rows
        if f.init
    }


def _value(kind: Any, value: object, where: Where, path: Path, field: _Kind) -> Any:
    if get_origin(kind) is UnionType:  # X | None
        kind = next(k for k in get_args(kind) if k is not type(None))
        return None if value is None else _value(kind, value, where, path, field)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise wrong_value(where, path, "a list", value)
        item = get_args(kind)[0]
        return tuple(_value(item, v, where, (*path, i), field) for i, v in enumerate(value))
    if isinstance(kind, type) and is_dataclass(kind):
        return read_record(kind, value, where, path)
    if get_origin(kind) is Mapping:
        if not isinstance(value, dict):
            raise wrong_value(where, path, "a table", value)
        item = get_args(kind)[1]
        return {k: _value(item, v, where, (*path, k), field) for k, v in value.items()}
    return _scalar(kind, value, where, path, field)


def _scalar(kind: Any, value: object, where: Where, path: Path, field: _Kind) -> Any:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            named = " or ".join(json.dumps(k) for k in get_args(kind))
            raise wrong_value(where, path, named, value)
        return value
    if kind in (int, float):
        return _number(kind, value, where, path, field)
    if type(value) is not kind:
        raise wrong_value(where, path, {bool: "true or false", str: "text"}[kind], value)
    return value


def _number(kind: type, value: Any, where: Where, path: Path, field: _Kind) -> int | float:
    number = type(value) is int or (kind is float and type(value) is float)
    if number and field.infinite and value == math.inf:
        return math.inf
    least, most = _range(path)
    if field.from_minus_1 and type(value) is int and value == -1:
        return -1
    if not number or not math.isfinite(value) or value > most or value < 0 or value < least:
        wanted = "a number" if kind is float else "an integer"
        wanted += " above 0" if least else " that is not negative"
        wanted += f", at most {most:g}" if number and value > most else ""
        wanted += f", at least {least:g}" if number and 0 < value < least else ""
        raise wrong_value(where, path, wanted, value)
    return kind(value)  # type: ignore[no-any-return]


def _range(path: Path) -> tuple[float, float]:
    """Returns the least and the most of a number, by the unit in the nearest name that has one."""
    for name in reversed([key for key in path if isinstance(key, str)][-2:]):
        if name.endswith(_SHARES):
            return _LEAST_SHARE, 1.0
        most = next((most for unit, most in _UNITS.items() if name.endswith(unit)), None)
        if most is not None:
            return (0.0 if name.endswith(("kib", "mib")) else 1 / most), most
    return 0.0, _MOST

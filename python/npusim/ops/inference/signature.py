"""What a call of an operator looks like: its arguments, their kinds and defaults.

Owns reading `schemas.txt`, one schema of PyTorch a line (`aten::add.Tensor(Tensor self, …)`; fused
operators of npusim are written alike), and holding a node's operands and attributes to it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from npusim.errors import ShapeError
from npusim.ir.types import DTYPES, HOST_DTYPES, TensorType

_DROPPED_TYPES = ("Device", "Layout", "MemoryFormat", "Generator", "Stream")
_DROPPED_NAMES = ("pin_memory", "non_blocking")
_ARGUMENT = re.compile(r"(?P<type>[\w\[\]?]+(?:\([^)]*\))?\S*) (?P<name>\w+)(?:=(?P<default>.+))?")
_SCALAR_TYPES = {4: "int64"}  # by the number that stands for a dtype in a schema's default


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: `type` as the schema writes it, without marks of aliasing and `?`.

    Attributes:
        length: of a list of fixed length, which one element may stand for; else 0.
        optional: whether None is legal.
        required: whether a call has to give it.
    """

    name: str
    type: str
    is_list: bool
    length: int
    optional: bool
    optional_items: bool
    required: bool
    default: Any

    @property
    def is_tensor(self) -> bool:
        """Tells whether operands fill it."""
        return self.type == "Tensor"


@dataclass(frozen=True)
class Signature:
    """The arguments of an operator, in order; what says where a tensor lives is left out."""

    op: str
    arguments: tuple[Argument, ...]
    dropped: frozenset[str]

    def bind(self, inputs: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> list[Any]:
        """Returns the value of every argument in order, defaults included.

        Raises:
            ShapeError: operands or attributes are too many, too few, or of another kind.
        """
        left, values = list(inputs), []
        for argument in self.arguments:
            if argument.is_tensor:
                values.append(self._operand(argument, left, attrs))
            else:
                values.append(self._attribute(argument, attrs))
        if left:
            raise ShapeError(f"it takes {len(inputs) - len(left)} tensors, not {len(inputs)}.")
        known = {a.name for a in self.arguments if a.is_list or not a.is_tensor} | self.dropped
        for name in attrs:
            if name not in known:
                raise ShapeError(f"it has no attribute {name!r}.")
        return values

    def _operand(
        self, argument: Argument, left: list[TensorType | None], attrs: Mapping[str, Any]
    ) -> Any:
        count = attrs.get(argument.name, 0) if argument.is_list else 1
        if argument.is_list and (argument.name not in attrs or count is None):
            if argument.optional:
                return None
            raise ShapeError(f"how many tensors {argument.name!r} holds is not said.")
        if type(count) is not int or count < 0 or (count > len(left) and argument.is_list):
            raise ShapeError(f"attribute {argument.name!r} is {count!r}, expected the "
                             f"number of its tensors, at most {len(left)}.")  # fmt: skip
        if not argument.is_list and not left:
            if argument.optional:
                return None
            raise ShapeError(f"the operand {argument.name!r} is missing.")
        taken = tuple(left[:count])
        del left[:count]
        absent = argument.optional_items if argument.is_list else argument.optional
        if not absent and any(t is None for t in taken):
            raise ShapeError(f"the operand {argument.name!r} is missing.")
        return taken if argument.is_list else taken[0]

    def _attribute(self, argument: Argument, attrs: Mapping[str, Any]) -> Any:
        if argument.name not in attrs:
            if argument.required:
                raise ShapeError(f"the attribute {argument.name!r} is missing.")
            return argument.default
        value = attrs[argument.name]
        if value is None and argument.optional:
            return None
        if argument.is_list:
            if argument.length and _is(value, argument.type) and not isinstance(value, bool):
                return (value,) * argument.length
            if isinstance(value, tuple) and all(_is(item, argument.type) for item in value):
                return value
        elif _is(value, argument.type):
            return value
        items = "a list of " if argument.is_list else ""
        raise ShapeError(
            f"attribute {argument.name!r} is {_short(value)}, expected {items}"
            f"{_KINDS[argument.type]}."
        )


_KINDS = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "Scalar": "number",
    "ScalarType": "dtype",
    "str": "str",
    "any": "value",
}


def _is(value: object, type: str) -> bool:
    """Tells whether an attribute is of a schema's type. PyTorch takes a bool for a number."""
    if type == "any":
        return True
    if type == "bool":
        return isinstance(value, bool)
    if type == "int":
        return isinstance(value, int)
    if type == "ScalarType":
        return isinstance(value, str) and (value in DTYPES or value in HOST_DTYPES)
    if type == "str":
        return isinstance(value, str)
    if type == "Scalar" and isinstance(value, str):
        return _is_complex(value)
    return isinstance(value, (int, float))


def _is_complex(text: str) -> bool:
    try:
        complex(text)
    except ValueError:
        return False
    return True


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@cache
def _schemas() -> dict[str, str]:
    text = resources.files(__package__).joinpath("schemas.txt").read_text(encoding="utf-8")
    return {line.partition("(")[0]: line for line in text.splitlines() if line}


@cache
def signature_of(op: str) -> Signature | None:
    """Returns the signature of `aten.add.Tensor` and its likes; None when there is none."""
    name = op.removesuffix(".default").replace(".", "::", 1)
    line = _schemas().get(name)
    if line is None:
        return None
    arguments, dropped = [], set()
    inside = line.partition("(")[2].rpartition(") -> ")[0]
    for text in _split(inside):
        if text == "*":
            continue
        argument = _argument(text)
        if argument.type in _DROPPED_TYPES or argument.name in _DROPPED_NAMES:
            dropped.add(argument.name)
        else:
            arguments.append(argument)
    return Signature(op, tuple(arguments), frozenset(dropped))


def _split(text: str) -> list[str]:
    """Splits at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _argument(text: str) -> Argument:
    written, _, default = text.partition("=")
    kind, _, name = re.sub(r"\([^)]*\)", "", written).strip().rpartition(" ")
    kind = kind.replace("SymInt", "int")
    optional = kind.endswith("?")
    kind = kind.removesuffix("?")
    found = re.fullmatch(r"(\w+)(\?)?(?:\[(\d*)\])?", kind)
    assert found is not None, text
    is_list = "[" in kind
    argument = Argument(
        name=name,
        type=found[1],
        is_list=is_list,
        length=int(found[3] or 0) if is_list else 0,
        optional=optional,
        optional_items=bool(found[2]),
        required=not default,
        default=None,
    )
    return argument if not default else _with_default(argument, default)


def _with_default(argument: Argument, text: str) -> Argument:
    from dataclasses import replace

    if argument.type in _DROPPED_TYPES or text == "None":
        return replace(argument, default=None)
    value = ast.literal_eval(text)
    if argument.type == "ScalarType":
        value = _SCALAR_TYPES[value]
    if argument.is_list:
        value = tuple(value) if isinstance(value, list) else (value,) * max(argument.length, 1)
    return replace(argument, default=value)

"""Translations: what an ONNX operator means in ATen operators, by domain and name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from npusim.errors import Error
from npusim.frontends.onnx.builder import Builder, Tensor

# Methods of `Call` are named after these types.
Integer: TypeAlias = int
Number: TypeAlias = float
Text: TypeAlias = str
_integer, _number = int, float
Results = Tensor | Sequence[Tensor | None]
Translation = Callable[..., Results]
_T = TypeVar("_T", bound=Translation)


@dataclass(frozen=True)
class Call:
    """A call of an operator, as its translation sees it.

    Attributes:
        graph: the graph under construction.
        op: the operator's name.
        version: the opset version that defined the operator as it is called.
        attrs: its attributes as Python values: numbers, strings, lists of them, arrays.
        outputs: how many results the call wants.
    """

    graph: Builder
    op: Text
    version: Integer
    attrs: Mapping[Text, Any]
    outputs: Integer

    def int(self, name: Text, default: Integer = 0) -> Integer:
        """Returns an integer attribute."""
        return _integer(self.attrs.get(name, default))

    def float(self, name: Text, default: Number = 0.0) -> Number:
        """Returns a floating-point attribute."""
        return _number(self.attrs.get(name, default))

    def ints(self, name: Text, default: Sequence[Integer] | None = None) -> list[Integer] | None:
        """Returns a list of integers, or the default when it is not given."""
        value = self.attrs.get(name)
        if value is None:
            return None if default is None else list(default)
        return [_integer(v) for v in value]

    def str(self, name: Text, default: Text = "") -> Text:
        """Returns a string attribute."""
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else f"{value}"


class Attributes(dict[str, Any]):
    """The attributes of a call, which remember who was asked for."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an attribute, or the default."""
        self.read.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def unread(self) -> list[str]:
        """Returns which were given, say more than nothing, and were not asked for."""
        return [n for n, value in self.items() if n not in self.read and _says_more(value)]


def _says_more(value: Any) -> bool:
    if isinstance(value, (bytes, str)):
        return value not in (b"", "", b"NONE", "NONE")
    return bool(np.any(np.asarray(value)))


TRANSLATIONS: dict[tuple[str, str], Translation] = {}
# Attributes that say how an operator is computed elsewhere, and not what it gives.
HINTS: dict[tuple[str, str], frozenset[str]] = {}


def translation(*ops: str, domain: str = "", hints: Sequence[str] = ()) -> Callable[[_T], _T]:
    """Registers a function as the translation of operators: `f(call, *operands) -> results`.

    An operand that a call leaves out is None; trailing ones are not passed. `hints` are attributes
    that change no result; in domains that are not ONNX's any other one that is not read is refused.
    """

    def enter(function: _T) -> _T:
        for op in ops:
            TRANSLATIONS[domain, op] = function
            HINTS[domain, op] = frozenset(hints)
        return function

    return enter


def register_translation(domain: str, op: str, function: Translation) -> None:
    """Says what an operator of a custom domain means.

    Args:
        domain: of the operator ("com.example").
        op: its name.
        function: called as `function(call, *operands)` with a `Call` and a `Tensor` an operand
            (None for one left out); returns a Tensor, or a sequence of them. `call.graph.op`
            and the methods of `Tensor` add ATen operators.

    Raises:
        Error: the operator is ONNX's own, whose meaning is fixed.
    """
    if domain in ("", "ai.onnx"):
        raise Error(f"{op} is ONNX's own operator; translations are for custom domains.")
    TRANSLATIONS[domain, op] = function
    HINTS.pop((domain, op), None)

"""Translations: what an operator of graphs is in ONNX, by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from npusim.exporters.onnx.builder import Call, Tensor

Results = Tensor | Sequence[Tensor | None]
Translation = Callable[..., Results]
_T = TypeVar("_T", bound=Translation)

TRANSLATIONS: dict[str, Translation] = {}


def translation(*ops: str) -> Callable[[_T], _T]:
    """Registers a function as the translation of operators: `f(call, *operands) -> results`.

    An operand that the node leaves out is None. A result that nobody reads may be None. A result
    of another dtype than the node's is converted, and one of another shape broadcast.
    """

    def enter(function: _T) -> _T:
        for op in ops:
            TRANSLATIONS[op] = function
        return function

    return enter


__all__ = ["TRANSLATIONS", "Call", "Results", "Tensor", "Translation", "translation"]

"""The types that operators give, without PyTorch: what a graph that is read is held to.

`signature.py` has what calls look like (from `schemas.txt`, PyTorch's own text, which a test
compares with the installed release), the other files what results follow, by kind of operator.
Rules take a call's arguments in the order of its schema: a TensorType, a tuple of them or None for
operands, and attributes with their defaults; what says where a tensor lives is left out. They
refuse what PyTorch refuses with a ShapeError. Sizes may be symbolic: a rule refuses then what is
wrong for every value of the symbols, and raises SymbolicSizeError where it cannot go on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from npusim.ir.types import TensorType
from npusim.ops.inference import (
    creation,
    indexing,
    matmul,
    movement,
    normalization,
    pointwise,
    reductions,
    views,
    windows,
)
from npusim.ops.inference.signature import signature_of

Rule = Callable[..., Any]

_FAMILIES = (
    *(pointwise, reductions, views, movement, matmul, windows),
    *(indexing, creation, normalization),
)
RULES: dict[str, Rule] = {name: rule for family in _FAMILIES for name, rule in family.RULES.items()}


@cache
def inference(op: str) -> Callable[..., tuple[TensorType, ...]] | None:
    """Returns how an operator's types follow, in the form of `OpDef.infer`; None when unknown."""
    rule, signature = RULES.get(op), signature_of(op)
    return None if rule is None or signature is None else partial(_infer, signature, rule)


def _infer(
    signature: Any, rule: Rule, *inputs: TensorType | None, **attrs: Any
) -> tuple[TensorType, ...]:
    result = rule(*signature.bind(inputs, attrs))
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)

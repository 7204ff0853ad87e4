"""Whether masks of attention are causal, and indices ranges from a position: what was proved.

Reads what `known_values` found. How a library spells its masks does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.analysis.affine import Affine, Choice, Known, Mask, Number, along
from npusim.ir.types import TensorType

_VANISHES = 128.0  # exp(-128) is 0 in float32
_LEAST = {
    "float64": -1.7976931348623157e308,
    "float32": -3.4028234663852886e38,
    "float16": -65504.0,
    "bfloat16": -3.3895313892515355e38,
}


def hidden(dtype: str, cap: float = 0.0) -> float:
    """Returns what, added to a score, leaves a weight of 0 beside any visible position.

    That is the least number of the dtype, or less: scores of half its size would be needed to tell.
    Scores that lie within a cap cannot outweigh less than that, either.

    Args:
        cap: of the scores' size; 0 for none.
    """
    return -2 * cap - _VANISHES if cap else _LEAST.get(dtype, float("-inf"))


@dataclass(frozen=True)
class Causal:
    """A mask over [query, key]: key <= query + position, and key > query + position - window.

    Attributes:
        position: the scalar value; empty where the first query is at the first key.
        window: 0 for none.
    """

    position: str
    window: int


def is_position_range(found: Known | None, type: TensorType) -> str | None:
    """Returns p where a value of one dimension is p + arange; None for any other value."""
    if type.rank != 1 or not isinstance(found, Affine):
        return None
    expected = Affine(0, (along(type.shape[0]),), 1, found.scalar)
    return found.scalar if found.scalar and found == expected else None


def visible(found: Known | None, dtype: str, cap: float = 0.0) -> Mask | None:
    """Returns where a boolean mask, or a float mask to add to scores, hides nothing.

    Args:
        dtype: of the mask.
        cap: of the scores' size; 0 for none.
    """
    least = hidden(dtype, cap)
    if isinstance(found, Choice):
        if found.inside == 0 and found.outside <= least:
            return found.mask
        rank = len(next(iter(found.mask.conditions)).coefficients)
        hides = found.outside == 0 and found.inside <= least
        return found.mask.negated(rank) if hides else None
    if isinstance(found, Number):
        return Mask(frozenset()) if found.value == 0 else None
    return found if isinstance(found, Mask) else None


def causal_mask(
    found: Known | None, type: TensorType, lengths: tuple[int, int], cap: float = 0.0
) -> Causal | None:
    """Returns what a boolean or hiding mask over [..., query, key] says, if it is causal.

    Args:
        type: of the mask.
        lengths: of queries and keys; the mask must not broadcast along them.
        cap: of the scores' size; 0 for none.
    """
    mask = visible(found, type.dtype, cap)
    if mask is None or type.shape[-2:] != lengths:
        return None
    q, k = map(along, lengths)
    lead = (0,) * (type.rank - 2)
    position, window, future = "", 0, False
    for condition in mask.conditions:
        if condition.times in (0, 1) and condition.coefficients == (*lead, q, -k):
            if condition.offset != 0 or future:
                return None
            position, future = condition.scalar, True
        elif condition.times in (0, -1) and condition.coefficients == (*lead, -q, k):
            if condition.offset < 0 or window:
                return None
            window = condition.offset + 1
        else:
            return None
    scalars = {condition.scalar for condition in mask.conditions}
    return Causal(position, window) if future and scalars == {position} else None

"""What `__post_init__` of dataclasses of data files asks of their numbers, in one sentence each."""

from __future__ import annotations

from collections.abc import Mapping

from npusim.ir.types import DTYPES
from npusim.targets.records import Contradiction


def at_least_1(record: object, *keys: str) -> None:
    """Refuses fields that count what there has to be one of."""
    for key in keys:
        if getattr(record, key) < 1:
            raise Contradiction("there is at least 1.", key)


def is_power_of_2(number: int) -> bool:
    """Tells whether a number is 1, 2, 4, …"""
    return number > 0 and number & (number - 1) == 0


def power_of_2(record: object, key: str) -> None:
    """Refuses a field that is no power of two."""
    if not is_power_of_2(number := getattr(record, key)):
        raise Contradiction(f"{number} is no power of two.", key)


def by_dtype(
    rates: Mapping[str, float], key: str, *, empty: bool = False, above_0: bool = False
) -> None:
    """Refuses a mapping whose keys are no dtypes; unless `empty`, one without any.

    Args:
        rates: the field's.
        key: of the field.
        above_0: a dtype of which nothing is done would be left out.
    """
    for dtype in rates:
        if dtype not in DTYPES:
            raise Contradiction(f"no dtype is called that. {', '.join(DTYPES)}.", key, dtype)
    if not rates and not empty:
        raise Contradiction("at least one dtype is computed.", key)
    for dtype, rate in rates.items():
        if above_0 and not rate > 0:
            raise Contradiction("a dtype that is not computed is left out.", key, dtype)

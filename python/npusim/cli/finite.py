"""Numbers on the command line: within their range, and numbers. NaN is beyond no bound."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A float within bounds; NaN and, where there is no bound, infinities are refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Returns the number; a usage error for anything else."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number

"""Options of verbs that simulate a program: on which machine, which method, at which sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from npusim.cli.sizes import call_sizes, call_sizes_option
from npusim.ir.symbolic import Symbol
from npusim.partition.plan import PartitionPlan
from npusim.program.program import CompiledProgram


@dataclass(frozen=True)
class Simulated:
    """What a verb simulates; None: what `npusim.simulate` takes by default."""

    target: str | None
    method: str | None
    mode: str | None
    sizes: tuple[str, ...]
    context: int | None

    def arguments(self, program: CompiledProgram | PartitionPlan) -> dict[str, Any]:
        """Returns the arguments of `npusim.simulate`, but for the program and overrides."""
        chosen, _ = (
            call_sizes(self.sizes, self._symbols(program), False) if self.sizes else ({}, [])
        )
        return {
            "target": self.target,
            "method": self.method,
            "mode": self.mode,
            "sizes": chosen,
            "context": self.context,
        }

    def _symbols(self, program: CompiledProgram | PartitionPlan) -> tuple[Symbol, ...]:
        if isinstance(program, PartitionPlan):
            return program.graph.symbols
        return next((m.symbols for m in program.methods if self.method in (None, m.name)), ())


target_option = click.option(
    "--target", help="A target or a file of one. Default: what it was compiled for."
)
mode_option = click.option(
    "--mode", type=click.Choice(["loose", "tight"]), help="Default: the target's."
)
_OPTIONS = (
    target_option,
    click.option("--method", help="Default: the program's first."),
    mode_option,
    call_sizes_option,
    click.option(
        "--context", type=click.IntRange(min=0), help="Tokens in a language model's cache."
    ),
)
_NAMES = ("target", "method", "mode", "sizes", "context")


def simulated_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a verb, which gets them together as `simulated`."""

    @functools.wraps(verb)
    def gathered(**given: Any) -> Any:
        return verb(simulated=Simulated(*(given.pop(name) for name in _NAMES)), **given)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered

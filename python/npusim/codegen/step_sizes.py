"""For which sizes a method `step`, of rows of many requests, has device code unless told otherwise.

Steps are filled up to the next of these sizes (cpp/serve/paged_model.h), so that no step waits for
a compiler: powers of two rows. A step has no more requests than rows; as many are prepared for,
since the products of a step of few rows take no longer for them, and those of many rows hardly.
"""

from __future__ import annotations

from collections.abc import Mapping

from npusim.ir.symbolic import symbols_of
from npusim.program.program import CompiledProgram
from npusim.program.sized_command import Sizes

_STEP = "step"


def step_sizes(program: CompiledProgram) -> list[Sizes]:
    """Returns rows and requests of steps by the names of their symbols; none without such steps."""
    facts = program.metadata.get("language_model")
    serve = facts.get("serve") if isinstance(facts, Mapping) else None
    method = next((m for m in program.methods if m.name == _STEP), None)
    if not isinstance(serve, Mapping) or method is None:
        return []
    rows, requests = (_symbol(program, name) for name in ("tokens", "rows"))
    if rows is None or requests is None:
        return []
    most, most_requests = serve["max_step_tokens"], serve["max_requests"]
    counts = [1 << i for i in range(int(most).bit_length()) if 1 << i < most]
    return [{rows: count, requests: min(count, most_requests)} for count in counts]


def _symbol(program: CompiledProgram, name: str) -> str | None:
    """Returns the symbol that an input of the step has as its last size."""
    method = next(m for m in program.methods if m.name == _STEP)
    shape = next((spec.shape for spec in method.inputs if spec.name == name), ())
    return next((symbol.name for symbol in symbols_of(shape[-1:])), None)

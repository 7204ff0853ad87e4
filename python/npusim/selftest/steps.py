"""The proof as steps: a case of an op, a model in a dtype, a decoder, a piece of timed work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from npusim.errors import first_line
from npusim.targets import TargetConfig

if TYPE_CHECKING:
    from npusim.runtime.device import Device

SECTIONS = ("conformance", "models", "decoders", "timings")

Run: TypeAlias = "Callable[[TargetConfig, Device], dict[str, object]]"


@dataclass(frozen=True)
class Step:
    """Something to prove.

    Attributes:
        section: one of `SECTIONS`.
        name: of no other step of the section.
        run: does it, and returns what a report holds of it; raises what is wrong.
    """

    section: str
    name: str
    run: Run

    def outcome(self, target: TargetConfig, device: Device) -> dict[str, object]:
        """Returns what a report holds; under "failure" what was wrong, whatever that is."""
        try:
            return self.run(target, device)
        except Exception as error:
            return {"failure": first_line(error)}


def steps(sections: Collection[str], match: str, *, quick: bool) -> list[Step]:
    """Returns all steps in order; the same for equal arguments.

    Args:
        sections: those wanted.
        match: a pattern of ops' names, as shells have them.
        quick: of each op and dtype the first case alone, and the first decoder.
    """
    found: list[Step] = []
    for section in SECTIONS:
        if section in sections:
            found += (Step(section, name, run) for name, run in _RUNS[section](match, quick))
    return found


def _cases(match: str, quick: bool) -> Iterator[tuple[str, Run]]:
    from npusim.selftest.conformance import cases, run_case

    for op, name, case, dtype in cases(match, quick=quick):
        yield f"{op.name}, case {name}, {dtype}", partial(run_case, op, case, dtype)


def _models(_: str, __: bool) -> Iterator[tuple[str, Run]]:
    from npusim.selftest.models import EXAMPLES, run_model

    for name, example in EXAMPLES.items():
        for dtype in example.dtypes:
            label = f"{name}, {str(dtype).removeprefix('torch.')}"
            yield label, partial(run_model, example, dtype)


def _decoders(_: str, quick: bool) -> Iterator[tuple[str, Run]]:
    from npusim.selftest.decoder import DECODERS, run_decoder

    for name, decoder in list(DECODERS.items())[: 1 if quick else None]:
        yield f"a decoder, {name}", partial(run_decoder, decoder=decoder)


def _timings(_: str, __: bool) -> Iterator[tuple[str, Run]]:
    from npusim.selftest.timings import WORK, run_timing

    for name, work in WORK.items():
        yield name, partial(run_timing, work)


_RUNS: dict[str, Callable[[str, bool], Iterator[tuple[str, Run]]]] = {
    "conformance": _cases,
    "models": _models,
    "decoders": _decoders,
    "timings": _timings,
}

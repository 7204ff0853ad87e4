"""`npusim selftest`: proof on this machine's device, and one report of it."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

import npusim
from npusim.cli.answer import Answer, Verb, table
from npusim.cli.finite import Finite
from npusim.cli.progress import progress
from npusim.errors import Error
from npusim.files import write_atomic
from npusim.selftest.steps import SECTIONS, Step
from npusim.selftest.supervise import Wanted, supervised
from npusim.targets import TargetConfig

Command = TypeVar("Command", bound=Callable[..., object])
_SHOWN = 20  # failures that are printed; the report has all
_WRITTEN_EVERY_S = 10.0


def time_limit_option(default: float) -> Callable[[Command], Command]:
    """Returns the option --time-limit with a default."""
    return click.option(
        "--time-limit",
        type=Finite(min=0),
        default=default,
        metavar="SECONDS",
        show_default=True,
        help="Run in a process of its own, and give up a step after that long; 0: in this one.",
    )


@click.command(cls=Verb)
@click.option("--device", default="cpu", show_default=True, help="What to prove, such as metal.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The report, JSON.")
@click.option(
    "--only",
    "sections",
    multiple=True,
    type=click.Choice(SECTIONS),
    help="Repeatable. Default: all.",
)
@click.option("--match", default="*", metavar="PATTERN", help="Conformance: ops by name.")
@click.option("--quick", is_flag=True, help="Conformance: one case of each op and dtype.")
@time_limit_option(0.0)
def selftest(
    device: str,
    output: Path | None,
    sections: tuple[str, ...],
    match: str,
    quick: bool,
    time_limit: float,
) -> Answer:
    """Compare a device with PyTorch and the CPU: every kernel, small models, and times.

    The answer is no when anything differs. Needs PyTorch.
    """
    wanted = sections or SECTIONS
    return proved(device, output, wanted, match, quick=quick, time_limit=time_limit)


@click.command(cls=Verb, name="metal-selftest")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("npusim-metal.json"),
    show_default=True,
    help="The report, JSON.",
)
@click.option("--quick", is_flag=True, help="One case of each op and dtype.")
@click.option(
    "--indirect-commands",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="The device's option: methods in indirect command buffers.",
)
@time_limit_option(300.0)
def metal_selftest(output: Path, quick: bool, indirect_commands: str, time_limit: float) -> Answer:
    """Prove npusim on this Mac's GPU: `selftest --device metal`, with a report to send."""
    return proved(
        *("metal", output, SECTIONS, "*"),
        quick=quick,
        time_limit=time_limit,
        indirect_commands=indirect_commands,
    )


def proved(
    name: str,
    output: Path | None,
    sections: tuple[str, ...],
    match: str,
    *,
    quick: bool,
    time_limit: float = 0.0,
    indirect_commands: str | None = None,
) -> Answer:
    """Runs sections of the proof on a device; writes the report where one is wanted.

    Args:
        time_limit: seconds of one step, in a process that may crash; 0: in this one, without.
    """
    try:
        import torch
    except ImportError:
        raise Error(
            "The selftest compares with PyTorch.", hint="pip install 'npusim[torch]'"
        ) from None
    from npusim.selftest.report import Report
    from npusim.selftest.steps import steps

    options = {} if indirect_commands is None else {"indirect_commands": indirect_commands}
    target = TargetConfig.named(name)
    known = steps(sections, match, quick=quick)
    facts: dict[str, Any] = {
        "npusim": npusim.__version__,
        "indirect_commands": indirect_commands,
        "platform": platform.platform(),
        "macos": platform.mac_ver()[0],
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "target": target.name,
        "arch": target.arch,
    }
    report = Report(facts, sections)
    outcomes = (
        _in_process(name, options, target, known)
        if not time_limit
        else supervised(Wanted(name, sections, match, quick, options), len(known), time_limit)
    )
    written = time.monotonic()
    with progress("Testing") as told:
        for number, outcome in outcomes:
            if number < 0:
                facts.update(outcome)
                continue
            told(known[number].name, number, len(known))
            report.add(known[number], outcome)
            if output is not None and time.monotonic() - written > _WRITTEN_EVERY_S:
                _write(output, facts)  # so that there is one, whatever happens
                written = time.monotonic()
    if output is not None:
        _write(output, facts)
    failures = report.failures
    rows = [("device", f"{facts['device']}: {facts['description']}"), *report.rows()]
    shown = [f"  {failure}" for failure in failures[:_SHOWN]]
    if len(failures) > _SHOWN:
        shown.append(f"  and {len(failures) - _SHOWN} more, all in the report")
    verdict = "Nothing differs." if not failures else f"{len(failures)} failures:"
    return Answer(facts, [table(rows), "", verdict, *shown], ok=not failures)


def _in_process(
    name: str, options: dict[str, str], target: TargetConfig, known: Sequence[Step]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields what `supervised` does."""
    device = npusim.Device(name, **options)  # type: ignore[arg-type]
    yield -1, {"device": device.name, "description": device.description}
    for number, step in enumerate(known):
        yield number, step.outcome(target, device)


def _write(output: Path, facts: dict[str, Any]) -> None:
    write_atomic(output, (json.dumps(facts, indent=2) + "\n").encode())

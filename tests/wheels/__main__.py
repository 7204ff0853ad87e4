"""Builds every wheel that can be built here, checks it, and runs it as far as this machine can.

python -m tests.wheels WORK OUT [--only NAME]... [--write-docs]

WORK keeps tools, build folders and what each platform's last run found; wheels go to OUT. Exits
with 1 when something that could be done here failed; what is missing is said in a sentence and left
out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.wheels import build, checks, index, report, running
from tests.wheels.commands import Failed, Missing
from tests.wheels.report import Result
from tests.wheels.targets import TARGETS, Target
from tests.wheels.toolchain import Toolchain


def _step(result: Result, what: str, does: Callable[[], str]) -> None:
    """Does one thing, and notes how it ended."""
    try:
        said = does()
    except Missing as error:
        result.left_out.append(f"{what}: {error}")
        print(f"{result.name}: {what}: left out: {error}", flush=True)
    except Failed as error:
        result.failures.append(f"{what}: {error}")
        print(f"{result.name}: FAILED: {what}: {error}", flush=True)
    else:
        result.checked.append(said)
        print(f"{result.name}: {said}", flush=True)


def _wheel(toolchain: Toolchain, target: Target, work: Path, out: Path) -> Result:
    result = Result(target.name, target.floor)

    def built() -> str:
        result.wheel = build.build_wheel(toolchain, target, work, out)
        result.bytes = checks.check_size(result.wheel)
        return "built and linked"

    _step(result, "wheel", built)
    if result.wheel is not None:
        for what, does in running.steps(toolchain, target, result.wheel, work):
            _step(result, what, does)
    return result


def _release(toolchain: Toolchain, results: Sequence[Result], work: Path) -> None:
    """Installs from an index of all wheels; what runs from there is this machine's own."""
    wheels = [result.wheel for result in results if result.wheel is not None]
    native = running.native_name()
    ours = [result for result in results if result.name == native and result.wheel is not None]
    for result in ours:
        _step(
            result,
            "release",
            lambda: running.released(index.install(toolchain, wheels, work / "release"), work),
        )


def main(arguments: Sequence[str]) -> int:
    """Does all of it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.wheels")
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", action="append", choices=[t.name for t in TARGETS])
    parser.add_argument("--write-docs", action="store_true", help=f"write {report.PAGE.name}")
    options = parser.parse_args(arguments)
    work, out = options.work.resolve(), options.out.resolve()
    try:
        toolchain = Toolchain(work / "tools")
    except Failed as error:
        print(f"Zig's compiler cannot be installed, so no wheel is built: {error}")
        return 1
    chosen = [t for t in TARGETS if options.only is None or t.name in options.only]
    results = [_wheel(toolchain, target, work / target.name, out) for target in chosen]
    _release(toolchain, results, work)
    for result in results:
        report.keep(result, work / result.name)
    every = [report.kept(target, work / target.name) for target in TARGETS]
    print("\n" + report.table(every))
    if options.write_docs:
        report.write(every)
    return 1 if any(result.failures for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

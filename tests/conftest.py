"""Fixtures for all tests: golden files. Options: `--update-golden`; `--device`, `--samples`.

`--long` runs also what is marked as long, which CI has no time for.

A golden file holds the expected text of one test. It lies beside the tests, in
`golden/<module without test_>/<test name>.txt`; `pytest --update-golden` writes it anew.
"""

from __future__ import annotations

import difflib
import gc
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def _use_metal_runtime() -> str:
    """Puts a runtime with Metal into the place of the package's, for `--device metal`.

    It is done before any other conftest.py is read, as those import npusim: the command line is
    looked at here, and pytest's workers find the environment variables. Returns why it cannot be.
    """
    if "NPUSIM_NO_METAL_RUNTIME" in os.environ:
        return os.environ["NPUSIM_NO_METAL_RUNTIME"]
    given = " ".join(sys.argv).replace("--device=", "--device ")
    if sys.platform == "darwin" or (
        "--device metal" not in given and "NPUSIM_METAL_RUNTIME" not in os.environ
    ):
        return ""
    from tests.softmetal.build import CannotBuild, use_metal_runtime

    try:
        use_metal_runtime()
    except CannotBuild as missing:
        os.environ["NPUSIM_NO_METAL_RUNTIME"] = str(missing)
        return str(missing)
    return ""


MISSING = _use_metal_runtime()  # why `--device metal` has no device here


def pytest_configure(config: pytest.Config) -> None:
    """Takes signals as a terminal gives them, also where the tests run in the background.

    There SIGINT, and under nohup SIGHUP, are ignored, which the processes of tests would inherit.
    """
    mark = "seeded_fault: a check of the software Metal device fires (tests/softmetal/summary.py)"
    config.addinivalue_line("markers", mark)
    config.addinivalue_line("markers", "long: takes many seconds; `make long` runs it, CI does not")
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


_EXECUTED: Counter[str] = Counter()  # dispatches on the software Metal device, by order


def pytest_sessionfinish(session: pytest.Session) -> None:
    if "tests.softmetal.metal" not in sys.modules:
        return
    from tests.softmetal.summary import executed

    worker = getattr(session.config, "workeroutput", None)
    if worker is None:
        _EXECUTED.update(executed())
    else:
        worker["softmetal"] = executed()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _EXECUTED.update(getattr(node, "workeroutput", {}).get("softmetal", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _EXECUTED.total():
        return
    from tests.softmetal.summary import MARK, lines

    passed = terminalreporter.stats.get("passed", [])
    faults = sum(MARK in report.keywords for report in passed if report.when == "call")
    terminalreporter.section("software Metal device")
    for line in lines(_EXECUTED, faults):
        terminalreporter.write_line(line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = set(items)
    if not config.getoption("--long"):
        kept = {item for item in items if item.get_closest_marker("long") is None}
    if config.getoption("--each-op"):
        kept &= _one_of_each_op(items, config.getoption("--device"))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
    for item in items if MISSING else ():
        item.add_marker(pytest.mark.skip(reason=MISSING))


def _one_of_each_op(items: list[pytest.Item], device: str) -> set[pytest.Item]:
    """Returns a case of each operator, whose dtypes and cases take turns, and all other tests.

    Dtypes that the device lacks altogether are left out: a refusal is not the operator's turn.
    """
    from npusim.targets import TargetConfig
    from npusim.targets.target_config import ALL

    limits = TargetConfig.named(device).limits.get(ALL)
    by_op: dict[str, list[pytest.Item]] = {}
    kept = set()
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if not {"op", "dtype"} <= parameters.keys():
            kept.add(item)
        elif limits is None or parameters["dtype"] in limits.dtypes:
            name = getattr(parameters["op"], "name", parameters["op"])
            by_op.setdefault(name, []).append(item)
    return kept | {cases[turn % len(cases)] for turn, cases in enumerate(by_op.values())}


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Has the garbage collector leave alone what modules and collected tests hold to the end."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files instead of comparing"
    )
    parser.addoption("--ray", action="store_true", help="run what starts a Ray (make ray)")
    parser.addoption("--zoo", action="store_true", help="run every model of the zoo")
    parser.addoption("--long", action="store_true", help="run also what is marked as long")
    parser.addoption(
        "--device",
        default="cpu",
        help="device the conformance suite runs on, and target it compiles for, such as cuda; on"
        " Linux metal is the software device, which is built",
    )
    parser.addoption(
        "--each-op",
        action="store_true",
        help="run one conformance case of each operator, with its dtypes and cases in turn",
    )
    parser.addoption(
        "--samples",
        choices=("few", "all"),
        default="few",
        help="how many of PyTorch's own samples of an operator the conformance suite takes",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Returns a function that compares a text with the test's golden file."""
    module = Path(str(request.node.path))
    name = re.sub(r"[^\w.-]+", "_", request.node.name.removeprefix("test_")).strip("_")
    folder = module.parent / "golden" / module.stem.removeprefix("test_")
    path = folder / f"{name}.txt"

    def check(text: str) -> None:
        if request.config.getoption("--update-golden"):
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.is_file():
            pytest.fail(f"{path} is missing; look at the result, then pytest --update-golden")
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            diff = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), str(path), "result", lineterm=""
            )
            pytest.fail("\n".join(["The result differs from the golden file:", *diff]))

    return check

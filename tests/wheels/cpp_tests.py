"""Runs the C++ tests of a build for another machine: by an emulator, or another C library."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.wheels.commands import Failed, run
from tests.wheels.toolchain import Toolchain

Test = dict[str, Any]  # of `ctest --show-only=json-v1`


@dataclass(frozen=True)
class Count:
    """How many tests passed, and how many said that this machine cannot run them."""

    passed: int
    skipped: int

    def __str__(self) -> str:
        return f"{self.passed} passed" + (f", {self.skipped} skipped" if self.skipped else "")


def _tests(toolchain: Toolchain, build: Path) -> list[Test]:
    said = run(["ctest", "--test-dir", build, "--show-only=json-v1"], toolchain.environment())
    tests: list[Test] = json.loads(said)["tests"]
    # Others are scripts that look at object files of this machine.
    return [test for test in tests if Path(test["command"][0]).is_relative_to(build)]


def outcome(test: Test, prefix: Sequence[str], limit: float) -> str:
    """Returns "passed", "skipped", or why it failed."""
    facts = {entry["name"]: entry["value"] for entry in test.get("properties", ())}
    command = [*prefix, *test["command"]]
    try:
        done = subprocess.run(
            command, check=False, cwd=facts.get("WORKING_DIRECTORY"), timeout=limit,
            env={**os.environ, **dict(v.split("=", 1) for v in facts.get("ENVIRONMENT", ()))},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{test['name']}: no end after {limit:.0f} s"
    said = done.stdout.decode(errors="replace")
    if (forms := facts.get("PASS_REGULAR_EXPRESSION")) is not None:
        good = any(re.search(form, said) for form in forms)
    elif done.returncode == facts.get("SKIP_RETURN_CODE"):
        return "skipped"
    else:
        good = done.returncode == 0
    return "passed" if good else f"{test['name']}: {done.returncode}: {said[-600:]}"


def run_tests(
    toolchain: Toolchain,
    build: Path,
    prefix: Sequence[str],
    *,
    without: Collection[str] = (),
    limit: float = 1200,
) -> Count:
    """Runs every test of a build, each after `prefix`; raises `Failed` with those that fail."""
    tests = [test for test in _tests(toolchain, build) if test["name"] not in without]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda test: outcome(test, prefix, limit), tests))
    failures = [result for result in results if result not in ("passed", "skipped")]
    if failures or not results:
        raise Failed(f"C++ tests failed ({' '.join(prefix)}):\n" + "\n".join(failures))
    return Count(results.count("passed"), results.count("skipped"))

"""Builds the software Metal device, or skips with the names of what is missing."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.softmetal import metal

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "softmetal"
PACKAGES = "clang-19 libclang-rt-19-dev libobjc-12-dev libblocksruntime-dev"
OLDEST_CLANG = 17
# What tests change.
ORDINARY = {"ORDER": "forward", "SEED": 1, "FAMILY": 8, "MATRIX_LAYOUT": 0, "DELAY_US": 0}
ORDINARY |= {"TIMEOUT_S": 120, "MAX_MEMORY": 1 << 34}


def _version(clang: str) -> int:
    said = subprocess.run([clang, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"clang version (\d+)", said.stdout)
    return int(found[1]) if found else 0


def compiler() -> str | None:
    """A clang that is new enough; None: there is none."""
    names = [*(f"clang++-{n}" for n in range(25, OLDEST_CLANG - 1, -1)), "clang++"]
    for name in names:
        path = shutil.which(name)
        if path and _version(path) >= OLDEST_CLANG:
            return path
    return None


def _build(clang: str) -> str:
    """Builds into BUILD, one process at a time; returns why it could not."""
    BUILD.mkdir(parents=True, exist_ok=True)
    headers = os.environ.get("NPUSIM_METAL_CPP", "")
    if not (Path(headers) / "Metal" / "Metal.hpp").is_file():
        headers = ""  # test_metal_cpp.py says so
    configure = ["cmake", "-S", str(ROOT / "tests" / "softmetal"), "-B", str(BUILD), "-G", "Ninja"]
    configure += [f"-DCMAKE_CXX_COMPILER={clang}", f"-DNPUSIM_METAL_CPP={headers}"]
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, ["cmake", "--build", str(BUILD), "--", "-j2"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return done.stdout + done.stderr
    return ""


@pytest.fixture(scope="session")
def softmetal_build() -> Path:
    """The folder of libsoftmetal.so, which is built when something of it changed."""
    given = os.environ.get("NPUSIM_SOFTMETAL")
    if given:
        return Path(given)
    clang = compiler()
    if clang is None or not list(Path("/usr/lib/gcc").glob("*/*/include/objc/objc.h")):
        pytest.skip(f"the software Metal device needs (Debian's names) {PACKAGES}")
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("the software Metal device needs cmake and ninja")
    failure = _build(clang)
    if "runtime is missing" in failure:
        pytest.skip(f"the software Metal device needs (Debian's names) {PACKAGES}")
    assert not failure, failure
    os.environ["NPUSIM_SOFTMETAL"] = str(BUILD)
    os.environ.setdefault("SOFTMETAL_CACHE", str(BUILD / "libraries"))
    return BUILD


@pytest.fixture
def device(softmetal_build: Path) -> Iterator[metal.Device]:
    """A device in its ordinary settings; nothing may be alive when the test has ended."""
    metal.runtime(softmetal_build)
    before = metal.alive()
    with metal.Device() as made:
        yield made
    for name, value in ORDINARY.items():
        metal.set_option(name, value)
    assert metal.alive() == before, "objects are alive that nobody owns"

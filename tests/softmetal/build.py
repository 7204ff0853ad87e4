"""Builds the software Metal device, and npusim's runtime over it, into build/softmetal.

The runtime of the package has no Metal on Linux. What is built here does: the same C++ sources, by
clang, over Apple's metal-cpp and the software device, with the CPU kernels of one instruction set.
`use_metal_runtime()` puts it in the place of `npusim._runtime` in this process.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "softmetal"
PACKAGES = "clang-19 libclang-rt-19-dev libobjc-12-dev libblocksruntime-dev"
OLDEST_CLANG = 17
KEPT_OUTPUT = 8000  # characters of a build that failed


class CannotBuild(Exception):
    """Names what is missing here."""


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


def metal_cpp() -> Path | None:
    """The folder of Apple's headers; None: they are not here."""
    for folder in (os.environ.get("NPUSIM_METAL_CPP"), ROOT / "build" / "metal-cpp"):
        if folder and (Path(folder) / "Metal" / "Metal.hpp").is_file():
            return Path(folder)
    return None


def _cmake(source: Path, build: Path, *definitions: str) -> None:
    """Configures and builds what changed, one process at a time."""
    build.mkdir(parents=True, exist_ok=True)
    configure = ["cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", *definitions]
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, ["cmake", "--build", str(build), "--", "-j2"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if "runtime is missing" in done.stderr:
                raise CannotBuild(f"the software Metal device needs (Debian's names) {PACKAGES}")
            assert done.returncode == 0, (done.stdout + done.stderr)[-KEPT_OUTPUT:]


def build_device() -> Path:
    """Returns the folder of libsoftmetal.so, built when something of it changed.

    Raises:
        CannotBuild: with the names of what is missing.
    """
    clang = compiler()
    if clang is None or not list(Path("/usr/lib/gcc").glob("*/*/include/objc/objc.h")):
        raise CannotBuild(f"the software Metal device needs (Debian's names) {PACKAGES}")
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        raise CannotBuild("the software Metal device needs cmake and ninja")
    headers = metal_cpp() or ""
    _cmake(
        ROOT / "tests" / "softmetal",
        BUILD,
        f"-DCMAKE_CXX_COMPILER={clang}",
        f"-DNPUSIM_METAL_CPP={headers}",
    )
    os.environ["NPUSIM_SOFTMETAL"] = str(BUILD)
    os.environ.setdefault("SOFTMETAL_CACHE", str(BUILD / "libraries"))
    return BUILD


def build_runtime() -> Path:
    """Returns the path of a `_runtime` with Metal over the software device.

    Raises:
        CannotBuild: with the names of what is missing.
    """
    headers = metal_cpp()
    if headers is None:
        raise CannotBuild("Apple's metal-cpp is not here: NPUSIM_METAL_CPP names its folder")
    if importlib.util.find_spec("pybind11") is None:
        raise CannotBuild("the runtime needs pybind11 to be built")
    device = build_device()
    import pybind11

    runtime = BUILD / "runtime"
    _cmake(
        ROOT,
        runtime,
        f"-DCMAKE_CXX_COMPILER={compiler()}",
        # GCC's library marks what its own algorithms use.
        "-DCMAKE_CXX_FLAGS=-Wno-error=deprecated-declarations",
        "-DNPUSIM_WERROR=ON",
        f"-DNPUSIM_METAL_CPP={headers}",
        f"-DNPUSIM_SOFTMETAL={device}",
        "-DNPUSIM_ISAS=baseline",
        # For size, all of it, which takes the least time and lets headers be read once.
        "-DCMAKE_BUILD_TYPE=MinSizeRel",
        "-DNPUSIM_SMALL=ON",
        "-DNPUSIM_PRECOMPILED_HEADERS=ON",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    return runtime / f"_runtime{EXTENSION_SUFFIXES[0]}"


def use_metal_runtime() -> None:
    """Loads the runtime with Metal as `npusim._runtime`, which nothing may have imported yet.

    Raises:
        CannotBuild: with the names of what is missing.
    """
    assert "npusim._runtime" not in sys.modules, "npusim was imported with its own runtime"
    given = os.environ.get("NPUSIM_METAL_RUNTIME")
    path = Path(given) if given else build_runtime()
    os.environ["NPUSIM_METAL_RUNTIME"] = str(path)  # for processes that this one starts
    os.environ.setdefault("NPUSIM_CACHE_DIR", str(BUILD / "cache"))  # what it keeps is of no Mac
    spec = importlib.util.spec_from_file_location("npusim._runtime", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["npusim._runtime"] = module

"""What is run of each wheel on this machine."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy

from tests.wheels import build, checks, cpp_tests, userland
from tests.wheels.commands import ROOT, Missing, run
from tests.wheels.targets import Target
from tests.wheels.toolchain import Toolchain

Step = tuple[str, Callable[[], str]]
_CORPUS = ROOT / "tests" / "compatibility" / "corpus"
_REPLAY = Path(__file__).parent / "replay.py"
# Processors that qemu imitates, and the kernels that they run.
_PROCESSORS = {"Nehalem": "baseline", "SandyBridge": "baseline", "Haswell": "avx2"}


def native_name() -> str:
    """Returns the name of the wheel that this machine itself runs."""
    return f"{platform.system().lower()}-{platform.machine()}"


def unpacked(wheel: Path, work: Path) -> Path:
    """Returns a folder with the wheel's files, as PYTHONPATH takes them."""
    folder = work / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.unpack_archive(wheel, folder, "zip")
    return folder


def released(python: Path, work: Path) -> str:
    """Runs the recorded programs with what was installed by name, on several processors."""
    said = run([python, _REPLAY, _CORPUS], {"PYTHONPATH": ""}, cwd=work).strip()
    return f"installed by name from an index, twine check; {said}"


def _processors(wheel: Path, work: Path) -> str:
    """Runs the wheel on older processors: no instruction that they lack, and the right kernels."""
    where = f"{unpacked(wheel, work)}:{_numpy()}"
    for model, isa in _PROCESSORS.items():
        qemu = userland.emulator("x86_64", "-cpu", model)
        # NumPy's OpenBLAS takes the imitated processor for the one that imitates.
        env = {"PYTHONPATH": where, "OPENBLAS_CORETYPE": model}
        run([*qemu, sys.executable, "-S", _REPLAY, _CORPUS, isa], env)
    kinds = ", ".join(f"{model} ({isa})" for model, isa in _PROCESSORS.items())
    return f"Python on qemu's {kinds}"


def _numpy() -> str:
    return f"{Path(numpy.__file__).parents[1]}"


def _python_on_arm(wheel: Path, work: Path) -> str:
    root = userland.ARM.unpack(work.parent / "userlands")
    python = root / "usr" / "bin" / "python3"
    libraries = root / "usr" / "lib" / "aarch64-linux-gnu"
    blas = f"LD_LIBRARY_PATH={libraries / 'blas'}:{libraries / 'lapack'}"
    qemu = userland.emulator("aarch64", "-L", f"{root}", "-E", blas)
    said = run(
        [*qemu, python, _REPLAY, _CORPUS, "neon"],
        {"PYTHONPATH": f"{unpacked(wheel, work)}", "PYTHONHOME": f"{root / 'usr'}"},
    ).strip()  # fmt: skip
    return f"{userland.ARM.words}, Python under qemu: {said}"


def _absent(why: str) -> str:
    raise Missing(why)


def steps(toolchain: Toolchain, target: Target, wheel: Path, work: Path) -> Iterator[Step]:
    """Yields what is checked and run of a wheel, each with its name."""
    tools = toolchain

    def tests(prefix: list[str], where: str) -> str:
        count = cpp_tests.run_tests(tools, build.build_tests(tools, work), prefix)
        return f"C++ tests {where}: {count}"

    if target.system == "Linux":
        yield (
            "auditwheel",
            lambda: (
                "auditwheel; newest symbol of glibc "
                + checks.check_linux(tools, target, wheel, work / "compiled")
            ),
        )
    if target.name == "linux-x86_64":
        if native_name() == target.name:
            yield "C++ tests", lambda: tests([], "here")
        yield (
            "C++ tests in an older userland",
            lambda: tests(
                userland.old_loader(userland.OLD.unpack(work.parent / "userlands")),
                f"with the C library of {userland.OLD.words}",
            ),
        )
        yield "older processors", lambda: _processors(wheel, work)
        yield (
            "C++ tests on an older processor",
            lambda: tests(userland.emulator("x86_64", "-cpu", "Nehalem"), "on qemu's Nehalem"),
        )
    if target.name == "linux-aarch64":
        yield (
            "C++ tests",
            lambda: tests(
                userland.emulator(
                    "aarch64", "-L", f"{userland.ARM.unpack(work.parent / 'userlands')}"
                ),
                "under qemu",
            ),
        )
        yield "Python", lambda: _python_on_arm(wheel, work)
    if target.system == "Darwin":
        yield "what it needs", lambda: checks.check_macos(tools, wheel, work / "compiled")
        yield "C++ tests and Python", lambda: _absent("nothing here runs programs for macOS")
        yield (
            "metal",
            lambda: _absent(
                "left out of this wheel: Apple's frameworks cannot be had here; "
                "wheels that are built on macOS bring it"
            ),
        )
    if target.system == "Windows":
        yield "what it needs", lambda: checks.check_windows(tools, wheel, work / "compiled")
        yield "C++ tests", lambda: tests(userland.wine(work / "wine", work / "build"), "under wine")
        yield "Python", lambda: _absent("there is no Python for Windows among Debian's packages")

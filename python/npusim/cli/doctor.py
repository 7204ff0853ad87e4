"""`npusim doctor`: what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np

import npusim
from npusim.cli.answer import Answer, Verb, table
from npusim.errors import Error
from npusim.ir.graph import Graph, Node, Output, Value
from npusim.ir.types import TensorType
from npusim.targets import TargetConfig, target_names
from npusim.targets.features import listed_architectures


@dataclass(frozen=True)
class Check:
    """One line of the diagnosis.

    Attributes:
        what: what was looked for.
        found: what was found, or why not.
        state: "ok"; "optional" where only a part of npusim needs it; "missing" where nothing runs.
        remedy: what to do, when it is not there.
    """

    what: str
    found: str
    state: str = "ok"
    remedy: str = ""


# Distribution -> what needs it, and the extra that brings it.
_OPTIONAL = {
    "torch": ("extract, verify and demo", "torch"),
    "safetensors": ("extract --weights", "torch"),
    "transformers": ("language models from their folder", "llm"),
    "tokenizers": ("text for language models", "llm"),
    "scikit-learn": ("demo", "demo"),
}


@click.command(cls=Verb)
def doctor() -> Answer:
    """Check this machine. The answer is no when programs cannot run on it."""
    checks = [
        Check("npusim", f"{npusim.__version__} in {Path(npusim.__file__).parent}"),
        Check("Python", f"{platform.python_version()} at {sys.executable}"),
        Check("platform", platform.platform()),
        Check("processor", f"{_processor()}, {_cores()} cores for this process"),
        Check("NumPy", np.__version__),
        *_runtime(),
        *(_package(name, *needs) for name, needs in _OPTIONAL.items()),
        _compiler(),
    ]
    ok = all(check.state != "missing" for check in checks)
    marks = {"ok": "✓", "optional": "–", "missing": "✗"}
    rows = [(marks[c.state], c.what, c.found) for c in checks]
    advice = [f"{c.what}: {c.remedy}" for c in checks if c.remedy]
    verdict = "Programs run on this machine." if ok else "Programs cannot run on this machine."
    text = [table(rows), "", verdict, *advice]
    return Answer({"checks": [asdict(check) for check in checks]}, text, ok=ok)


def _runtime() -> list[Check]:
    """The native module, its devices, and a small program run on the preferred one."""
    reinstall = "install npusim from a wheel of this platform, or build it: pip install ."
    try:
        from npusim import _runtime
        from npusim.runtime.libraries import library_folders
    except ImportError as error:
        return [Check("runtime", str(error), "missing", reinstall)]
    except Error as error:  # it was built from another version of the tree
        found = str(error).removesuffix(error.hint).strip()
        return [Check("runtime", found, "missing", error.hint)]
    checks = [Check("runtime", f"{_runtime.__version__}, instruction sets usable here: "
                    f"{', '.join(_runtime.isa_names())}")]  # fmt: skip
    names = _runtime.device_names()
    checks += [_device(name, is_needed=name == names[0]) for name in names]
    for name in names:
        parts = _runtime.device_parts(name, library_folders())
        checks += [
            Check(what, found, "ok" if there else "optional") for what, found, there in parts
        ]
    checks += [_target(name) for name in target_names() if _generates(TargetConfig.named(name))]
    try:
        checks.append(Check("small program", _try(names[0])))
    except Error as error:
        checks.append(Check("small program", str(error), "missing", reinstall))
    return checks


def _device(name: str, *, is_needed: bool) -> Check:
    """A device, or why this machine lacks it; only the one preferred has to be there."""
    try:
        return Check(f"device {name}", npusim.Device(name).description)
    except Error as error:
        return Check(f"device {name}", str(error), "missing" if is_needed else "optional")


def _generates(target: TargetConfig) -> bool:
    """Whether a target is a backend's own, and has device code."""
    return target.name == target.device and bool(target.code_format)


def _target(name: str) -> Check:
    """What a target with device code compiles for."""
    target = TargetConfig.named(name)
    other, *_ = listed_architectures(target.code_format)
    found = f"compiles for {target.arch}, unless told another such as {name}:{other}"
    return Check(f"target {name}", found)


def _try(device: str) -> str:
    """Compiles and runs y = x + x on a device; Error when it does not give what it must."""
    vector = TensorType("float32", (64,))
    add = Node("y", "aten.add.Tensor", ("x", "x"), (Value("y", vector),), {"alpha": 1})
    graph = Graph("doctor", (Value("x", vector),), (Output("y", "y"),), (), (), (add,))
    session = npusim.load(npusim.compile(graph, target=device), device=device)
    x = np.arange(64, dtype=np.float32)
    (y,) = session(x)
    if not np.array_equal(y, x + x):
        raise Error(f"x + x came out wrong on {device}.")
    return f"compiled and run on {device}, with the right result"


def _package(name: str, needed_by: str, extra: str) -> Check:
    try:
        return Check(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        remedy = f"needed by {needed_by}: pip install 'npusim[{extra}]'"
        return Check(name, "not installed", "optional", remedy)


def _compiler() -> Check:
    """A C++ compiler matters to those alone who build npusim themselves."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path:
            return Check("C++ compiler", f"{path} (only building npusim needs one)")
    return Check("C++ compiler", "none (only building npusim needs one)", "optional")


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

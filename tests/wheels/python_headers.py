"""Python's headers and import library for a system whose Python is not here.

The headers of this Python serve: those of other systems differ in `pyconfig.h` alone. What a module
for Windows is linked against is a list of names and which of them are data, and that stands in the
headers: PyAPI_FUNC and PyAPI_DATA are what Python's library exports.
"""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
from pathlib import Path

from tests.wheels.commands import run

_PYCONFIG = Path(__file__).parent / "windows_pyconfig.h"
_EXPORT = re.compile(r"PyAPI_(FUNC|DATA)\s*\([^)]*\)[\s*]*(_?Py\w+)")


def headers(folder: Path, *, windows: bool) -> Path:
    """Copies the headers; returns the folder to include."""
    made = folder / "include"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(sysconfig.get_path("include"), made)
    if windows:
        shutil.copy(_PYCONFIG, made / "pyconfig.h")
    return made


def exports(include: Path) -> dict[str, bool]:
    """Returns the names that Python's library exports, each with whether it is data."""
    found: dict[str, bool] = {}
    for path in sorted(include.rglob("*.h")):
        for kind, name in _EXPORT.findall(path.read_text(encoding="utf-8", errors="replace")):
            found[name] = kind == "DATA"
    return found


def import_library(dlltool: list[str], include: Path, folder: Path) -> Path:
    """Makes what a module for Windows is linked with; returns it."""
    dll = f"python{sys.version_info.major}{sys.version_info.minor}.dll"
    names = exports(include)
    lines = [f"{name} DATA" if data else name for name, data in sorted(names.items())]
    definitions = folder / "python.def"
    definitions.write_text(f"LIBRARY {dll}\nEXPORTS\n" + "\n".join(lines) + "\n")
    library = folder / f"lib{dll}.a"
    run([*dlltool, "-m", "i386:x86-64", "-D", dll, "-d", definitions, "-l", library])
    # CMake adds what this machine's Python is linked with, which is nothing there.
    for name in re.findall(r"-l(\w+)", sysconfig.get_config_var("LIBS") or ""):
        (folder / f"lib{name}.a").write_bytes(b"!<arch>\n")
    return library

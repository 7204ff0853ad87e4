"""Zig's clang as a cross compiler for CMake: one folder of programs for each target.

A wheel for Linux holds two libraries that throw exceptions to each other, libnpusim and the Python
module, and Zig gives each a C++ library of its own. Types are then the same when their names are,
which the C++ library has to be built for: `_type_comparison` says so in the copy of its header that
Zig compiles it with.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.wheels.commands import Failed, run
from tests.wheels.targets import Target

_REQUIREMENTS = Path(__file__).parent / "requirements.txt"
_UNIQUE = "#          define _LIBCPP_TYPEINFO_COMPARISON_IMPLEMENTATION 1\n"

# Zig's linker ends with a segmentation fault on a bundle, as CMake has modules made for macOS.
# Python loads a dynamic library as well.
_DYNAMIC_LIBRARY = """\
for word; do
  shift
  [ "$word" != -bundle ] || word=-dynamiclib
  set -- "$@" "$word"
done
"""


class Toolchain:
    """An environment with Zig and the build tools, under `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        pins = _REQUIREMENTS.read_text()
        stamp = folder / "installed.txt"
        if not stamp.exists() or stamp.read_text() != pins:
            shutil.rmtree(folder, ignore_errors=True)
            run([sys.executable, "-m", "venv", folder])
            run([self.python, "-m", "pip", "install", "--quiet", "-r", _REQUIREMENTS])
            stamp.write_text(pins)
        (self._zig,) = folder.glob("lib/python*/site-packages/ziglang/zig")
        self._library = folder / "zig-lib"
        if not self._library.exists():
            self._type_comparison()

    def _type_comparison(self) -> None:
        source = self._zig.parent / "lib"
        made = self._library.with_suffix(".new")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        for entry in source.iterdir():
            if entry.name != "libcxx":
                (made / entry.name).symlink_to(entry)
        shutil.copytree(source / "libcxx", made / "libcxx")
        header = made / "libcxx" / "include" / "typeinfo"
        text = header.read_text()
        if text.count(_UNIQUE) != 1:
            raise Failed(f"{header} compares types in another way than this script knows")
        header.write_text(text.replace(_UNIQUE, _UNIQUE.replace(" 1\n", " 2\n")))
        made.rename(self._library)

    def compiler(self, target: Target) -> Path:
        """Returns the folder of `cc`, `c++`, `ar` and `ranlib` for a target."""
        folder = self.folder / "targets" / target.zig
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("cc", "c++", "ar", "ranlib"):
            words = f"{name} -target {target.zig}" if name.startswith("c") else name
            script = folder / name
            place = f'export ZIG_LIB_DIR="{self._library}"'
            kept = _DYNAMIC_LIBRARY if target.system == "Darwin" and name.startswith("c") else ""
            script.write_text(f'#!/bin/sh\n{place}\n{kept}exec "{self._zig}" {words} "$@"\n')
            script.chmod(0o755)
        return folder

    def dlltool(self) -> list[str]:
        """Returns the command that makes import libraries for Windows."""
        return [f"{self._zig}", "dlltool"]

    def environment(self) -> dict[str, str]:
        """Returns variables that have the build tools of this environment found first."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        # Zig keeps what it compiled by itself.
        return {"PATH": path, "CMAKE_CXX_COMPILER_LAUNCHER": "", "PYTHONPATH": ""}

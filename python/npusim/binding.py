"""The native module, `npusim._runtime`, where it was built with these Python files.

Owns the check that both are of one version. Without it a Python file newer than the build calls
what is not there yet, or lays out the parameters of a kernel as the kernel does not read them. What
both sides agree on stands in two files: the declarations of the module (`_runtime.pyi`, held to it
by a test), and the parameters of the kernels (`abi.h`). Their digests are compiled into the module.
Also owns where the sources of kernels lie, and what native programs are built with.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from npusim.errors import Error

_PACKAGE = Path(__file__).resolve().parent


def kernel_root() -> Path:
    """Returns the folder of kernels' sources: the wheel's, or the repository's."""
    installed = _PACKAGE / "kernels"
    return installed if installed.is_dir() else _PACKAGE.parents[1] / "kernels"


def cmake_dir() -> Path:
    """Returns the folder of npusimConfig.cmake, for CMAKE_PREFIX_PATH or npusim_DIR.

    Raises:
        Error: this installation has none: it is no wheel for Linux.
    """
    spec = importlib.util.find_spec("npusim._runtime")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "lib" / "cmake" / "npusim"
        if (folder / "npusimConfig.cmake").is_file():
            return folder
    raise Error(
        f"This installation of npusim ({_PACKAGE}) brings no libnpusim for native programs.",
        hint="Install npusim's wheel for Linux, or build libnpusim: docs/embedding.md.",
    )


def interface() -> str:
    """Returns the digests of the files that both sides agree on, as CMakeLists.txt forms them."""
    files = (_PACKAGE / "_runtime.pyi", kernel_root() / "shared" / "abi.h")
    return "".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)


def native_module() -> ModuleType:
    """Returns `npusim._runtime`.

    Raises:
        ImportError: it is not there, or cannot be loaded.
        Error: it was built from another version of npusim, or this Python is free-threaded.
    """
    if "free-threading" in sys.version:
        raise Error(
            f"npusim does not run in a free-threaded Python, as this one is ({sys.version}): what "
            "sessions and buffers keep for Python is guarded by its global interpreter lock.",
            hint="Use the ordinary build of Python, python3.13 instead of python3.13t.",
        )
    module = importlib.import_module("npusim._runtime")
    if getattr(module, "__interface__", None) != interface():
        # The next import has to come here again, and not to find the module in its package.
        vars(sys.modules["npusim"]).pop("_runtime", None)
        raise Error(
            f"The native module {module.__file__} was built from another version of npusim than "
            f"the Python files in {_PACKAGE}.",
            hint=_remedy(),
        )
    return module


def _remedy() -> str:
    root = _PACKAGE.parents[1]
    if (root / "pyproject.toml").is_file():
        return f"Build it again: pip install -e {root} (or any make target that runs tests)."
    return "Install npusim again: pip install --force-reinstall npusim, or the wheel it came from."

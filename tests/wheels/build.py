"""Builds a wheel for another platform, and the C++ tests with it in the same folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.wheels import python_headers
from tests.wheels.commands import ROOT, Failed, run
from tests.wheels.targets import Target
from tests.wheels.toolchain import Toolchain


def _definitions(toolchain: Toolchain, target: Target, work: Path) -> dict[str, str]:
    tools = toolchain.compiler(target)
    include = python_headers.headers(work / "python", windows=target.system == "Windows")
    own = {"Python_INCLUDE_DIR": f"{include}"}
    if target.system == "Windows":
        library = python_headers.import_library(toolchain.dlltool(), include, work / "python")
        flags = f"-s -L{library.parent}"
        own |= {"Python_LIBRARY": f"{library}", "CMAKE_MODULE_LINKER_FLAGS": flags}
    if target.system == "Darwin":
        # Apple's frameworks cannot be had here, so that part is left out; and there is nothing to
        # rename in a module that names no library of its own.
        own |= {"NPUSIM_METAL": "OFF", "CMAKE_INSTALL_NAME_TOOL": "/bin/true"}
    return {
        "CMAKE_SYSTEM_NAME": target.system,
        "CMAKE_SYSTEM_PROCESSOR": target.processor,
        "CMAKE_C_COMPILER": f"{tools / 'cc'}",
        "CMAKE_CXX_COMPILER": f"{tools / 'c++'}",
        "CMAKE_AR": f"{tools / 'ar'}",
        "CMAKE_RANLIB": f"{tools / 'ranlib'}",
        "CMAKE_SHARED_LINKER_FLAGS": "-s",
        "CMAKE_MODULE_LINKER_FLAGS": "-s",
        "PYTHON_MODULE_EXTENSION": target.suffix,
        "PYTHON_MODULE_DEBUG_POSTFIX": "",
        "PYTHON_IS_DEBUG": "0",
        "NPUSIM_WERROR": "ON",
    } | own


def build_wheel(toolchain: Toolchain, target: Target, work: Path, out: Path) -> Path:
    """Builds in `work / "build"`; returns the wheel, which goes to `out`."""
    before = work / "wheel"
    shutil.rmtree(before, ignore_errors=True)
    settings = {
        "build-dir": f"{work / 'build'}",
        "install.strip": "false",  # the linker has done it, for systems that strip does not know
        **{f"cmake.define.{k}": v for k, v in _definitions(toolchain, target, work).items()},
    }
    run(
        [toolchain.python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         *(f"--config-settings={key}={value}" for key, value in settings.items()),
         "-w", before, ROOT],
        {**toolchain.environment(), "_PYTHON_HOST_PLATFORM": target.python_platform,
         "SETUPTOOLS_EXT_SUFFIX": target.suffix},
    )  # fmt: skip
    (built,) = before.glob("npusim-*.whl")
    if target.system == "Linux":  # which glibc it is linked with, nobody else knows
        retag: list[str | Path] = [toolchain.python, "-m", "wheel", "tags", "--remove"]
        run([*retag, f"--platform-tag={target.platform_tag}", built])
    (wheel,) = before.glob("npusim-*.whl")
    if not wheel.stem.endswith(target.tag):
        raise Failed(f"{wheel.name} is not tagged {target.tag}")
    out.mkdir(parents=True, exist_ok=True)
    return wheel.replace(out / wheel.name)


def build_tests(toolchain: Toolchain, work: Path) -> Path:
    """Builds the C++ tests beside what the wheel is made of; returns their folder."""
    build = work / "build"
    run(["cmake", "-S", ROOT, "-B", build, "-DNPUSIM_TESTS=ON"], toolchain.environment())
    run(["cmake", "--build", build], toolchain.environment())
    return build

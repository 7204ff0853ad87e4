"""The platforms that wheels are built for."""

from __future__ import annotations

import sys
from dataclasses import dataclass

_TAG = f"{sys.version_info.major}{sys.version_info.minor}"


@dataclass(frozen=True)
class Target:
    """A platform: what the tools call it."""

    name: str
    zig: str  # -target of Zig's compiler
    system: str  # CMAKE_SYSTEM_NAME
    processor: str  # CMAKE_SYSTEM_PROCESSOR
    platform_tag: str  # of the wheel
    suffix: str  # of the Python module
    floor: str  # the oldest system, in words

    @property
    def python_platform(self) -> str:
        """What Python itself calls the platform."""
        return f"linux-{self.processor}" if self.system == "Linux" else self.platform_tag

    @property
    def tag(self) -> str:
        """The end of the wheel's name: for one Python, with its lock, and its module interface."""
        return f"cp{_TAG}-cp{_TAG}-{self.platform_tag}"


TARGETS = (
    Target(
        "linux-x86_64",
        "x86_64-linux-gnu.2.28",
        "Linux",
        "x86_64",
        "manylinux_2_28_x86_64",
        f".cpython-{_TAG}-x86_64-linux-gnu.so",
        "glibc 2.28",
    ),
    Target(
        "linux-aarch64",
        "aarch64-linux-gnu.2.28",
        "Linux",
        "aarch64",
        "manylinux_2_28_aarch64",
        f".cpython-{_TAG}-aarch64-linux-gnu.so",
        "glibc 2.28",
    ),
    Target(
        "macos-arm64",
        "aarch64-macos.13.3",
        "Darwin",
        "arm64",
        "macosx_13_0_arm64",
        f".cpython-{_TAG}-darwin.so",
        "macOS 13.3",
    ),
    Target(
        "windows-x86_64",
        "x86_64-windows-gnu",
        "Windows",
        "x86_64",
        "win_amd64",
        f".cp{_TAG}-win_amd64.pyd",
        "Windows 10",
    ),
)

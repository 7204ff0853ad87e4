"""Debian's files of another release or processor, unpacked in a folder and not installed."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.wheels.commands import Missing, run

_MIRROR = "http://deb.debian.org/debian"


@dataclass(frozen=True)
class Userland:
    """A release for a processor."""

    release: str
    processor: str  # as Debian calls it
    words: str  # for people

    def unpack(self, folder: Path) -> Path:
        """Downloads Python, NumPy and what they need, once; returns the folder they are in."""
        made = folder / f"{self.release}-{self.processor}"
        if made.exists():
            return made
        if shutil.which("mmdebstrap") is None:
            raise Missing("mmdebstrap is not installed (Debian: apt-get install mmdebstrap)")
        partial = made.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        made.parent.mkdir(parents=True, exist_ok=True)
        run(
            ["mmdebstrap", "--quiet", "--variant=extract", f"--architectures={self.processor}",
             "--include=python3,python3-numpy", self.release, partial, _MIRROR], limit=900,
        )  # fmt: skip
        partial.rename(made)
        return made


OLD = Userland("bullseye", "amd64", "Debian 11 (glibc 2.31)")
ARM = Userland("bookworm", "arm64", "Debian 12 for arm64")


def old_loader(root: Path) -> list[str]:
    """Returns what runs a program of this machine with the C library under `root`."""
    if platform.machine() != "x86_64":
        raise Missing("this machine has no x86-64 processor")
    folders = [root / "lib" / "x86_64-linux-gnu", root / "usr" / "lib" / "x86_64-linux-gnu"]
    loader = f"{root / 'lib64' / 'ld-linux-x86-64.so.2'}"
    if not Path(loader).exists():  # a link to an absolute path
        loader = f"{folders[0] / 'ld-linux-x86-64.so.2'}"
    return [loader, "--library-path", ":".join(map(str, folders))]


def emulator(name: str, *options: str) -> list[str]:
    """Returns qemu's command for another processor of the Linux user's mode."""
    for program in (f"qemu-{name}-static", f"qemu-{name}"):
        if (found := shutil.which(program)) is not None:
            return [found, *options]
    raise Missing(f"qemu-{name} is not installed (Debian: apt-get install qemu-user-static)")


def wine(prefix: Path, libraries: Path) -> list[str]:
    """Returns what runs programs for 64-bit Windows: its drives, and where more DLLs lie.

    The drives are made where they are not there yet.
    """
    for program in ("wine64", "wine", "/usr/lib/wine/wine64"):
        if (found := shutil.which(program)) is not None:
            where = [f"WINEPREFIX={prefix}", f"WINEPATH=Z:{libraries}", "WINEDEBUG=-all"]
            command = ["env", *where, found]
            if not prefix.exists():  # made by one, before several are run at once
                run([*command, "wineboot", "--init"])
            return command
    raise Missing("wine is not installed (Debian: apt-get install wine64)")

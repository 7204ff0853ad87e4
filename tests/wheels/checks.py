"""What a wheel asks of the system it is installed on, read from its files."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from tests.wheels.commands import Failed, run
from tests.wheels.targets import Target
from tests.wheels.toolchain import Toolchain

MOST_BYTES = 8_000_000  # of a wheel
# Libraries that manylinux lets a wheel expect; libstdc++ is none of them here: Zig links its own.
_EXPECTED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1",
             "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libnpusim-python.so.1"}  # fmt: skip

# What every macOS and every Windows since 10 brings, and Python itself.
_EXPECTED_MACOS = re.compile(r"/usr/lib/(libSystem\.B|libc\+\+\.1|libc\+\+abi)\.dylib")
_EXPECTED_WINDOWS = re.compile(
    r"(kernel32|advapi32|ntdll|user32|shell32|ws2_32|python3\d+|api-ms-win-(crt|core)-[\w-]+)\.dll",
    re.IGNORECASE,
)

# Run by the Python of the tool chain, which has the readers of each format.
_VERSIONS = """
import sys
from elftools.elf.elffile import ELFFile
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        elf = ELFFile(file)
        for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED"):
            print("needs", tag.needed)
        needed = elf.get_section_by_name(".gnu.version_r")
        for library, versions in needed.iter_versions() if needed else ():
            for version in versions:
                print("version", version.name)
"""
_MACOS = """
import sys
from macholib.MachO import MachO
from macholib.SymbolTable import SymbolTable
ANYWHERE = (0, 254)  # in place of a library's number: Zig's linker writes 0, Apple's 254
for path in sys.argv[1:]:
    for header in MachO(path).headers:
        for _, _, name in header.walkRelocatables():
            print("needs", name)
        for load, command, _ in header.commands:
            if load.get_cmd_name() == "LC_BUILD_VERSION":
                print("version", f"{command.minos >> 16}.{command.minos >> 8 & 255}")
    for symbol, name in SymbolTable(MachO(path)).undefsyms:
        if symbol.n_desc >> 8 in ANYWHERE:
            print("free", name.decode())
"""
_WINDOWS = """
import sys
import pefile
for path in sys.argv[1:]:
    image = pefile.PE(path)
    for library in image.DIRECTORY_ENTRY_IMPORT:
        print("needs", library.dll.decode())
    names = [symbol.name.decode() for symbol in image.DIRECTORY_ENTRY_EXPORT.symbols]
    # Exceptions of pybind11 are for other modules to catch.
    print("version", [name for name in names if "8pybind11" not in name])
"""


def _compiled(wheel: Path, folder: Path) -> list[Path]:
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if re.search(r"\.(so(\.\d+)*|pyd|dll)$", n)]
        return [Path(archive.extract(name, folder)) for name in names]


def check_size(wheel: Path) -> int:
    """Returns the bytes of a wheel."""
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        raise Failed(f"{wheel.name} has {size} bytes, at most {MOST_BYTES}")
    return size


def check_linux(toolchain: Toolchain, target: Target, wheel: Path, work: Path) -> str:
    """Holds a wheel to its tag; returns the newest symbol version of glibc that it asks for."""
    said = run([toolchain.python, "-m", "auditwheel", "show", wheel], toolchain.environment())
    words = " ".join(said.split())
    tags = re.findall(r'consistent with the following platform tag: "(\w+)"', words)
    most = tuple(map(int, re.findall(r"_(\d+)_(\d+)_", target.platform_tag)[0]))
    allowed = [tuple(map(int, re.findall(r"_(\d+)_(\d+)_", tag)[0])) for tag in tags]
    if not allowed or allowed[0] > most:
        raise Failed(f"auditwheel does not take {wheel.name} for {target.platform_tag}:\n{said}")
    facts = _facts(toolchain, _VERSIONS, wheel, work)
    needs, versions = facts["needs"], facts["version"]
    if not needs <= _EXPECTED:
        raise Failed(f"{wheel.name} needs {needs - _EXPECTED}")
    ours = [v.removeprefix("GLIBC_") for v in versions if v.startswith("GLIBC_")]
    newest = max(tuple(map(int, v.split("."))) for v in ours)
    if newest > most:
        raise Failed(f"{wheel.name} asks for glibc {newest}, its tag says {most}")
    return ".".join(map(str, newest))


def _facts(toolchain: Toolchain, reader: str, wheel: Path, work: Path) -> dict[str, set[str]]:
    """Returns what a reader prints of a wheel's files, by the first word of its lines."""
    facts: dict[str, set[str]] = {"needs": set(), "version": set(), "free": set()}
    for line in run([toolchain.python, "-c", reader, *_compiled(wheel, work)]).splitlines():
        kind, _, fact = line.partition(" ")
        facts[kind].add(fact)
    return facts


def _hold_to(expected: re.Pattern[str], needs: set[str], wheel: Path) -> None:
    unknown = {name for name in needs if not expected.fullmatch(name)}
    if unknown or not needs:
        raise Failed(f"{wheel.name} needs {unknown or 'nothing at all'}")


def check_macos(toolchain: Toolchain, wheel: Path, work: Path) -> str:
    """Holds a wheel to what macOS and Python bring; returns the release it is linked for."""
    facts = _facts(toolchain, _MACOS, wheel, work)
    needs, versions = facts["needs"], facts["version"]
    _hold_to(_EXPECTED_MACOS, needs, wheel)
    if versions != {"13.3"}:
        raise Failed(f"{wheel.name} is linked for macOS {versions}, not 13.3")
    unknown = {name for name in facts["free"] if not re.match("__?Py", name)}
    if unknown or not facts["free"]:
        raise Failed(f"{wheel.name} expects {unknown or 'nothing'} of the process, not Python's")
    return f"linked for macOS 13.3 with {', '.join(sorted(needs))}"


def check_windows(toolchain: Toolchain, wheel: Path, work: Path) -> str:
    """Holds a wheel to what Windows brings, and the module to its one symbol."""
    facts = _facts(toolchain, _WINDOWS, wheel, work)
    needs, versions = facts["needs"], facts["version"]
    _hold_to(_EXPECTED_WINDOWS, needs, wheel)
    if versions != {"['PyInit__runtime']"}:
        raise Failed(f"{wheel.name} exports {versions}")
    own = {name for name in needs if not name.startswith("api-ms-win-crt")}
    return f"exports PyInit__runtime alone, needs {', '.join(sorted(own))} and the C library"

"""What differs between operating systems stands in cpp/platform, and nowhere else in C++."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLATFORM = ROOT / "cpp" / "platform"

# Questions which system it is, and the headers of one system or of POSIX alone.
_ASKS = re.compile(
    r"\b(_WIN32|_WIN64|__APPLE__|__linux__|__unix__|_POSIX_VERSION|__MINGW32__|_MSC_VER)\b"
)
_HEADER = re.compile(
    r"#\s*include\s*<((?:unistd|fcntl|dlfcn|link|pthread|sched|signal|csignal|poll|spawn|dirent|io|"
    r"process|direct|windows|cpuid|intrin)\.?h?|(?:sys|linux|mach|netinet|arpa)/.*)>"
)
# Facts of a process that other systems have elsewhere, and what asks a library of the compiler's
# that not every tool chain sets up.
_CALLS = re.compile(r"/proc/|\b(__builtin_cpu_\w+|getauxval|sysctlbyname|dlopen|mmap|madvise)\s*\(")
# The header of the C interface says what a symbol of a DLL is; a fuzzer's files live in memory, by
# a call that Linux alone has.
_EXEMPT = {"include/npusim/npusim.h", "cpp/fuzz/session_fuzzer.cpp"}


def problems(name: str, text: str) -> list[str]:
    """Returns the lines of a source that belong in cpp/platform, each as "name:number: line"."""
    code = re.sub(r"//[^\n]*", "", text)
    return [
        f"{name}:{number}: {line.strip()}"
        for number, line in enumerate(code.splitlines(), 1)
        if any(form.search(line) for form in (_ASKS, _HEADER, _CALLS))
    ]


def _sources() -> list[Path]:
    folders = (
        ROOT / "cpp",
        ROOT / "include",
        ROOT / "kernels" / "cpu",
        ROOT / "kernels" / "shared",
    )
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in found if path.suffix in {".h", ".hpp", ".cpp", ".mm"}]


def test_one_folder_knows_the_system() -> None:
    found: list[str] = []
    for path in _sources():
        name = path.relative_to(ROOT).as_posix()
        if PLATFORM not in path.parents and name not in _EXEMPT:
            found += problems(name, path.read_text(encoding="utf-8"))
    assert not found, "move it behind cpp/platform:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "#if defined(_WIN32)",
        "#ifdef __linux__",
        "#elif defined(__APPLE__)",
        "#include <unistd.h>",
        "#  include <sys/mman.h>",
        "#include <windows.h>",
        '  std::ifstream file("/proc/self/maps");',
        '  if (__builtin_cpu_supports("avx2")) return;',
        "  void* p = ::mmap(nullptr, 1, 0, 0, -1, 0);",
    ],
)
def test_lint_sees(line: str) -> None:
    assert problems("a.cpp", f"int a;\n{line}\n") == [f"a.cpp:2: {line.strip()}"]


@pytest.mark.parametrize(
    "line", ["// as on __linux__", "#include <string>", "#if defined(__x86_64__)", "map_file(f);"]
)
def test_lint_leaves(line: str) -> None:
    assert problems("a.cpp", line) == []


def test_each_system_has_every_part() -> None:
    """What one system implements, the others do; libraries are loaded for CUDA alone."""
    stems = {
        system: {path.stem for path in (PLATFORM / system).glob("*.cpp")}
        for system in ("posix", "linux", "macos", "windows")
    }
    windows = stems["windows"]
    assert stems["posix"] | stems["linux"] == windows
    assert stems["posix"] | stems["macos"] == windows - {"library"}
    headers = {path.stem for path in PLATFORM.glob("*.h")}
    assert headers == windows

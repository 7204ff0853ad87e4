"""Compiles MSL text to shared libraries that the engine loads; `python -m …compile_library`.

Three runs of clang a text: preprocessing, the check of address spaces, and code, which the linker
alone makes a library of. One process serves all texts of a process of the engine: Python's start
costs as much as a run of clang.
"""

from __future__ import annotations

import argparse
import functools
import re
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.softmetal.msl import lints
from tests.softmetal.msl.rewrite import Rewritten, rewrite
from tests.softmetal.msl.tokens import SOURCE_NAME, Refused

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tests" / "softmetal"
_LANGUAGE = ["-x", "c++", "-std=c++14", "-nostdinc++", "-fsigned-char", "-fno-exceptions"]
_LANGUAGE += ["-fno-rtti", "-Xclang", "-cl-single-precision-constant", "-ffp-contract=off"]
_LANGUAGE += ["-flax-vector-conversions=none", "-fno-caret-diagnostics", "-fno-color-diagnostics"]
# Round after every operation, as the types say.
_ROUNDING = ["-Xclang", "-ffloat16-excess-precision=none"]
_ROUNDING += ["-Xclang", "-fbfloat16-excess-precision=none"]
_REFUSED_WARNINGS = ["c++17-extensions", "c++20-extensions", "c++23-extensions", "return-type"]
_REFUSED_WARNINGS += ["cast-qual", "uninitialized", "vla-extension", "vla-cxx-extension"]
_REFUSED_WARNINGS += ["implicit-function-declaration", "gnu-designator", "c99-extensions"]
_CODE = ["-O2", "-fPIC", "-c", "-w", "-fwrapv", "-fno-strict-aliasing", "-fno-math-errno"]
_CODE += ["-fno-stack-protector", "-fvisibility=hidden", "-fno-finite-loops"]
# What C++ leaves undefined shows: locals without a value are NaN or a pattern, an index outside of
# an array and a shift by its type's width are traps.
_CODE += ["-ftrivial-auto-var-init=pattern", "-fsanitize=array-bounds,local-bounds,shift-exponent"]
_CODE += ["-fsanitize-trap=array-bounds,local-bounds,shift-exponent"]


class Failed(Exception):
    """clang refused the text; the argument is its messages."""


def preprocess(clang: str, source: str, macros: Sequence[str]) -> str:
    """Text without macros and comments, with line markers. Raises Refused or Failed."""
    lints.check_includes(source)
    text = re.sub(r"(?m)^(\s*#\s*include\s*)<\w+>", r"\1<metal_stdlib>", source)
    defines = [f"-D{macro}" for macro in macros]
    return _run(
        [clang, "-E", "-nostdinc", "-isystem", str(FOLDER / "shim_macros"), *_LANGUAGE, *defines],
        text,
    )


def rewritten(clang: str, source: str, macros: Sequence[str]) -> Rewritten:
    """The two texts for clang, behind all lints and the address-space check."""
    result = rewrite(preprocess(clang, source, macros))
    refused = ["-Wno-everything", "-Wimplicit-float-conversion"]
    refused += ["-Wno-implicit-int-float-conversion"]
    refused += [f"-Werror={name}" for name in _REFUSED_WARNINGS]
    messages = _run(
        [clang, "-fsyntax-only", "-DMSL_STRICT", *_includes(), *_LANGUAGE, *_ROUNDING, *refused],
        _prelude(result.strict),
        keep_messages=True,
    )
    for line in messages.splitlines():
        if "warning:" in line and re.search(r"to '(bfloat|__bf16)", line):
            raise Failed(
                line.replace("warning:", "error:") + " (write the conversion to bfloat out)"
            )
    return result


def compile_library(
    clang: str, source: str, macros: Sequence[str], output: Path, flags: Sequence[str] = ()
) -> None:
    """Writes the library. Raises Refused or Failed."""
    text = rewritten(clang, source, macros).executed
    values = "alignas(32) static unsigned char softmetal_constant_values[32 * 64];"
    with tempfile.TemporaryDirectory() as folder:
        code = f"{folder}/code.o"
        _run(
            [clang, *_includes(), *_LANGUAGE, *_ROUNDING, *_CODE, *flags, "-o", code],
            _prelude(text, values),
        )
        linker, *libraries = _linker(clang)
        link = [linker, "-shared", "--eh-frame-hdr", "-o", str(output), code, *libraries]
        done = subprocess.run(link, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(done.stderr or f"the linker ended with {done.returncode}")


@functools.cache
def _linker(clang: str) -> tuple[str, ...]:
    """The linker that clang would start, and what it would link; clang's driver costs more."""
    wanted = [["-print-prog-name=ld"]]
    wanted += [["--rtlib=compiler-rt", "-print-libgcc-file-name"]]
    wanted += [[f"-print-file-name={name}"] for name in ("libm.so.6", "libc.so.6")]
    said = [subprocess.check_output([clang, *words], text=True).strip() for words in wanted]
    return tuple(said)


def _includes() -> list[str]:
    return ["-isystem", str(FOLDER / "shim"), "-isystem", str(ROOT)]


def _prelude(text: str, declarations: str = "") -> str:
    return f'#include <metal_stdlib>\n{declarations}\n# 1 "{SOURCE_NAME}"\n{text}'


def _run(command: list[str], text: str, *, keep_messages: bool = False) -> str:
    """What clang wrote for `text`; its messages where those are wanted."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / SOURCE_NAME).write_text(text, encoding="utf-8")
        done = subprocess.run(
            [*command, SOURCE_NAME], cwd=folder, capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise Failed(_explained(done.stderr) or f"clang ended with {done.returncode}")
    return done.stderr if keep_messages else done.stdout


def _explained(messages: str) -> str:
    """clang's errors, with what to do where they say little."""
    lines = [
        line
        for line in messages.splitlines()
        if "warning:" not in line and not line.startswith("In file included")
    ]
    kept = []
    for index, line in enumerate(lines):
        inside = re.match(r"/.*?:\d+:\d+: (error: .*)", line)
        place = next((n for n in lines[index + 1 :] if n.startswith(f"{SOURCE_NAME}:")), None)
        if inside and place:  # in the shim: say where it was asked for
            line = f"{place.split(' ')[0]} {inside[1]}"
        kept.append(line)
    if re.search(r"(constructor|operator).*not viable.*address space", messages):
        kept.append(
            "(whole structs are not copied between address spaces here: read their members)"
        )
    return "\n".join(kept).strip()


def _answer(arguments: Sequence[str]) -> str:
    """Does what one command line asks for; returns what refuses the text, empty where nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clang", default="clang++")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--macro", action="append", default=[], help="NAME=VALUE")
    parser.add_argument("--flag", action="append", default=[], help="for code, such as -mfma")
    options = parser.parse_args(arguments)
    try:
        source = options.source.read_text(encoding="utf-8")
        compile_library(options.clang, source, options.macro, options.output, options.flag)
    except (Refused, Failed) as error:
        return str(error) or "the text is refused"
    return ""


def _requests(channel: socket.socket) -> Iterator[list[str]]:
    """Command lines: each word ends with a zero byte, and each line with another one."""
    waiting = b""
    while received := channel.recv(1 << 16):
        waiting += received
        while b"\0\0" in waiting:
            line, waiting = waiting.split(b"\0\0", 1)
            yield line.decode().split("\0")


def serve(channel: socket.socket) -> None:
    """Answers each command line with a zero-ended message, until nobody asks any more."""
    for arguments in _requests(channel):
        try:
            message = _answer(arguments)
        except Exception:  # whatever is wrong with one text, the next one is asked for
            message = traceback.format_exc()
        channel.sendall(message.replace("\0", " ").encode() + b"\0")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles what a command line names; of none, what is asked for through stdin, a socket."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        with socket.socket(fileno=sys.stdin.fileno()) as channel:
            serve(channel)
        return 0
    if message := _answer(words):
        print(message)
    return bool(message)


if __name__ == "__main__":
    sys.exit(main())

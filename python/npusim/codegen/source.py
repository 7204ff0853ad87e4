"""Source texts of kernels: their files, headers in place of their inclusion, exact numbers.

Compilers on a device's machine have no files, so that a kernel's text has to be whole. What each
language puts around it is its own package's (`codegen/cuda/source.py`, `codegen/metal/source.py`).
"""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from struct import pack as pack_bits
from struct import unpack as unpack_bits

from npusim.binding import kernel_root

_INCLUDE = re.compile(r'^#include "(kernels/[\w./]+)"\s*$', re.MULTILINE)
_PRAGMA = re.compile(r"^#pragma once\s*$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*//[^\n]*\n", re.MULTILINE)


@cache
def stem_files(device: str, suffix: str) -> dict[str, Path]:
    """Returns the source of every stem, its own or what it shares with other GPUs; the folders say
    what stems compute, not which there are.

    Args:
        device: the folder of `kernels/`.
        suffix: of its sources, such as "cu".
    """
    found = (*kernel_root().glob("gpu/*/*.gpu"), *kernel_root().glob(f"{device}/*/*.{suffix}"))
    return {path.stem: path for path in sorted(found, key=lambda path: path.stem)}


def float_literal(value: float, kind: str) -> str:
    """Returns a C++ constant expression of exactly this float or double ("f32", "f64")."""
    type, suffix, pack, bits = (
        ("float", "f", "<f", "<I") if kind == "f32" else ("double", "", "<d", "<Q")
    )
    if math.isfinite(value):
        return f"{value.hex()}{suffix}"
    raw = unpack_bits(bits, pack_bits(pack, value))[0]
    return f"__builtin_bit_cast({type}, {raw:#x}{'u' if suffix else 'ull'})"


def inlined(text: str, seen: set[str], device: str) -> str:
    """Returns a text with the headers it includes in their place, each at its first inclusion.

    That is not for the preprocessor to decide, so what several branches of an `#if` include has to
    be included before them.

    Args:
        seen: headers that the text before has; those of this one are added.
        device: whose headers `kernels/device/` means.
    """

    def header(match: re.Match[str]) -> str:
        name = match[1].replace("kernels/device/", f"kernels/{device}/common/")
        if name in seen:
            return ""
        seen.add(name)
        return inlined(_header(name), seen, device)

    return _INCLUDE.sub(header, text)


def is_zero(value: int | float, kind: str) -> bool:
    """Tells whether a number is all zero bits (-0.0 is not)."""
    return value == 0 and not (kind in ("f32", "f64") and math.copysign(1, value) < 0)


@cache
def _header(name: str) -> str:
    """Returns a header without the comments nobody reads in a compiled program."""
    text = (kernel_root().parent / name).read_text("utf-8")
    return _COMMENT.sub("", _PRAGMA.sub("", text))

"""The source a kernel is compiled from: one self-contained text for a stem and its parameters.

Owns the prologue, which makes the parameter struct a constant, the inclusion of headers, whose
text takes the place of the `#include` so that NVRTC and the runtime need no files, and the calls
that order launches (kernels/cuda/common/dependent_launch.h).
"""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from struct import pack as pack_bits
from struct import unpack as unpack_bits

from npusim.abi.header import struct
from npusim.abi.kernels import KERNELS, KernelDef, Params

_INCLUDE = re.compile(r'^#include "(kernels/[\w./]+)"\s*$', re.MULTILINE)
_PRAGMA = re.compile(r"^#pragma once\s*$", re.MULTILINE)
_SHARED = '#include "kernels/shared/abi.h"\n#include "kernels/cuda/common/dependent_launch.h"\n'
_ENTRY = re.compile(r'^extern "C" __global__ void[^{;]*\{$', re.MULTILINE)
_LAUNCHES_DEPENDENTS, _WAITS = (
    "\n  npusim::launch_dependents();",
    "\n  npusim::wait_on_dependencies();",
)
_COMMENT = re.compile(r"^\s*//[^\n]*\n", re.MULTILINE)

# NVRTC has no <cstdint>; the header for a host compiler brings the same names.
_INTEGERS = """\
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#endif
"""


def kernel_root() -> Path:
    """Returns the folder that holds `cuda/` and `shared/`: the wheel's, or the repository's."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "kernels"
    return installed if installed.is_dir() else package.parents[1] / "kernels"


def stem_source(stem: str) -> str | None:
    """Returns the text of a stem's CUDA source, or None when there is no such file."""
    path = _stem_files().get(stem)
    return None if path is None else path.read_text("utf-8")


@cache
def _stem_files() -> dict[str, Path]:
    """Returns the source of every stem; the folders say what stems compute, not which there are."""
    return {path.stem: path for path in sorted(kernel_root().glob("cuda/*/*.cu"))}


def kernel_source(stem: str, params: Params, body: str, unwritten: int = 0) -> str:
    """Returns what NVRTC is given: integers, abi.h, the parameters, and the kernel's own text.

    Args:
        unwritten: the operands (bit i: operand i) that nothing writes before the command in its
            method.
    """
    seen: set[str] = set()
    shared = _inlined(_SHARED, seen)
    text = _inlined(body, seen)
    kernel = KERNELS[stem]
    constants = struct(kernel) if kernel.generated_only else ""
    constants += prologue(kernel, params)
    if reads_before_wait(stem):
        constants += (
            f"namespace npusim {{\nconstexpr unsigned unwritten_operands = {unwritten:#x};\n}}\n"
        )
    else:
        starts = "" if "launch_dependents()" in text else _LAUNCHES_DEPENDENTS
        text = _ENTRY.sub(rf"\g<0>{starts}{_WAITS}", text)
    return "\n".join((_INTEGERS, shared, constants, text))


@cache
def reads_before_wait(stem: str) -> bool:
    """Tells whether a stem's source has something to do before it waits for its operands."""
    return "unwritten_operands" in _inlined(stem_source(stem) or "", set())


def prologue(kernel: KernelDef, params: Params) -> str:
    """Returns the parameter struct as a constant, every field written out."""
    rows = [f"    .{name} = {_literal(params[name], kind)}," for name, kind, _ in kernel.fields]
    return (
        f"namespace npusim {{\nconstexpr abi::{kernel.struct_name} params = {{\n"
        + "\n".join(rows)
        + "\n};\n}  // namespace npusim\n"
    )


def _literal(value: int | float | tuple[int | float, ...], kind: str) -> str:
    if isinstance(value, tuple):
        last = max((i + 1 for i, v in enumerate(value) if _bits(v, kind)), default=0)
        shown = ", ".join(_literal(v, kind) for v in value[:last])
        return f"{{{shown}}}"
    if kind in ("f32", "f64"):
        return float_literal(float(value), kind)
    if kind == "i64":
        return f"{value}LL" if value > -(2**63) else "-9223372036854775807LL - 1"
    return str(value) if value > -(2**31) else "-2147483647 - 1"


def _bits(value: int | float, kind: str) -> bool:
    """Tells whether a number is anything but all zero bits (-0.0 is)."""
    return value != 0 or (kind in ("f32", "f64") and math.copysign(1, value) < 0)


def float_literal(value: float, kind: str) -> str:
    """Returns a constant expression of exactly this float or double ("f32", "f64")."""
    type, suffix, pack, bits = (
        ("float", "f", "<f", "<I") if kind == "f32" else ("double", "", "<d", "<Q")
    )
    if math.isfinite(value):
        return f"{value.hex()}{suffix}"
    raw = unpack_bits(bits, pack_bits(pack, value))[0]
    return f"__builtin_bit_cast({type}, {raw:#x}{'u' if suffix else 'ull'})"


def _inlined(text: str, seen: set[str]) -> str:
    """Returns a text with the headers it includes in their place, each at its first inclusion.

    That is not for the preprocessor to decide, so what several branches of an `#if` include has to
    be included before them.
    """

    def header(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        return _inlined(_header(name), seen)

    return _INCLUDE.sub(header, text)


@cache
def _header(name: str) -> str:
    """Returns a header without the comments nobody reads in a compiled program."""
    text = (kernel_root().parent / name).read_text("utf-8")
    return _COMMENT.sub("", _PRAGMA.sub("", text))

"""The source a Metal kernel is compiled from: one self-contained MSL text for each command.

Owns the prologue, which makes the parameter struct a constant of the program. MSL is C++14 without
double: numbers of 64 bits among the parameters are rounded to float. The field `kernel` is called
`kernel_size` there.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Collection, Mapping

from npusim.abi.header import opcodes
from npusim.abi.header import struct as struct_of
from npusim.abi.kernels import KERNELS, KernelDef, Params
from npusim.codegen.source import inlined, is_zero, stem_files

_OPENING = "#include <metal_stdlib>\n"
# A field whose name is a word of MSL: where it is declared, and where a shared text reads it.
_RESERVED = re.compile(r"(?<= )kernel(?=\[)|(?<=params\.)kernel\b")
# What texts may ask for by NPUSIM_HAS_…, 1 or 0 (`targets/features.py`).
_FEATURES = ("bfloat", "simdgroup_matrix")
_SMALLEST = {32: "(-2147483647 - 1)", 64: "(-9223372036854775807L - 1L)"}


def stem_source(stem: str) -> str | None:
    """Returns the text of a stem's MSL source, or None when there is no such file."""
    path = stem_files("metal", "metal").get(stem)
    return None if path is None else path.read_text("utf-8")


def kernel_source(
    stem: str, params: Params, body: str, defines: Mapping[str, int], features: Collection[str]
) -> str:
    """Returns what Metal's compiler is given: macros, parameters, and the kernel's own text.

    Args:
        defines: macros, `NPUSIM_` before each name.
        features: of the GPU family.
    """
    defines = {**defines, **{f"HAS_{name.upper()}": int(name in features) for name in _FEATURES}}
    macros = "".join(f"#define NPUSIM_{name} {value}\n" for name, value in defines.items())
    text = _RESERVED.sub("kernel_size", inlined(body, set(), "metal"))
    codes = opcodes() if "Opcode" in text else ""
    return "\n".join((_OPENING + macros, codes, prologue(KERNELS[stem], params), text))


def prologue(kernel: KernelDef, params: Params) -> str:
    """Returns the parameter struct and, as a constant of the program, its value."""
    rows = [f"    {_literal(params[name], kind)},  // {name}" for name, kind, _ in kernel.fields]
    return (
        _RESERVED.sub("kernel_size", struct_of(kernel, real="float"))
        + f"namespace npusim {{\nconstant constexpr abi::{kernel.struct_name} params = {{\n"
        + "\n".join(rows)
        + "\n};\n}  // namespace npusim\n"
    )


def _literal(value: int | float | tuple[int | float, ...], kind: str) -> str:
    if isinstance(value, tuple):
        last = max((i + 1 for i, v in enumerate(value) if not is_zero(v, kind)), default=0)
        return f"{{{', '.join(_literal(v, kind) for v in value[:last])}}}"
    if kind in ("f32", "f64"):
        return float_literal(float(value))
    return integer_literal(int(value), 64 if kind == "i64" else 32)


def integer_literal(value: int, bits: int) -> str:
    """Returns a constant expression of an integer of 32 or 64 bits; the least has no literal."""
    if value == -(2 ** (bits - 1)):
        return _SMALLEST[bits]
    return f"{value}L" if bits == 64 else str(value)


def float_literal(value: float) -> str:
    """Returns a constant expression of the float that a number rounds to.

    Nine digits tell every float apart (IEEE 754-2019, 5.12.2), and compilers round them back to it.
    """
    try:
        rounded = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        rounded = math.copysign(math.inf, value)
    if math.isnan(rounded):
        return "NAN"
    if math.isinf(rounded):
        return "INFINITY" if rounded > 0 else "(-INFINITY)"
    digits = f"{rounded:.9g}"
    return f"{digits}f" if "." in digits or "e" in digits else f"{digits}.0f"

"""The source a CUDA kernel is compiled from: one self-contained text for a stem and parameters.

Owns the prologue, which makes the parameter struct a constant, and the calls that order launches
(kernels/cuda/common/dependent_launch.h).
"""

from __future__ import annotations

import re
from functools import cache

from npusim.abi.header import struct
from npusim.abi.kernels import KERNELS, KernelDef, Params
from npusim.codegen.source import float_literal, inlined, is_zero, stem_files

_SHARED = '#include "kernels/shared/abi.h"\n#include "kernels/cuda/common/dependent_launch.h"\n'
EXPANDED_CODES = (
    '#include "kernels/cuda/quantization/expanded_codes.h"\n'
    '#include "kernels/cuda/matmul/linear_entry.h"\n'
)
_ENTRY = re.compile(r'^(?:extern "C" __global__ void[^{;]*|NPUSIM_ENTRY )\{$', re.MULTILINE)
_LAUNCHES_DEPENDENTS, _WAITS = (
    "\n  npusim::launch_dependents();",
    "\n  npusim::wait_on_dependencies();",
)

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


def stem_source(stem: str) -> str | None:
    """Returns the text of a stem's CUDA source, or None when there is no such file."""
    path = stem_files("cuda", "cu").get(stem)
    return None if path is None else path.read_text("utf-8")


def kernel_source(stem: str, params: Params, body: str, unwritten: int = 0) -> str:
    """Returns what NVRTC is given: integers, abi.h, the parameters, and the kernel's own text.

    Args:
        unwritten: the operands (bit i: operand i) that nothing writes before the command in its
            method.
    """
    return _source(stem, params, body, unwritten, "")


def expanded_source(
    params: Params, product: Params, unwritten: int = 0, body: str = EXPANDED_CODES
) -> str:
    """Returns what NVRTC is given for a product over codes that are expanded first.

    Args:
        params: of the `quantized_linear`.
        product: of the `linear` over what the codes are expanded to.
        body: the text of both kernels.
        unwritten: as for `kernel_source`, of the former's operands; the latter waits for all.
    """
    codes = prologue(KERNELS["quantized_linear"], params, "code_params")
    codes += f"namespace npusim {{\nconstexpr unsigned unwritten_codes = {unwritten:#x};\n}}\n"
    return _source("linear", product, body, 0, codes)


def _source(stem: str, params: Params, body: str, unwritten: int, constants: str) -> str:
    seen: set[str] = set()
    shared = inlined(_SHARED, seen, "cuda")
    text = inlined(body, seen, "cuda")
    kernel = KERNELS[stem]
    if kernel.generated_only or kernel.collective:
        constants += struct(kernel)
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
    return "unwritten_operands" in inlined(stem_source(stem) or "", set(), "cuda")


def prologue(kernel: KernelDef, params: Params, name: str = "params") -> str:
    """Returns the parameter struct as a constant of a name, every field written out."""
    rows = [f"    .{key} = {_literal(params[key], kind)}," for key, kind, _ in kernel.fields]
    return (
        f"namespace npusim {{\nconstexpr abi::{kernel.struct_name} {name} = {{\n"
        + "\n".join(rows)
        + "\n};\n}  // namespace npusim\n"
    )


def _literal(value: int | float | tuple[int | float, ...], kind: str) -> str:
    if isinstance(value, tuple):
        last = max((i + 1 for i, v in enumerate(value) if not is_zero(v, kind)), default=0)
        shown = ", ".join(_literal(v, kind) for v in value[:last])
        return f"{{{shown}}}"
    if kind in ("f32", "f64"):
        return float_literal(float(value), kind)
    if kind == "i64":
        return f"{value}LL" if value > -(2**63) else "-9223372036854775807LL - 1"
    return str(value) if value > -(2**31) else "-2147483647 - 1"

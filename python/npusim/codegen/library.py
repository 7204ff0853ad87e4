"""What a library can compute in place of own kernels, as a kernel's image says it: products.

Owns the words of docs/npubin.md ("Libraries") that all devices' libraries share. Own code always
stands beside a problem: a machine without the library runs the same program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npusim.abi.kernels import KERNELS, Params
from npusim.abi.scalar import OPCODES
from npusim.codegen.launch_config import as_int, as_ints

_FLOATS = {0: "float32", 1: "float16", 2: "bfloat16"}
_FLOAT32 = 0
_ACTIVATIONS = {OPCODES[name][0]: name for name in ("relu", "gelu_tanh")} | {
    OPCODES["copy"][0]: "none"
}


@dataclass(frozen=True, slots=True)
class CastOperand:
    """An operand of float32 that a library wants cast to another dtype, after all others.

    Attributes:
        operand: its index.
        count: its elements, dense.
        dtype: the code of the other dtype.
    """

    operand: int
    count: int
    dtype: int


@dataclass(frozen=True, slots=True)
class LibraryProblem:
    """A command as a library computes it.

    Attributes:
        name: "cublaslt", "cudnn" or "mps".
        header: the member `library` of the image, without plan and version.
        cast: the bias in the problem's dtype; None: the operands do as they are.
    """

    name: str
    header: Mapping[str, Any]
    cast: CastOperand | None = None


def product_problem(stem: str, params: bytes, library: str) -> LibraryProblem | None:
    """Returns a command's products for a library, or None where they are not exactly that."""
    describe = {"linear": _linear, "matmul": _matmul}.get(stem)
    return describe(KERNELS[stem].unpack(params), library) if describe else None


def same_dtype(p: Params, *names: str) -> str | None:
    """Returns the one float dtype of all fields, if they agree."""
    codes = {p[name] for name in names}
    return _FLOATS.get(codes.pop()) if len(codes) == 1 else None


def activation_of(p: Params) -> str | None:
    """Returns the epilogue's activation, where a library has it in the epilogue's order."""
    name = _ACTIVATIONS.get(as_int(p, "act"))
    return None if p["residual"] == 2 and name != "none" else name


def cast_bias(p: Params, bias: int, count: int) -> CastOperand | None:
    """Returns how a library wants the bias: in the dtype of the result."""
    if not p["has_bias"] or p["y_dtype"] == _FLOAT32:
        return None
    return CastOperand(bias, count, as_int(p, "y_dtype"))


def _linear(p: Params, library: str) -> LibraryProblem | None:
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    residual = bool(p["residual"])
    dtype = same_dtype(p, "x_dtype", "w_dtype", "y_dtype", *(["r_dtype"] if residual else []))
    activation = activation_of(p)
    if 0 in (m, n, k) or p["gated"] or dtype is None or activation is None:
        return None
    segments = as_int(p, "segments")
    bias, y = 1 + segments, 1 + segments + bool(p["has_bias"]) + residual
    cast = cast_bias(p, bias, n)
    products, first = [], 0
    for index, rows in enumerate(as_ints(p, "rows")[:segments]):
        product: dict[str, Any] = {
            "m": m,
            "n": rows,
            "k": k,
            "x": [0, 0, p["ldx"], 0],
            "w": [1 + index, 0, as_ints(p, "ldw")[index], 0],
            "y": [y, first, p["ldy"], 0],
        }
        if p["has_bias"]:
            product["bias"] = [bias if cast is None else y + 1, first, 0, 0]
        if residual:
            product["residual"] = [y - 1, first, p["ldr"], 0]
        if rows:
            products.append(product)
        first += rows
    header = {"name": library, "dtype": dtype, "activation": activation, "products": products}
    return LibraryProblem(library, header, cast)


def _matmul(p: Params, library: str) -> LibraryProblem | None:
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    dtype = _FLOATS.get(as_int(p, "dtype"))
    batch = _batch(p)
    rows = p["a_k"] == 1 or k == 1
    if 0 in (m, n, k) or dtype is None or batch is None or p["alpha"] != 1 or not rows:
        return None
    if p["b_n"] == 1 or n == 1:
        inside, stride = True, as_int(p, "b_k")
    elif p["b_k"] == 1 or k == 1:
        inside, stride = False, as_int(p, "b_n")
    else:
        return None
    count, (a_step, b_step, y_step) = batch
    strides = (a_step, b_step, y_step, stride, as_int(p, "a_m"), as_int(p, "y_m"))
    overlaps = stride < (n if inside else k) or as_int(p, "a_m") < k or as_int(p, "y_m") < n
    if min(strides) < 0 or (overlaps and 1 not in (m, n, k)):
        return None
    product = {
        "m": m,
        "n": n,
        "k": k,
        "batch": count,
        "columns_inside": inside,
        "x": [0, 0, max(as_int(p, "a_m"), k), a_step],
        "w": [1, 0, max(stride, n if inside else k), b_step],
        "y": [2, 0, max(as_int(p, "y_m"), n), y_step],
    }
    header = {"name": library, "dtype": dtype, "activation": "none", "products": [product]}
    return LibraryProblem(library, header)


def _batch(p: Params) -> tuple[int, tuple[int, int, int]] | None:
    """Returns the batch as one dimension: its extent and the steps of a, b and y."""
    sizes = as_ints(p, "batch")
    steps = [as_ints(p, name) for name in ("a_batch", "b_batch", "y_batch")]
    count, step = 1, (0, 0, 0)
    for i in reversed(range(len(sizes))):
        if sizes[i] == 1:
            continue
        here = (steps[0][i], steps[1][i], steps[2][i])
        if count == 1:
            step = here
        elif here != (step[0] * count, step[1] * count, step[2] * count):
            return None
        count *= sizes[i]
    return (count, step) if count else None

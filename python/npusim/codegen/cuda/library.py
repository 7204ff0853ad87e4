"""What cuBLASLt and cuDNN can compute in place of own kernels, as a kernel's image says it.

Owns which commands are theirs, and the problem in the words of docs/npubin.md ("Libraries"). Own
code always stands beside it: a machine without the libraries runs the same program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from npusim.abi.kernels import KERNELS, Params
from npusim.abi.scalar import OPCODES
from npusim.codegen.cuda.matmul_rules import GPU
from npusim.codegen.launch_config import as_int, as_ints

_FLOATS = {0: "float32", 1: "float16", 2: "bfloat16"}
_FLOAT32 = 0
_ACTIVATIONS = {OPCODES[name][0]: name for name in ("relu", "gelu_tanh")} | {
    OPCODES["copy"][0]: "none"
}
_PANEL = 16  # columns that pack_b rounds up to


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
        name: "cublaslt" or "cudnn".
        header: the member `library` of the image, without plan and version.
        cast: the bias in the problem's dtype; None: the operands do as they are.
    """

    name: str
    header: Mapping[str, Any]
    cast: CastOperand | None = None


def library_problem(stem: str, params: bytes) -> LibraryProblem | None:
    """Returns a command's problem, or None where no library computes exactly that."""
    describe = {"linear": _linear, "matmul": _matmul, "conv": _conv}.get(stem)
    return describe(KERNELS[stem].unpack(params)) if describe else None


def own_operands(stem: str, params: bytes) -> int | None:
    """Returns how many operands the own kernel of a library's stem takes; None of other stems."""
    fields = KERNELS[stem].unpack(params)
    if stem == "matmul":
        return 3
    if stem not in ("linear", "conv"):
        return None
    weights = as_int(fields, "segments") if stem == "linear" else 1
    return 1 + weights + bool(fields["has_bias"]) + bool(fields["residual"]) + 1


_WORTH = GPU.libraries


def prefers_library(problem: LibraryProblem) -> bool:
    """Tells whether a library is the default for a problem: faster, and worth opening it.

    From the times in benchmarks/results/cuda_libraries_h200.txt, and asked only where the own
    kernel does not use TMA (`tma_matmul.py`), which in whole programs is as fast. cuBLASLt
    leads the others from 64 rows on, by 1.3 to 2.4 times; not where a command is several products
    to it, which an own kernel computes as one. Opening it takes about 140 ms, so small products
    stay own. cuDNN takes about 300 ms to open
    and is never the default: `npusim tune` finds the convolutions it is ahead at.
    """
    products = problem.header.get("products", ())
    if len(products) != 1:
        return False
    (product,) = products
    work = product["m"] * product["n"] * product["k"] * product.get("batch", 1)
    return bool(product["m"] >= _WORTH.least_rows and work >= _WORTH.least_multiplications)


def _same_dtype(p: Params, *names: str) -> str | None:
    """Returns the one float dtype of all fields, if they agree."""
    codes = {p[name] for name in names}
    return _FLOATS.get(codes.pop()) if len(codes) == 1 else None


def _activation(p: Params) -> str | None:
    """Returns the epilogue's activation, where a library has it in the epilogue's order."""
    name = _ACTIVATIONS.get(as_int(p, "act"))
    return None if p["residual"] == 2 and name != "none" else name


def _cast_bias(p: Params, bias: int, count: int) -> CastOperand | None:
    """Returns how a library wants the bias: in the dtype of the result."""
    if not p["has_bias"] or p["y_dtype"] == _FLOAT32:
        return None
    return CastOperand(bias, count, as_int(p, "y_dtype"))


def _linear(p: Params) -> LibraryProblem | None:
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    residual = bool(p["residual"])
    dtype = _same_dtype(p, "x_dtype", "w_dtype", "y_dtype", *(["r_dtype"] if residual else []))
    activation = _activation(p)
    if 0 in (m, n, k) or p["gated"] or dtype is None or activation is None:
        return None
    segments = as_int(p, "segments")
    bias, y = 1 + segments, 1 + segments + bool(p["has_bias"]) + residual
    cast = _cast_bias(p, bias, n)
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
    header = {"name": "cublaslt", "dtype": dtype, "activation": activation, "products": products}
    return LibraryProblem("cublaslt", header, cast)


def _matmul(p: Params) -> LibraryProblem | None:
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
    header = {"name": "cublaslt", "dtype": dtype, "activation": "none", "products": [product]}
    return LibraryProblem("cublaslt", header)


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


def _conv(p: Params) -> LibraryProblem | None:
    groups = as_int(p, "groups")
    channels, columns = as_int(p, "in_channels") // groups, as_int(p, "out_channels") // groups
    residual = bool(p["residual"])
    dtype = _same_dtype(p, "x_dtype", "w_dtype", "y_dtype", *(["r_dtype"] if residual else []))
    activation = _activation(p)
    x, y, r = (as_ints(p, f"{name}_strides") for name in "xyr")
    flat = as_ints(p, "in_size")[0] == as_ints(p, "out_size")[0] == as_ints(p, "kernel")[0] == 1
    by_rows = channels % 8 == 0 and (groups == 1 or columns % _PANEL == 0)  # conv/packed_weights.h
    if dtype is None or activation not in ("none", "relu") or p["transposed"] or not by_rows:
        return None
    if as_int(p, "has_bias") > 1:  # a problem has no factors
        return None
    if not flat or x[1] != 1 or prod(as_ints(p, "out_size")) * as_int(p, "batch") * columns == 0:
        return None
    if min(x + y + r) < 0 or not _pads_after(p):
        return None
    at = 2 + bool(p["has_bias"])
    cast = _cast_bias(p, 2, as_int(p, "out_channels"))
    convolution: dict[str, Any] = {
        "batch": p["batch"],
        "channels": p["in_channels"],
        "out_channels": p["out_channels"],
        "groups": groups,
        "w": 1,
        **{
            name: list(as_ints(p, name)[1:])
            for name in ("in_size", "out_size", "kernel", "stride", "dilation", "pad")
        },
        "x": [0, x[0], x[3], x[4]],
        "y": [at + residual, y[0], y[3], y[4]],
    }
    if p["has_bias"]:
        convolution["bias"] = 2 if cast is None else at + residual + 1
    if residual:
        convolution["residual"] = [at, r[0], r[3], r[4]]
    header = {
        "name": "cudnn",
        "dtype": dtype,
        "activation": activation,
        "convolution": convolution,
    }
    return LibraryProblem("cudnn", header, cast)


def _pads_after(p: Params) -> bool:
    """Tells whether the last window of each dimension ends less than a step before the input."""
    for axis in (1, 2):
        size, out, kernel, stride, pad, dilation = (
            as_ints(p, name)[axis]
            for name in ("in_size", "out_size", "kernel", "stride", "pad", "dilation")
        )
        behind = (out - 1) * stride + dilation * (kernel - 1) + 1 - size - pad
        if behind <= -stride:
            return False
    return True

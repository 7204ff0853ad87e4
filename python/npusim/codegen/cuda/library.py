"""What cuBLASLt and cuDNN can compute in place of own kernels, and where they are preferred."""

from __future__ import annotations

from math import prod
from typing import Any

from npusim.abi.kernels import KERNELS, Params
from npusim.codegen.cuda.matmul_rules import GPU
from npusim.codegen.launch_config import as_int, as_ints
from npusim.codegen.library import (
    LibraryProblem,
    activation_of,
    cast_bias,
    product_problem,
    same_dtype,
)

_PANEL = 16  # columns that pack_b rounds up to


def library_problem(stem: str, params: bytes) -> LibraryProblem | None:
    """Returns a command's problem, or None where no library computes exactly that."""
    if stem == "conv":
        return _conv(KERNELS[stem].unpack(params))
    return product_problem(stem, params, "cublaslt")


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
    to it, which an own kernel computes as one, nor of float32, which own tiles multiply in parts
    (`kernels/cuda/matmul/float_tile.h`). Opening it takes about 140 ms, so small products
    stay own. cuDNN takes about 300 ms to open
    and is never the default: `npusim tune` finds the convolutions it is ahead at.
    """
    products = problem.header.get("products", ())
    if len(products) != 1 or problem.header["dtype"] == "float32":
        return False
    (product,) = products
    work = product["m"] * product["n"] * product["k"] * product.get("batch", 1)
    return bool(product["m"] >= _WORTH.least_rows and work >= _WORTH.least_multiplications)


def _conv(p: Params) -> LibraryProblem | None:
    groups = as_int(p, "groups")
    channels, columns = as_int(p, "in_channels") // groups, as_int(p, "out_channels") // groups
    residual = bool(p["residual"])
    dtype = same_dtype(p, "x_dtype", "w_dtype", "y_dtype", *(["r_dtype"] if residual else []))
    activation = activation_of(p)
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
    cast = cast_bias(p, 2, as_int(p, "out_channels"))
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

"""How operands of a command lie, as far as it decides which of a stem's kernels computes it.

A device that is known by a roofline has a class of commands for each kernel where these differ by
far (`targets/roofline.py`); a class that names no form holds all of them, and one that names a form
those of which more is said behind a comma, too. Forms say nothing of a device: what they are of is
in the command's parameters alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from npusim.abi.kernels import Params
from npusim.ir.types import DTYPE_NAMES
from npusim.simulate.gathered import index_run, rows_apart

PACKED = "packed"  # factors of 16 bits, contiguous along k: what units of matrices take in
GROUPS = "loose, float32, groups of few channels"  # of 2 to 8, which are computed side by side
FEW_CHANNELS = "few channels"  # the same, but eight of them are not of one pixel
UNALIGNED = "packed, unaligned"  # of which some row begins on no 16 bytes
LOOSE = "loose"  # other factors of products
FLOATS = "loose, float32"  # both of which have 32 bits
STRAIGHT = "straight"  # a copy whose neighbours were neighbours, or a sum of neighbours
FEW_COLUMNS = "straight, few columns"  # rows so short that several are computed side by side
ACROSS = "across"  # a copy whose neighbours come from far apart, or a sum of what lies apart
SHARED = "shared"  # a pool of windows so large that several threads share one
RAGGED = "ragged"  # channels of which the last ones of a point fill no vector
SINGLE = "single tap"  # a depthwise convolution of single points: each element is scaled
INTEGERS = "integers"  # functions of elements, some of which are integers or 64-bit floats
APART = "apart"  # functions of elements whose rows are put together first
SCATTERED = "scattered"  # an index by which every element comes from a place of its own
CACHE = "cache"  # attention to keys of which a position says how many there are

_PACK = 8  # elements of 16 bits that move at once: 16 bytes
_MANY_TAPS = 32  # of a window that is shared
_INSTRUCTION = 6  # numbers of one of a function of elements, of which the last is its class
_FEW_COLUMNS = 64
_VECTOR = 16  # channels that are computed at once


def form_of(stem: str, params: Params) -> str:
    """Returns the form of a command's operands; empty where all of its stem are alike.

    Args:
        stem: of its kernel.
        params: all of its kernel's fields.
    """
    return _FORMS[stem](params) if stem in _FORMS else ""


def _halves(*codes: int) -> bool:
    """Tells whether dtypes are one of 16 bits."""
    return len(set(codes)) == 1 and DTYPE_NAMES[codes[0]] in ("float16", "bfloat16")


def _loose(*codes: int) -> str:
    return FLOATS if {DTYPE_NAMES[code] for code in codes} == {"float32"} else LOOSE


def _packed(*steps: int) -> str:
    return UNALIGNED if any(step % _PACK for step in steps) else PACKED


def _linear(p: Params) -> str:
    if not _halves(p["x_dtype"], p["w_dtype"]):
        return _loose(p["x_dtype"], p["w_dtype"])
    return _packed(p["ldx"], *p["ldw"][: p["segments"]])


def _matmul(p: Params) -> str:
    contiguous = p["a_k"] == 1 and 1 in (p["b_k"], p["b_n"])
    if not contiguous or not _halves(p["dtype"]):
        return _loose(p["dtype"])
    return _packed(p["a_m"], p["b_n"] if p["b_k"] == 1 else p["b_k"])


def _convolution(p: Params) -> str:
    channels = p["in_channels"] // max(1, p["groups"])
    if not _halves(p["x_dtype"], p["w_dtype"]):
        form = _loose(p["x_dtype"], p["w_dtype"])
        few = p["groups"] > 1 and channels <= _PACK and not p["transposed"]
        return GROUPS if form == FLOATS and few else form
    if channels % _PACK:
        return FEW_CHANNELS if p["groups"] == 1 and not p["transposed"] else LOOSE
    return PACKED if p["x_strides"][1] == 1 else LOOSE


def _copy(p: Params) -> str:
    """Tells the innermost dimension of what is written from that of what is read."""
    sizes = range(p["rank"])
    along = [d for d in sizes if p["shape"][d] > 1]
    if not along:
        return STRAIGHT
    inner = min(along, key=lambda d: (abs(p["y_strides"][d]), -d))
    return STRAIGHT if abs(p["x_strides"][inner]) <= 1 else ACROSS


def _reduce(p: Params) -> str:
    inner = zip(p["reduced"], p["reduced_strides"], strict=True)
    along = [abs(stride) for size, stride in list(inner)[: p["reduced_rank"]] if size > 1]
    return ACROSS if along and min(along) > 1 else STRAIGHT


def _softmax(p: Params) -> str:
    if p["inner"] > 1:
        return ACROSS
    return FEW_COLUMNS if p["size"] < _FEW_COLUMNS else STRAIGHT


def _attention(p: Params) -> str:
    if p["has_position"]:
        return CACHE
    return "" if _halves(p["dtype"]) else _loose(p["dtype"])


def _depthwise(p: Params) -> str:
    if math.prod(p["kernel"]) == 1:
        return SINGLE
    return RAGGED if p["out_channels"] % _VECTOR else ""


def _pointwise(p: Params) -> str:
    codes = p["code"][_INSTRUCTION - 1 :: _INSTRUCTION][: p["n_instructions"]]
    if any(codes) or any(p["x_class"][: p["n_inputs"]]) or p["result_class"]:
        return INTEGERS
    return APART if rows_apart(p) else ""


def _index(p: Params) -> str:
    return SCATTERED if index_run(p) == 1 else ""


def _pool(p: Params) -> str:
    return SHARED if taps(p) >= _MANY_TAPS else ""


def taps(p: Params) -> int:
    """Returns the elements of a window of a pool."""
    sides = zip(p["in_size"], p["out_size"], p["kernel"], strict=True)
    return math.prod(-(-i // max(1, o)) if p["adaptive"] else k for i, o, k in sides)


_FORMS: dict[str, Callable[[Params], str]] = {
    **dict.fromkeys(
        ("linear", "linear_before_norm", "linear_behind_norm", "linear_rope_append"), _linear
    ),
    "matmul": _matmul,
    "conv": _convolution,
    "conv_depthwise": _depthwise,
    "attention": _attention,
    "reduce": _reduce,
    "softmax": _softmax,
    "copy": _copy,
    "pool": _pool,
    "pointwise": _pointwise,
    "index": _index,
}

"""What a GPU's own launch rules say of a command: the time of the tiles that they choose.

The rules are asked (`codegen/cuda/estimates.py`), so that what is predicted is what is launched. A
class of commands whose `grid` is "launches" takes its arithmetic from here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache

from npusim.abi.kernels import KERNELS, Params
from npusim.codegen.cuda.convolutions import in_patches
from npusim.codegen.cuda.estimates import busy_microseconds
from npusim.ir.types import CODE_SIZES
from npusim.simulate.forms import FEW_CHANNELS, LOOSE

_STEMS = (
    *("linear", "linear_before_norm", "linear_behind_norm", "linear_rope_append"),
    *("matmul", "conv", "conv_depthwise", "attention", "group_norm"),
)
_CHUNK = 16  # bytes that a thread stores at once


def launch_of(stem: str, params: Params) -> bytes:
    """Returns what `busy_seconds` takes of a command; empty where no rule estimates its kernel.

    Also empty where a parameter fits in no command, as a profile from elsewhere may have it.

    Args:
        stem: of its kernel.
        params: all of its kernel's fields.
    """
    if stem not in _STEMS:
        return b""
    try:
        return KERNELS[stem].pack(params)
    except struct.error:
        return b""


@cache
def busy_seconds(stem: str, launch: bytes) -> float | None:
    """Returns how long the tiles take that the launch rule chooses; None: it does not say."""
    if not launch:
        return None
    try:
        found = busy_microseconds(stem, KERNELS[stem].unpack(launch))
    except (ArithmeticError, ValueError):  # of sizes that no command has, in a profile's file
        return None
    return 1e-6 * found if found is not None and found > 0 else None


def form_in_launch(stem: str, form: str, launch: bytes) -> str:
    """Returns the form of a command, of few channels where the launch rule gathers patches.

    Windows too large for that are computed as loose factors are.

    Args:
        stem: of its kernel.
        form: of its operands.
        launch: as `launch_of` returns it.
    """
    if form != FEW_CHANNELS or not launch or in_patches(KERNELS[stem].unpack(launch)):
        return form
    return LOOSE


def stored_apart(stem: str, params: Params) -> int:
    """Returns the elements of a product's result that are stored one by one.

    Tiles store 16 bytes at once where every row of the result begins on a multiple of as many.
    """
    if stem == "linear":
        rows, columns, steps, code = params["m"], params["n"], (params["ldy"],), params["y_dtype"]
    elif stem == "matmul":
        rows, columns = math.prod(params["batch"]) * params["m"], params["n"]
        steps, code = (*params["y_batch"], params["y_m"]), params["dtype"]
    elif stem == "conv":
        rows, columns = params["batch"] * math.prod(params["out_size"]), params["out_channels"]
        y, code = params["y_strides"], params["y_dtype"]
        steps = (y[0], *y[2:])
    else:
        return 0
    return 0 if _whole(steps, CODE_SIZES[code]) else rows * columns


def _whole(steps: Sequence[int], size: int) -> bool:
    return all(step * size % _CHUNK == 0 for step in steps)

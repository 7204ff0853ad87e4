"""Integer codes that lie several to a word, and what codes, zero points and scales stand for.

Every function is PyTorch code that a graph is traced from: int32 words, arithmetic shifts and
masks, and products in float32, which is exact for codes of 8 bits and scales of 16.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WORD = 32  # bits


def unpacked(words: Tensor, bits: int, axis: int, order: Sequence[int] | None = None) -> Tensor:
    """Returns the unsigned codes in int32 words, from the low bits up.

    Args:
        words: int32.
        axis: along which the codes of a word follow one another.
        order: the place in a word of each code; by default they lie in order.
    """
    places = range(WORD // bits) if order is None else order
    shifts = torch.tensor([place * bits for place in places], dtype=torch.int32)
    axis %= words.ndim
    spread = words.unsqueeze(axis + 1)
    shape = [1] * spread.ndim
    shape[axis + 1] = len(shifts)
    codes = (spread >> shifts.reshape(shape)) & ((1 << bits) - 1)
    return codes.flatten(axis, axis + 1)


def nibbles(data: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the low and the high halves of uint8, as int32."""
    wide = data.to(torch.int32)
    return wide & 15, wide >> 4


def scaled(codes: Tensor, zeros: Tensor | int, scales: Tensor) -> Tensor:
    """Returns (codes - zeros) * scales in float32.

    Args:
        codes: [rows, k].
        zeros: [rows, groups], or one for all.
        scales: [rows, groups]; a group of a row is k / groups elements.
    """
    rows, k = codes.shape
    grouped = codes.reshape(rows, scales.shape[1], -1)
    shift = zeros.unsqueeze(-1) if isinstance(zeros, Tensor) else zeros
    values = (grouped - shift).to(torch.float32) * scales.to(torch.float32).unsqueeze(-1)
    return values.reshape(rows, k)


def gathered(codes: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor) -> Tensor:
    """Returns (codes - zeros) * scales in float32, where each column names its group.

    Args:
        codes: [rows, k].
        zeros, scales: [rows, groups].
        groups: [k], int32.
    """
    at = groups.to(torch.int64)
    shifted = codes - zeros.index_select(1, at)
    return shifted.to(torch.float32) * scales.to(torch.float32).index_select(1, at)

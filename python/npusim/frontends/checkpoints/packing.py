"""Codes of a checkpoint as npusim's own quantized weights hold them (`abi/quantization.py`).

A scheme says so where the arithmetic is the same for whatever the tensors hold: codes of 4 bits in
groups of 32, 64 or 128, float16 scales, and zero points that are whole numbers up to 15; codes of 8
bits, or of float8_e4m3fn, with one scale a row. A weight made of such codes differs from what
products then multiply by rounding alone, which they spare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from npusim.abi.quantization import BLOCK, GROUPS, Quantization, code_words, quantized_bytes
from npusim.ir.graph import Attr, Node, Source, Value, Weight
from npusim.ir.rewrite import Names
from npusim.ir.types import TensorType
from npusim.ops.stored_codes import PACK_CODES, STORED_WEIGHT

_ZERO_STEPS = 16  # of a zero point, in a step of codes

# Codes [n, k], scales [n, groups], and zero points [n, groups] or None, of a checkpoint's tensors.
Codes: TypeAlias = "tuple[Tensor, Tensor, Tensor | None]"


@dataclass(frozen=True)
class Packing:
    """A layout, and what makes its parts of a checkpoint's tensors.

    Attributes:
        how: the layout.
        codes: makes codes, scales and zero points, by PyTorch; compared by value.
    """

    how: Quantization
    codes: Callable[..., Codes]

    def parts(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Returns the sections of a packed weight, each of `rows` rows."""
        codes, scales, zeros = self.codes(*tensors)
        rows, k = codes.shape
        if self.how.bytes_a_code:
            return codes, scales.to(torch.float32).expand(rows, 1)
        groups = self.how.groups(int(k))
        repeats = groups // scales.shape[1]
        scales = scales.to(torch.float16).expand(rows, -1).repeat_interleave(repeats, 1)
        words = code_words(codes.to(torch.int32))
        if zeros is None:
            return words, scales
        zeros = (zeros.to(torch.int32) * _ZERO_STEPS).to(torch.uint8)
        return words, scales, zeros.expand(rows, -1).repeat_interleave(repeats, 1)


def layout_of(groups: int, k: int, zeros: bool) -> Quantization | None:
    """Returns the layout of codes of 4 bits in so many groups a row; None: there is none."""
    if groups == 0 or k % groups or k % BLOCK:
        return None
    size = k // groups
    group = size if size in GROUPS else BLOCK if size % BLOCK == 0 else 0
    return Quantization("int4-asymmetric" if zeros else "int4", group) if group else None


def has_scale_a_row(scale: TensorType, weight: TensorType) -> bool:
    """Tells whether a weight has a scale a row, or one for all of them."""
    return scale.shape in ((1,), (1, 1), weight.shape[:1], (*weight.shape[:1], 1))


def fits(packing: Packing | None, weight: TensorType) -> bool:
    """Tells whether a weight can lie packed: a matrix of floats, of 4 bits in whole blocks."""
    if packing is None or weight.rank != 2:
        return False
    return packing.how.bytes_a_code or weight.shape[1] % BLOCK == 0


def packed_nodes(
    packing: Packing,
    weight: Weight,
    floats: str,
    parts: Sequence[str],
    names: Names,
    source: Source,
) -> list[Node]:
    """Returns what joins the parts of a packed weight, and the weight as either form."""
    how, (rows, k) = packing.how, weight.type.shape
    packed = names.fresh(f"{weight.name}_packed")
    bytes_ = TensorType("uint8", (quantized_bytes(how, rows, k),))
    attrs: dict[str, Attr] = {"format": how.format, "group": how.group}
    return [
        Node(
            names.fresh(f"{weight.name}_pack"),
            PACK_CODES,
            tuple(parts),
            (Value(packed, bytes_),),
            {**attrs, "k": k},
            source=source,
        ),
        Node(
            names.fresh(f"{weight.name}_stored"),
            STORED_WEIGHT,
            (floats, packed),
            (Value(weight.name, weight.type),),
            attrs,
            source=source,
        ),
    ]

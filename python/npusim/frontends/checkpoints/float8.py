"""8-bit floats by their bits, and scales of blocks.

`float8_e4m3fn`: P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
`Fp8`: `quant_method: "fp8"`, `weight` float8_e4m3fn [n, k] and `weight_scale_inv` float32, one a
block of `weight_block_size` (DeepSeek-V3, "Technical Report", 2024, section 3.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from npusim.abi.quantization import Quantization
from npusim.errors import ExportError
from npusim.frontends.checkpoints.expansion import Stored
from npusim.frontends.checkpoints.packing import Codes, Packing, has_scale_a_row
from npusim.ir.types import TensorType


def e4m3fn(data: Tensor) -> Tensor:
    """Returns the float32 that bytes stand for, read as float8_e4m3fn: a table of 256."""
    table = torch.tensor([_value(byte) for byte in range(256)], dtype=torch.float32)
    return table.index_select(0, data.reshape(-1).to(torch.int64)).reshape(data.shape)


def _value(byte: int) -> float:
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, fraction = byte >> 3 & 15, byte & 7
    if exponent == 15 and fraction == 7:
        return float("nan")
    if exponent == 0:
        return sign * fraction * 2.0**-9
    return float(sign * (8 + fraction) * 2.0 ** (exponent - 10))


def blockwise(scale: Tensor, shape: Sequence[int], block: tuple[int, int]) -> Tensor:
    """Returns a scale for each element of [n, k], as far as it differs.

    Args:
        scale: [blocks of rows, blocks of columns]; a row, a column or one entry hold for all, and
            so does a scale of one dimension for its row.
        block: rows and columns of a block; the last of an axis may be cut off.
    """
    scale = scale.to(torch.float32)
    if scale.ndim < 2:
        return scale.reshape(-1, 1)
    for axis in (0, 1):
        if scale.shape[axis] not in (1, shape[axis]):
            scale = scale.repeat_interleave(block[axis], axis).narrow(axis, 0, shape[axis])
    return scale


@dataclass(frozen=True)
class _Codes:
    def __call__(self, weight: Tensor, scale: Tensor) -> Codes:
        scale = scale.to(torch.float32).reshape(-1, 1)
        odd = ((weight.to(torch.int32) & 127) == 127).any(1, keepdim=True)
        return weight, torch.where(odd, torch.full_like(scale, torch.nan), scale), None


def packing_of(scale: TensorType, weight: TensorType) -> Packing | None:
    """Returns how codes with such scales lie packed; None: they have no layout."""
    return Packing(Quantization("fp8"), _Codes()) if has_scale_a_row(scale, weight) else None


@dataclass(frozen=True)
class _Expand:
    block: tuple[int, int]

    def __call__(self, weight: Tensor, scale: Tensor) -> Tensor:
        return e4m3fn(weight) * blockwise(scale, weight.shape, self.block)


class Fp8:
    """The scheme of a model's `quantization_config`.

    Raises:
        ExportError: another form of 8-bit floats.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        block = config.get("weight_block_size")
        form = str(config.get("fmt") or "e4m3")
        if form != "e4m3" or (block is not None and len(block) != 2):
            raise ExportError(
                f"The checkpoint is of 8-bit floats {form!r} in blocks {block}.",
                hint="Read is e4m3, with a scale a weight or in blocks of rows and columns.",
            )
        self._block = (int(block[0]), int(block[1])) if block else (1, 1)

    def stored(
        self, key: str, type: TensorType, tensors: Mapping[str, TensorType]
    ) -> Stored | None:
        """Returns what the checkpoint holds for a weight; None: the weight itself."""
        scale = key + "_scale_inv"
        if scale not in tensors:
            return None
        if tensors[key].dtype != "float8_e4m3fn":
            raise ExportError(f"{key} holds {tensors[key].dtype} with scales, which is not read.")
        held = {key: TensorType("uint8", type.shape), scale: tensors[scale]}
        return Stored(held, _Expand(self._block), packing_of(tensors[scale], type))

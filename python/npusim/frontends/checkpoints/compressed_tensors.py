"""compressed-tensors: integers or 8-bit floats with scales, as llm-compressor writes them.

The layouts of its formats (github.com/vllm-project/compressed-tensors), for a weight [n, k]:

* `pack-quantized`: `weight_packed` int32 [n, k * bits / 32], unsigned codes that are the signed
  ones plus half of their range; `weight_scale` [n, groups]; `weight_zero_point` int32
  [n * bits / 32, groups], packed along the rows; `weight_g_idx` int32 [k], where columns name
  their groups.
* `int-quantized`, `naive-quantized`: `weight` int8 [n, k], `weight_scale`, and
  `weight_zero_point` int8.
* `float-quantized`: `weight` float8_e4m3fn [n, k], `weight_scale`.

`weight_scale` has a row or one entry for all rows, and a column a group; groups may be blocks of
rows, too. What the format says of activations is left out: they stay floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from npusim.abi.quantization import Quantization
from npusim.errors import ExportError
from npusim.frontends.checkpoints.codes import WORD, gathered, scaled, unpacked
from npusim.frontends.checkpoints.expansion import Stored
from npusim.frontends.checkpoints.float8 import blockwise, e4m3fn, packing_of
from npusim.frontends.checkpoints.packing import Codes, Packing, has_scale_a_row, layout_of
from npusim.ir.types import TensorType

_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized", "dense")


@dataclass(frozen=True)
class _Packed:
    bits: int
    columns: int
    zeros: bool
    groups: bool

    def __call__(self, packed: Tensor, scale: Tensor, *rest: Tensor) -> Tensor:
        codes = unpacked(packed, self.bits, 1)[:, : self.columns]
        scale = scale.expand(codes.shape[0], -1)
        zero = torch.full_like(scale, 1 << (self.bits - 1), dtype=torch.int32)
        if self.zeros:
            zero = unpacked(rest[0], self.bits, 0)[: scale.shape[0]]
        if self.groups:
            return gathered(codes, zero, scale, rest[-1])
        return scaled(codes, zero, scale)


@dataclass(frozen=True)
class _PackedCodes:
    columns: int

    def __call__(self, packed: Tensor, scale: Tensor, zero: Tensor | None = None) -> Codes:
        codes = unpacked(packed, 4, 1)[:, : self.columns]
        zeros = None if zero is None else unpacked(zero, 4, 0)[: scale.shape[0]]
        return codes, scale, zeros


@dataclass(frozen=True)
class _PlainCodes:
    def __call__(self, weight: Tensor, scale: Tensor) -> Codes:
        return weight, scale.reshape(-1, 1), None


@dataclass(frozen=True)
class _Plain:
    block: tuple[int, int]

    def __call__(self, weight: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        codes = weight.to(torch.float32)
        if zero is not None:
            codes = codes - blockwise(zero, weight.shape, self.block)
        return codes * blockwise(scale, weight.shape, self.block)


@dataclass(frozen=True)
class _Float:
    block: tuple[int, int]

    def __call__(self, weight: Tensor, scale: Tensor) -> Tensor:
        return e4m3fn(weight) * blockwise(scale, weight.shape, self.block)


class CompressedTensors:
    """The scheme of a model's `quantization_config`.

    Raises:
        ExportError: a format that is not known, or weights that are also sparse.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        groups = config.get("config_groups") or {}
        forms = {group.get("format") or config.get("format") for group in groups.values()}
        unknown = sorted(str(form) for form in forms if form not in _FORMATS)
        sparse = (config.get("sparsity_config") or {}).get("format", "dense")
        if unknown or sparse != "dense":
            raise ExportError(
                f"The checkpoint is of compressed-tensors, {', '.join(unknown) or sparse}.",
                hint=f"Read are {', '.join(_FORMATS[:-1])}.",
            )
        blocks = {_block(group.get("weights") or {}) for group in groups.values()} - {(1, 1)}
        if len(blocks) > 1:
            raise ExportError(
                f"The checkpoint is of compressed-tensors with blocks of {sorted(blocks)}.",
                hint="Read are checkpoints whose weights have blocks of one shape.",
            )
        self._block = next(iter(blocks), (1, 1))

    def stored(
        self, key: str, type: TensorType, tensors: Mapping[str, TensorType]
    ) -> Stored | None:
        """Returns what the checkpoint holds for a weight; None: the weight itself."""
        names = ("_packed", "", "_scale", "_zero_point", "_g_idx")
        packed, plain, scale, zero, groups = (key + name for name in names)
        if scale not in tensors:
            return None
        if packed not in tensors:
            dtype = tensors[plain].dtype
            if dtype not in ("float8_e4m3fn", "int8"):
                raise ExportError(f"{plain} holds {dtype} with scales, which is not read.")
            eight = dtype == "float8_e4m3fn"
            held = {name: tensors[name] for name in (plain, scale, zero) if name in tensors}
            if eight:
                held = {plain: TensorType("uint8", type.shape), scale: tensors[scale]}
            packing = packing_of(tensors[scale], type) if eight else None
            if not eight and zero not in tensors and has_scale_a_row(tensors[scale], type):
                packing = Packing(Quantization("int8"), _PlainCodes())
            return Stored(held, (_Float if eight else _Plain)(self._block), packing)
        columns = type.shape[-1]
        bits = WORD * int(tensors[packed].shape[1]) // int(columns)
        if bits not in (2, 4, 8):
            raise ExportError(f"{packed} has {tensors[packed].shape[1]} words for {columns} codes.")
        held = {name: tensors[name] for name in (packed, scale, zero, groups) if name in tensors}
        expand = _Packed(bits, int(columns), zero in tensors, groups in tensors)
        how = layout_of(tensors[scale].shape[-1], int(columns), zero in tensors)
        exact = bits == 4 and groups not in tensors and tensors[scale].dtype == "float16"
        packing = Packing(how, _PackedCodes(int(columns))) if how and exact else None
        return Stored(held, expand, packing)


def _block(weights: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the rows and columns that share a scale; 1 where the shape of the scale tells."""
    if weights.get("strategy") == "block":
        rows, columns = weights["block_structure"]
        return int(rows), int(columns)
    return 1, int(weights.get("group_size") or 1) if weights.get("strategy") == "group" else 1

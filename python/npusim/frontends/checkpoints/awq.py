"""AWQ: 4-bit codes with a zero point a group, eight to a word along the rows.

J. Lin et al., "AWQ: Activation-aware Weight Quantization", MLSys 2024; the layout is that of
AutoAWQ's GEMM version. For a weight [n, k] in groups of g along k:

* `qweight` int32 [k, n / 8], `qzeros` int32 [k / g, n / 8], `scales` float16 [k / g, n];
* code i of a word lies in the place `_ORDER[i]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from npusim.errors import ExportError
from npusim.frontends.checkpoints.codes import scaled, unpacked
from npusim.frontends.checkpoints.expansion import Stored
from npusim.frontends.checkpoints.packing import Codes, Packing, layout_of
from npusim.ir.types import TensorType

_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class _Expand:
    bits: int

    def __call__(self, qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Tensor:
        codes = unpacked(qweight, self.bits, 1, _ORDER).T
        return scaled(codes, unpacked(qzeros, self.bits, 1, _ORDER).T, scales.T)


@dataclass(frozen=True)
class _Codes:
    def __call__(self, qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Codes:
        return unpacked(qweight, 4, 1, _ORDER).T, scales.T, unpacked(qzeros, 4, 1, _ORDER).T


class Awq:
    """The scheme of a model's `quantization_config`.

    Raises:
        ExportError: it is not of four bits, or of another version than "gemm".
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        bits, version = config.get("bits", 4), str(config.get("version", "gemm")).lower()
        if bits != 4 or version != "gemm":
            raise ExportError(
                f"The checkpoint is AWQ of {bits} bits, version {version!r}.",
                hint="Read are 4 bits of the version 'gemm'.",
            )
        self._expand = _Expand(bits)

    def stored(
        self, key: str, type: TensorType, tensors: Mapping[str, TensorType]
    ) -> Stored | None:
        """Returns what the checkpoint holds for a weight; None: the weight itself."""
        base = key.removesuffix("weight")
        keys = tuple(base + name for name in ("qweight", "qzeros", "scales"))
        if keys[0] not in tensors:
            return None
        held = {name: tensors[name] for name in keys}
        return Stored(held, self._expand, _packing(tensors[keys[0]], tensors[keys[2]]))


def _packing(qweight: TensorType, scales: TensorType) -> Packing | None:
    how = layout_of(scales.shape[0], qweight.shape[0], zeros=True)
    return Packing(how, _Codes()) if how and scales.dtype == "float16" else None

"""GPTQ: codes of 2, 4 or 8 bits with a zero point a group, packed in words along the columns.

E. Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", ICLR 2023; the layout is that of AutoGPTQ and GPTQModel. For a weight [n, k]:

* `qweight` int32 [k * bits / 32, n], `qzeros` int32 [groups, n * bits / 32],
  `scales` float16 [groups, n], and `g_idx` int32 [k], the group of each column.
* Zero points are stored less one, but in the format "gptq_v2".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from npusim.errors import ExportError
from npusim.frontends.checkpoints.codes import gathered, scaled, unpacked
from npusim.frontends.checkpoints.expansion import Stored
from npusim.frontends.checkpoints.packing import Codes, Packing, layout_of
from npusim.ir.types import TensorType

_BITS = (2, 4, 8)  # that words have room for without a rest


@dataclass(frozen=True)
class _Expand:
    bits: int
    less: int  # what zero points are stored less

    def __call__(
        self, qweight: Tensor, qzeros: Tensor, scales: Tensor, groups: Tensor | None = None
    ) -> Tensor:
        codes = unpacked(qweight, self.bits, 0).T
        zeros = (unpacked(qzeros, self.bits, 1) + self.less).T
        if groups is None:
            return scaled(codes, zeros, scales.T)
        return gathered(codes, zeros, scales.T, groups)


@dataclass(frozen=True)
class _Codes:
    def __call__(self, qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Codes:
        return unpacked(qweight, 4, 0).T, scales.T, unpacked(qzeros, 4, 1).T


class Gptq:
    """The scheme of a model's `quantization_config`.

    Raises:
        ExportError: bits or a format that are not known.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        bits, form = config.get("bits", 4), str(config.get("checkpoint_format") or "gptq")
        if bits not in _BITS or form not in ("gptq", "gptq_v2"):
            raise ExportError(
                f"The checkpoint is GPTQ of {bits} bits in the format {form!r}.",
                hint="Read are 2, 4 and 8 bits of 'gptq' and 'gptq_v2'.",
            )
        self._expand = _Expand(bits, 0 if form == "gptq_v2" else 1)

    def stored(
        self, key: str, type: TensorType, tensors: Mapping[str, TensorType]
    ) -> Stored | None:
        """Returns what the checkpoint holds for a weight; None: the weight itself."""
        base = key.removesuffix("weight")
        keys = [base + name for name in ("qweight", "qzeros", "scales", "g_idx")]
        if keys[0] not in tensors:
            return None
        held = {name: tensors[name] for name in keys if name in tensors}
        return Stored(held, self._expand, self._packing(held, keys[2], int(type.shape[-1])))

    def _packing(self, held: Mapping[str, TensorType], scales: str, k: int) -> Packing | None:
        """Zero points that are stored less one are up to 16, which no layout of ours has."""
        exact = self._expand.bits == 4 and self._expand.less == 0 and len(held) == 3
        how = layout_of(held[scales].shape[0], k, zeros=True) if exact else None
        return Packing(how, _Codes()) if how and held[scales].dtype == "float16" else None

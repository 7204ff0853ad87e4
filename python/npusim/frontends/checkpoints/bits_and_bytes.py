"""bitsandbytes: tables of 16 values with a scale a block, and 8-bit integers with a scale a row.

T. Dettmers et al., "QLoRA", NeurIPS 2023, and "LLM.int8()", NeurIPS 2022. For a weight [n, k]:

* 4 bits (`nf4`, `fp4`): `weight` uint8 [n * k / 2, 1], the high half of a byte first;
  `weight.quant_map` float32 [16]; `weight.absmax` float32, one a block; where that is quantized
  itself, uint8 with `weight.nested_absmax` and `weight.nested_quant_map` [256], and an offset that
  stands with the sizes of blocks in `weight.quant_state.bitsandbytes__nf4`, JSON in bytes.
* 8 bits: `weight` int8 [n, k] and `SCB` float32 [n]: element = code * SCB / 127. Outliers of the
  activations, which the library multiplies apart, need no care: activations stay floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from npusim.errors import ExportError
from npusim.frontends.checkpoints.expansion import Stored
from npusim.ir.types import TensorType

_STATE = ".quant_state.bitsandbytes__"


@dataclass(frozen=True)
class _Four:
    shape: tuple[int, ...]
    block: int
    nested_block: int
    offset: float

    def __call__(
        self,
        weight: Tensor,
        table: Tensor,
        scales: Tensor,
        nested: Tensor | None = None,
        nested_table: Tensor | None = None,
    ) -> Tensor:
        data = weight.reshape(-1).to(torch.int64)
        codes = torch.stack((data >> 4, data & 15), 1).reshape(-1)
        if nested is not None and nested_table is not None:
            coarse = nested_table.index_select(0, scales.reshape(-1).to(torch.int64))
            scales = coarse * _spread(nested, self.nested_block, coarse.shape[0]) + self.offset
        values = table.index_select(0, codes) * _spread(scales, self.block, codes.shape[0])
        return values.reshape(self.shape)


@dataclass(frozen=True)
class _Eight:
    def __call__(self, weight: Tensor, scales: Tensor) -> Tensor:
        return weight.to(torch.float32) * (scales.reshape(-1, 1) / 127)


def _spread(scales: Tensor, block: int, count: int) -> Tensor:
    return scales.reshape(-1).repeat_interleave(block)[:count]


class BitsAndBytes:
    """The scheme of a model's `quantization_config`.

    Args:
        config: it.
        state: reads a JSON object that lies in a tensor of bytes, by the tensor's key.
    """

    def __init__(
        self, config: Mapping[str, Any], state: Callable[[str], Mapping[str, Any]]
    ) -> None:
        self._state = state

    def stored(
        self, key: str, type: TensorType, tensors: Mapping[str, TensorType]
    ) -> Stored | None:
        """Returns what the checkpoint holds for a weight; None: the weight itself.

        Raises:
            ExportError: the state beside a weight lacks something.
        """
        row_scales = key.removesuffix("weight") + "SCB"
        if row_scales in tensors:
            return Stored({name: tensors[name] for name in (key, row_scales)}, _Eight())
        found = next((name for name in tensors if name.startswith(key + _STATE)), None)
        if found is None:
            return None
        names = ("", ".quant_map", ".absmax", ".nested_absmax", ".nested_quant_map")
        held = {key + name: tensors[key + name] for name in names if key + name in tensors}
        state = self._state(found)
        try:
            shape = tuple(int(size) for size in state["shape"])
            block, nested = int(state["blocksize"]), int(state.get("nested_blocksize", 1))
            offset = float(state.get("nested_offset", 0.0))
        except (KeyError, TypeError, ValueError) as error:
            raise ExportError(f"{found} does not say how {key} is quantized: {error!r}.") from error
        return Stored(held, _Four(shape, block, nested, offset))

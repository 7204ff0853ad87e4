"""Tensors made from a seed and a few measures, in the place of data that must not travel."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from npusim.errors import Error
from npusim.ir.types import DTYPES, HOST_DTYPES, TensorType
from npusim.ops.reference import type_of

_MOST_VALUES = 8  # a tensor of so few distinct values, a mask or an index, is made of them


@dataclass(frozen=True)
class TensorData:
    """How to make a tensor that is like another one.

    Attributes:
        mean, std, low, high: a normal distribution, cut off at the ends, for floating-point
            tensors; integers are uniform from low to high.
        values: what to draw from instead, where there are few distinct values.
    """

    type: TensorType
    mean: float = 0.0
    std: float = 1.0
    low: float = -math.inf
    high: float = math.inf
    values: tuple[float, ...] = ()

    @classmethod
    def like(cls, tensor: Tensor) -> TensorData:
        """Measures a tensor."""
        type = type_of(tensor).with_order(None)
        if tensor.is_complex() or not tensor.numel():
            return cls(type)
        flat = tensor.detach().cpu().reshape(-1)
        if not tensor.is_floating_point():
            low, high = int(flat.min()), int(flat.max())
            return cls(type, low=low, high=high)
        few = _few_values(flat)
        if few:
            return cls(type, values=few)
        finite = flat[flat.isfinite()].double()
        if not finite.numel():
            return cls(type, values=(float(flat[0]),))
        mean, std = float(finite.mean()), float(finite.std(unbiased=False))
        return cls(type, mean, std, float(finite.min()), float(finite.max()))

    def make(self, name: str, seed: int) -> Tensor:
        """Returns the tensor of that name and seed: the same bits on every machine."""
        generator = torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))
        shape, dtype = self.type.shape, getattr(torch, self.type.dtype)
        if dtype.is_complex:
            return torch.randn(shape, generator=generator, dtype=dtype)
        if self.values:
            index = torch.randint(len(self.values), shape, generator=generator)
            return torch.tensor(self.values, dtype=torch.float64)[index].to(dtype)
        if not dtype.is_floating_point:
            low, high = int(max(self.low, -(2**62))), int(min(self.high, 2**62))
            return torch.randint(low, high + 1, shape, generator=generator).to(dtype)
        normal = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (normal * self.std + self.mean).clamp(self.low, self.high).to(dtype)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields; infinities and NaNs as words."""
        numbers = {k: _word(getattr(self, k)) for k in ("mean", "std", "low", "high")}
        values = [_word(v) for v in self.values]
        shape = list(self.type.shape)
        return {"dtype": self.type.dtype, "shape": shape, **numbers, "values": values}

    @classmethod
    def from_json(cls, data: Any) -> TensorData:
        """Inverse of `to_json`.

        Raises:
            Error: the data are malformed.
        """
        try:
            dtype, shape = data["dtype"], tuple(data["shape"])
            if dtype not in {*DTYPES, *HOST_DTYPES} or not all(
                type(n) is int and n >= 0 for n in shape
            ):
                raise ValueError(f"{dtype}{list(shape)} is no type")
            mean, std, low, high = (float(data[k]) for k in ("mean", "std", "low", "high"))
            values = tuple(float(v) for v in data["values"])
            return cls(TensorType(dtype, shape), mean, std, low, high, values)
        except (KeyError, TypeError, ValueError) as error:
            raise Error(f"A tensor's description is malformed: {error}.") from error


def _few_values(flat: Tensor) -> tuple[float, ...]:
    """Returns the distinct values of a tensor that has few of them, else nothing."""
    if len(flat[:64].unique()) > _MOST_VALUES:
        return ()
    distinct = flat.nan_to_num(math.nan, math.inf, -math.inf).unique()
    nans = (math.nan,) if bool(flat.isnan().any()) else ()
    few = sorted(float(v) for v in distinct if not math.isnan(v))
    return (*few, *nans) if len(few) <= _MOST_VALUES else ()


def _word(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)

"""How far a tensor is from what was expected: the measures, and what passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from npusim.errors import ShapeError
from npusim.ir.types import TensorType, is_float
from npusim.ops.reference import type_of

# Largest error that passes, relative to the largest magnitude of the expected tensor. Integers and
# bools must be equal.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Comparison:
    """How far a tensor is from what was expected.

    Attributes:
        max_abs: largest absolute difference; infinite when NaNs or infinities stand elsewhere.
        max_rel: `max_abs` over the largest magnitude expected.
        sqnr_db: signal-to-quantization-noise ratio, 10·log10(Σ expected² / Σ difference²), in dB;
            infinite for equal tensors.
        cosine: of the angle between both, as vectors; 1 for equal ones.
        tolerance: what `max_rel` may be.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    sqnr_db: float
    cosine: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the tensor is within its tolerance."""
        return self.max_rel <= self.tolerance

    def to_json(self) -> dict[str, Any]:
        """Returns the fields; infinities as None."""
        fields = {**asdict(self), "shape": list(self.shape), "ok": self.ok}
        return without_infinities(fields)

    def __str__(self) -> str:
        return (
            f"{self.name} {TensorType(self.dtype, self.shape)}: max abs {self.max_abs:.3g}, "
            f"max rel {self.max_rel:.3g} (tolerance {self.tolerance:.3g}), "
            f"SQNR {self.sqnr_db:.1f} dB, cosine {self.cosine:.6f}"
        )


def compare(
    name: str, actual: Tensor, expected: Tensor, tolerance: float | None = None
) -> Comparison:
    """Measures how far a tensor is from the expected one.

    Raises:
        ShapeError: they differ in shape or dtype.
    """
    type = type_of(expected)
    if type_of(actual) != type:
        raise ShapeError(f"{name} is {type_of(actual)}, but PyTorch gives {type}.")
    allowed = TOLERANCE[type.dtype] if is_float(type.dtype) else 0.0
    if tolerance is not None and is_float(type.dtype):
        allowed = tolerance
    measures = _measure(actual.detach().cpu(), expected.detach().cpu())
    return Comparison(name, type.dtype, type.shape, *measures, allowed)


def compare_all(
    names: Sequence[str],
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    tolerance: float | None,
) -> tuple[Comparison, ...]:
    """Compares outputs in order; ShapeError when there are not as many as expected."""
    if not len(names) == len(actual) == len(expected):
        raise ShapeError(f"There are {len(actual)} outputs, but PyTorch gives {len(expected)}.")
    triples = zip(names, actual, expected, strict=True)
    return tuple(compare(name, a, e, tolerance) for name, a, e in triples)


def _measure(actual: Tensor, expected: Tensor) -> tuple[float, float, float, float]:
    """Returns (max abs, max rel, SQNR in dB, cosine) in float64."""
    if torch.equal(actual, expected):  # also for integers that float64 cannot tell apart
        return 0.0, 0.0, math.inf, 1.0
    a, e = actual.double().reshape(-1), expected.double().reshape(-1)
    finite = torch.isfinite(e)
    same_elsewhere = (a == e) | (a.isnan() & e.isnan())
    if not bool(torch.all(torch.where(finite, torch.isfinite(a), same_elsewhere))):
        return math.inf, math.inf, -math.inf, 0.0
    a, e = a[finite], e[finite]
    difference = (a - e).abs()
    noise, signal = float((difference**2).sum()), float((e**2).sum())
    max_abs = float(difference.max()) if difference.numel() else 0.0
    if not actual.is_floating_point():
        max_abs = max(max_abs, 1.0)  # they differ, see above
    elif noise == 0.0:
        return max_abs, 0.0, math.inf, 1.0
    peak, lengths = float(e.abs().max()), math.sqrt(signal) * float(a.norm())
    max_rel = max_abs / peak if peak else math.inf
    noise = noise or max_abs**2
    sqnr = 10 * math.log10(signal / noise) if signal else -math.inf
    return max_abs, max_rel, sqnr, float(a @ e) / lengths if lengths else 0.0


def without_infinities(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with None for what JSON cannot say."""
    return {
        k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()
    }

"""Formats of quantized weights: their names, their layout in memory, and a reference in PyTorch.

A weight [rows, k] becomes one opaque tensor of bytes, which the kernel `quantize` writes and
`quantized_linear` reads (`kernels/cpu/quantized.h` has the same layout). K is padded with zeros to
whole blocks of 128. Three sections follow one another, each beginning on a cache line: the codes of
all rows, their scales, their zero points; then a cache line of padding.

* `int8`: element = code * scale, one float32 scale a row; `quantize` makes codes in [-127, 127].
* `fp8`: likewise of codes float8_e4m3fn, up to 448. A row with a NaN among its codes has NaN for
  its scale, so that a product need not look at codes: any sum over such a row is NaN.
* `int4`: element = (code - 8) * scale, code in [0, 15], one float16 scale a group of a row.
* `int4-asymmetric`: element = (code - zero) * scale, likewise with a zero point a group, a byte
  that counts sixteenths.

Codes of 4 bits: 32 elements are 8 little-endian words of 16 bits, and word j holds elements j,
j + 8, j + 16 and j + 24 from its low bits up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npusim.errors import TargetConstraintError

if TYPE_CHECKING:
    from torch import Tensor

FORMATS = {"int8": 1, "int4": 2, "int4-asymmetric": 3, "fp8": 4}  # as kernels know them
BYTE_FORMATS = ("int8", "fp8")  # a byte an element, a scale a row
BYTE_CODES = tuple(FORMATS[name] for name in BYTE_FORMATS)
GROUPS = (32, 64, 128)
BLOCK = 128  # what K is padded to
LINE = 64  # bytes

SCHEMES = (
    *BYTE_FORMATS,
    *(f"int4-g{group}{tail}" for group in GROUPS for tail in ("", "-asymmetric")),
)

# What share of its extremes the range of a group may have; the best is chosen by squared error.
_SYMMETRIC_REACH = (1.09, 1.0, 0.93, 0.86, 0.8)
_ASYMMETRIC_REACH = (1.0, 0.93, 0.86, 0.8)

_GREATEST = {"int8": 127, "fp8": 448}  # codes


@dataclass(frozen=True)
class Quantization:
    """How weights are quantized.

    Attributes:
        format: one of `FORMATS`.
        group: how many elements of a row share a scale; 0 for bytes, where a whole row does.
    """

    format: str
    group: int = 0

    @classmethod
    def parse(cls, scheme: str) -> Quantization | None:
        """Returns what a scheme such as "int8" or "int4-g32-asymmetric" means; None for "none".

        Raises:
            TargetConstraintError: there is no such scheme; the message lists those that exist.
        """
        if scheme == "none":
            return None
        if scheme not in SCHEMES:
            raise TargetConstraintError(
                f"Weights cannot be quantized as '{scheme}'.",
                hint=f"Schemes: none, {', '.join(SCHEMES)}.",
            )
        if scheme in BYTE_FORMATS:
            return cls(scheme)
        bits, group, *asymmetric = scheme.split("-")
        return cls("-".join((bits, *asymmetric)), int(group[1:]))

    @property
    def bytes_a_code(self) -> bool:
        """Whether a code is a byte, and a whole row has one scale."""
        return self.format in BYTE_FORMATS

    def groups(self, k: int) -> int:
        """Scales of a row."""
        return 1 if self.bytes_a_code else padded(k) // self.group


def padded(k: int) -> int:
    """K as it is stored."""
    return -(-k // BLOCK) * BLOCK


def sections(how: Quantization, rows: int, k: int) -> tuple[int, int, int]:
    """Returns the bytes of the codes, scales and zero points, without what pads them."""
    groups = rows * how.groups(k)
    if how.bytes_a_code:
        return rows * padded(k), 4 * groups, 0
    return rows * padded(k) // 2, 2 * groups, groups if how.format == "int4-asymmetric" else 0


def quantized_bytes(how: Quantization, rows: int, k: int) -> int:
    """Returns the size of a quantized weight [rows, k]."""
    return sum(map(_lines, sections(how, rows, k))) + LINE


def quantize(w: Tensor, how: Quantization) -> Tensor:
    """Returns a weight [rows, k] as bytes: the reference of the kernel `quantize`."""
    import torch
    from torch.nn import functional as F

    rows, k = w.shape
    x = F.pad(w.float(), (0, padded(k) - k))
    zero = torch.empty(0)
    if how.bytes_a_code:
        most = _GREATEST[how.format]
        scale = x.abs().amax(1, keepdim=True) / most if k else torch.zeros(rows, 1)
        codes = (x * _inverse(scale)).clamp(-most, most)
        if how.format == "int8":
            codes = codes.round().to(torch.int8)
        else:
            codes = codes.to(torch.float8_e4m3fn)
            scale = torch.where(scale.isinf(), torch.nan, scale)
    else:
        grouped = x.reshape(rows, how.groups(k), how.group)
        fit = _fit_symmetric if how.format == "int4" else _fit_asymmetric
        scale, zero = (v[..., 0] for v in fit(grouped))
        at = grouped * _inverse(scale)[..., None] + zero[..., None]
        codes = code_words(at.round().clamp(0, 15).to(torch.int32).reshape(rows, -1))
        scale = scale.half()
    zeros = (zero * 16).to(torch.uint8) if how.format == "int4-asymmetric" else zero[:0]
    parts = [_bytes(part) for part in (codes, scale, zeros)]
    full = [F.pad(part, (0, _lines(part.numel()) - part.numel())) for part in parts]
    return torch.cat([*full, torch.zeros(LINE, dtype=torch.uint8)])


def dequantize(data: Tensor, how: Quantization, rows: int, k: int) -> Tensor:
    """Returns the float32 weight [rows, k] that quantized bytes stand for."""
    import torch

    starts, parts = 0, []
    for size in sections(how, rows, k):
        parts.append(data[starts : starts + size].clone())
        starts += _lines(size)
    codes, scales, zeros = parts
    if how.bytes_a_code:
        scale = scales.view(torch.float32).reshape(rows, 1)
        dtype = torch.int8 if how.format == "int8" else torch.float8_e4m3fn
        return (codes.view(dtype).reshape(rows, padded(k)).float() * scale)[:, :k]
    pairs = codes.reshape(-1, 8, 2).int()
    words = pairs[..., 0] | pairs[..., 1] << 8
    nibbles = torch.stack([words >> shift & 15 for shift in (0, 4, 8, 12)], 1)
    shape = (rows, how.groups(k), how.group)
    zero = zeros.float().reshape(*shape[:2], 1) / 16 if zeros.numel() else 8.0
    scale = scales.view(torch.float16).float().reshape(*shape[:2], 1)
    return ((nibbles.reshape(shape).float() - zero) * scale).reshape(rows, padded(k))[:, :k]


def code_words(codes: Tensor) -> Tensor:
    """Returns codes [rows, k] of 4 bits as bytes [rows, k / 2]."""
    import torch

    nibbles = codes.reshape(codes.shape[0], -1, 4, 8)
    words = sum(nibbles[:, :, i] << 4 * i for i in range(4))
    assert isinstance(words, torch.Tensor)
    return torch.stack((words & 255, words >> 8), -1).reshape(codes.shape[0], -1).to(torch.uint8)


def _fit_symmetric(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns scales and zero points of groups [..., size], each [..., 1]."""
    import torch

    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    extreme = torch.where(-low > high, low, high)
    scale, best = extreme / -8, torch.zeros_like(extreme)
    for reach in _SYMMETRIC_REACH:
        code = (x * _inverse(extreme * (reach / -8))).round().clamp(-8, 7)
        cx = (code * x).sum(-1, keepdim=True)
        candidate = cx * _inverse((code * code).sum(-1, keepdim=True))
        scale = torch.where(candidate * cx > best, candidate, scale)
        best = torch.maximum(candidate * cx, best)
    return _stored(scale), torch.full_like(scale, 8)


def _fit_asymmetric(x: Tensor) -> tuple[Tensor, Tensor]:
    """Likewise: a line through codes and elements, its crossing rounded, its slope fitted again."""
    import torch

    n, total = x.shape[-1], x.sum(-1, keepdim=True)
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale, zero, best = (high - low) / 15, torch.zeros_like(low), torch.zeros_like(low)
    for reach in _ASYMMETRIC_REACH:
        inverse = _inverse((high - low) * (reach / 15))
        middle = 7.5 - 0.5 * (high + low) * inverse
        code = (x * inverse + middle).round().clamp(0, 15)
        c, cc, cx = (v.sum(-1, keepdim=True) for v in (code, code * code, code * x))
        spread = n * cc - c * c
        line = (n * cx - c * total) * _inverse(spread)
        crossing = torch.where(spread > 0, (c - total * _inverse(line)) / n, middle)
        at = (crossing * 16).clamp(0, 255).round() / 16
        dx = cx - at * total
        candidate = dx * _inverse(cc - 2 * at * c + n * at * at)
        better = candidate * dx > best
        scale, zero = torch.where(better, candidate, scale), torch.where(better, at, zero)
        best = torch.maximum(candidate * dx, best)
    return _stored(scale), zero


def _stored(scale: Tensor) -> Tensor:
    """Returns scales as a float16 holds them."""
    import torch

    kept = torch.where(scale.abs() < 2.0**-24, torch.zeros_like(scale), scale)
    return kept.clamp(-65504, 65504).half().float()


def _inverse(x: Tensor) -> Tensor:
    import torch

    return torch.where(x != 0, 1 / x, torch.zeros_like(x))


def _bytes(x: Tensor) -> Tensor:
    import torch

    return x.contiguous().reshape(-1).view(torch.uint8)


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE

"""Special functions as formulas: error functions, gamma functions, modified Bessel functions.

Computed in float64 and rounded to float32 or a 16-bit float once; float64 itself, of which these
formulas have too few digits, is left to PyTorch. Polynomials are Chebyshev interpolations made for
this file, with the largest error relative to the function beside them. Gamma functions move their
argument up by recurrence to where their asymptotic series hold (Abramowitz and Stegun, 6.1.40,
6.3.18 and 6.4.12), and reflect it where it is negative (6.1.17, 6.3.7 and 6.4.7).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from npusim.frontends.composites import written

aten = torch.ops.aten

# (1 + 2 x) exp(x^2) erfc(x) over (x - 3) / (x + 3), x >= 0; 4e-12.
_ERFCX = (
    1.2530080582697296, -0.13562110604544486, -0.04756229434408542,
    0.12964515488975925, -0.11927366386876155, 0.06830808121993719,
    -0.02377050843590002, 0.0025290477145819517, 0.0018886481087255704,
    -0.0007786553590414458, -0.00010501055530664564, 0.00012277868723936512,
    4.6396534747687665e-06, -1.7412229953648996e-05, -3.404492063215026e-07,
    1.694674607237505e-06, 5.516946546651233e-08,
)  # fmt: skip
# exp(-x) I0(x), and exp(-x) I1(x) / x, over x / 4 - 1, x <= 8; 9e-11.
_I0_NEAR = (
    0.2070019212239867, -0.11300432654348828, 0.09451562842516041,
    -0.08904346645630873, 0.08734342458197082, -0.08496284076533661,
    0.07927504492355045, -0.06954651412975588, 0.056778814790985566,
    -0.04295725075501792, 0.030168286136064423, -0.019775351506074058,
    0.01199119818260163, -0.006605936634764051, 0.0035544414024135983,
    -0.0020461388965098723, 0.0009352321298116495, -0.00020636329707506994,
    0.00010271931878805943, -0.00013592006898095621, 4.9179807024730725e-05,
)  # fmt: skip
_I1_NEAR = (
    0.044687709875608835, -0.06112433799007499, 0.06805759989689755,
    -0.0684826091053086, 0.06376740463728496, -0.055279976798581335,
    0.044674552725048805, -0.03367197055283874, 0.023686213041875678,
    -0.0155679877622009, 0.009582902619497388, -0.00554530937067591,
    0.0030091916424835638, -0.0015172283196528769, 0.0007375935634886747,
    -0.0003684467431909782, 0.00015715397534503563, -4.077280388096948e-05,
    1.7599730578225902e-05, -1.745472071400764e-05, 5.984122024648426e-06,
)  # fmt: skip
# sqrt(x) exp(-x) I0(x), and of I1, over 16 / x - 1, x >= 8; 1e-10.
_I0_FAR = (
    0.4021765094304104, 0.0033605519772923567, 0.0001362168064095406,
    1.114335783616667e-05, 1.4779039317130925e-06, 2.9454355258644655e-07,
    1.0581912143444269e-07, 4.87052699324228e-08, 1.4299052612198226e-09,
    -7.604476628119482e-09,
)  # fmt: skip
_I1_FAR = (
    0.3893984590413705, -0.00974957718622692, -0.00021923654075302202,
    -1.5038903140823282e-05, -1.8286126404951484e-06, -3.4530445206404697e-07,
    -1.180581934125939e-07, -5.331069808950009e-08, -2.3366532025618313e-09,
    7.805544285716195e-09,
)  # fmt: skip
_NEAR = 8.0  # where the two meet

_STEPS = 8  # of the recurrences
# Factors of y^-1, y^-3, … of ln Γ, of y^-2, y^-4, … of ψ, and of y^-1, y^-3, … of ψ'.
_LGAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760)
_TRIGAMMA = (1.0, 1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)

Function = Callable[[Tensor], Tensor]


def _wide(*operators: Any) -> Callable[[Function], Function]:
    """Returns a decorator that writes operators by a function of float64."""

    def enter(function: Function) -> Function:
        for operator in operators:
            written(operator)(functools.partial(_rounded, function))
        return function

    return enter


def _rounded(function: Function, x: Tensor) -> Any:
    if x.is_complex() or x.dtype == torch.float64:
        return NotImplemented
    kind = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    return NotImplemented if kind == torch.float64 else function(x.double()).to(kind)


def _polynomial(factors: Sequence[float], x: Tensor) -> Tensor:
    """The sum of factors[i] * x^i."""
    total = x * factors[-1] + factors[-2]
    for factor in reversed(factors[:-2]):
        total = total * x + factor
    return total


# ---- error functions ----


def _scaled_erfc(a: Tensor) -> Tensor:
    """exp(a^2) erfc(a) of a >= 0."""
    found = _polynomial(_ERFCX, (a - 3) / (a + 3)) / (1 + 2 * a)
    return torch.where(a == math.inf, 0.0, found)


@_wide(aten.erfc.default)
def _erfc(x: Tensor) -> Tensor:
    """1 - erf(x), to its last digits where it is small."""
    tail = _scaled_erfc(x.abs()) * torch.exp(-x * x)
    return torch.where(x < 0, 2 - tail, tail)


@_wide(aten.special_erfcx.default)
def _erfcx(x: Tensor) -> Tensor:
    """exp(x^2) erfc(x)."""
    tail = _scaled_erfc(x.abs())
    return torch.where(x < 0, 2 * torch.exp(x * x) - tail, tail)


@_wide(aten.special_log_ndtr.default)
def _log_ndtr(x: Tensor) -> Tensor:
    """The logarithm of the normal distribution function."""
    half = x * math.sqrt(0.5)
    far = torch.log(_scaled_erfc(half.abs()) / 2) - half * half
    return torch.where(x < -1, far, torch.log1p(-_erfc(half) / 2))


# ---- gamma functions ----


def _from_whole(x: Tensor) -> Tensor:
    """How far a number lies from the nearest whole one, in half turns: exact, unlike π x."""
    return (x - torch.round(x)) * math.pi


@_wide(aten.lgamma.default)
def _lgamma(x: Tensor) -> Tensor:
    """ln |Γ(x)|; infinite at 0 and at whole numbers below."""
    z = torch.where(x < 0, 1 - x, x)
    product = z
    for step in range(1, _STEPS):
        product = product * (z + step)
    y = z + _STEPS
    one = 1 / y
    series = one * _polynomial(_LGAMMA, one * one)
    up = (y - 0.5) * torch.log(y) - y + (math.log(2 * math.pi) / 2) + series
    up = torch.where(z == math.inf, z, up - torch.log(product))
    reflected = math.log(math.pi) - torch.log(torch.sin(_from_whole(x)).abs()) - up
    found = torch.where(x < 0, reflected, up)
    return torch.where(x == -math.inf, math.inf, found)


@_wide(aten.digamma.default)
def _digamma(x: Tensor) -> Tensor:
    """The derivative of ln Γ(x); NaN at whole numbers below 0."""
    z = torch.where(x < 0, 1 - x, x)
    below = 1 / z
    for step in range(1, _STEPS):
        below = below + 1 / (z + step)
    one = 1 / (z + _STEPS)
    square = one * one
    up = torch.log(z + _STEPS) - one / 2 + square * _polynomial(_DIGAMMA, square) - below
    turn = _from_whole(x)
    reflected = torch.where(turn == 0, math.nan, up - math.pi / torch.tan(turn))
    return torch.where(x < 0, reflected, up)


def _trigamma(x: Tensor) -> Tensor:
    """The second derivative of ln Γ(x); infinite at 0 and at whole numbers below."""
    z = torch.where(x < 0, 1 - x, x)
    below = 1 / (z * z)
    for step in range(1, _STEPS):
        below = below + 1 / ((z + step) * (z + step))
    one = 1 / (z + _STEPS)
    square = one * one
    up = one * _polynomial(_TRIGAMMA, square) + square / 2 + below
    sine = torch.sin(_from_whole(x))
    return torch.where(x < 0, math.pi * math.pi / (sine * sine) - up, up)


@written(aten.polygamma.default)
def _polygamma(n: int, x: Tensor) -> Any:
    """The derivative number n + 1 of ln Γ(x), up to the second; later ones are zeta functions."""
    if n not in (0, 1):
        return NotImplemented
    return _rounded(_digamma if n == 0 else _trigamma, x)


# ---- modified Bessel functions ----


def _scaled_bessel(
    near: Sequence[float], far: Sequence[float], a: Tensor, factor: Tensor | float
) -> Tensor:
    """exp(-a) I(a) of a >= 0; `factor` is what the first formula leaves out."""
    close = _polynomial(near, a / 4 - 1) * factor
    return torch.where(a <= _NEAR, close, _polynomial(far, 16 / a - 1) / torch.sqrt(a))


@_wide(aten.special_i0e.default)
def _i0e(x: Tensor) -> Tensor:
    """exp(-|x|) I0(x)."""
    return _scaled_bessel(_I0_NEAR, _I0_FAR, x.abs(), 1.0)


@_wide(aten.special_i1e.default)
def _i1e(x: Tensor) -> Tensor:
    """exp(-|x|) I1(x)."""
    a = x.abs()
    found = _scaled_bessel(_I1_NEAR, _I1_FAR, a, a)
    return torch.where(x < 0, -found, found)


@_wide(aten.i0.default)
def _i0(x: Tensor) -> Tensor:
    """The modified Bessel function of the first kind and order 0."""
    return _i0e(x) * _growth(x)


@_wide(aten.special_i1.default)
def _i1(x: Tensor) -> Tensor:
    """The modified Bessel function of the first kind and order 1."""
    return _i1e(x) * _growth(x)


def _growth(x: Tensor) -> Tensor:
    return torch.exp(x.abs())

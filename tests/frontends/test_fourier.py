"""Fourier transforms run natively, as products of pairs with matrices of cosines and sines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fft, nn

import npusim
from npusim.ops.reference import run_graph

from .modules import Compute

_WINDOW = torch.hann_window(64)


def _spectrum(x: Tensor) -> Tensor:
    return torch.stft(x, 64, 16, window=_WINDOW, return_complex=True)


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "rfft": lambda x: torch.view_as_real(fft.rfft(x)),
    "odd": lambda x: torch.view_as_real(fft.rfft(x[..., :125], norm="ortho")),
    "prime": lambda x: torch.view_as_real(fft.fft(x[..., :127])),
    "two steps": lambda x: torch.view_as_real(fft.rfft(x, n=1024)),
    "two steps, whole": lambda x: torch.view_as_real(fft.ifft(fft.fft(x, n=360), norm="forward")),
    "other dimension": lambda x: torch.view_as_real(fft.fft(x, dim=0)),
    "plane": lambda x: fft.fft2(x.reshape(3, 16, 16)).real.clone(),
    "there and back": lambda x: fft.irfft(fft.rfft(x), n=256),
    "back, odd": lambda x: fft.irfft(fft.rfft(x[..., :125]), n=125),
    "back in two steps": lambda x: fft.irfft(fft.rfft(x, n=1024), n=1024, norm="ortho"),
    "back over a plane": lambda x: fft.irfft2(fft.rfft2(x.reshape(3, 16, 16))),
    "convolution": lambda x: fft.irfft(fft.rfft(x, n=512) * fft.rfft(x[:1], n=512).conj(), n=512),
    "phase": lambda x: torch.angle(fft.rfft(x[:, :16])),
    "stft": lambda x: _spectrum(x).abs() ** 2,
    "istft": lambda x: torch.istft(_spectrum(x), 64, 16, window=_WINDOW, length=256),
    "istft, every sample": lambda x: torch.istft(
        torch.stft(x, 64, 1, window=_WINDOW, return_complex=True), 64, 1, window=_WINDOW
    ),
    "float64": lambda x: torch.view_as_real(fft.rfft(x.double())),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms_are_native_and_right(name: str) -> None:
    function = FUNCTIONS[name]
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(5))
    graph = npusim.extract_ir(Compute(function).eval(), (x,))
    assert npusim.check(graph).coverage == 1.0
    want = function(x)
    error = 1e-12 if want.dtype == torch.float64 else 3e-6
    (referred,) = run_graph(graph, [x])
    (got,) = npusim.load(npusim.compile(graph))(x)
    for result in (got, referred):
        assert result.shape == want.shape and result.dtype == want.dtype
        assert (result - want).abs().max() <= error * want.abs().max()


class _Echo(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return fft.irfft(2 * fft.rfft(x), n=self.size) + fft.fft(x).abs()


@pytest.mark.parametrize("size", [60, 1024])  # one step, and two
def test_a_batch_may_be_left_open(size: int) -> None:
    model, batch = _Echo(size).eval(), torch.export.Dim("batch", max=8)
    open_batch = {"x": {0: batch}}
    graph = npusim.extract_ir(model, (torch.randn(3, size),), dynamic_shapes=open_batch)
    run = npusim.load(npusim.compile(graph))
    for rows in (1, 5, 8):
        x = torch.randn(rows, size)
        (got,), want = run(x), model(x)
        assert (got - want).abs().max() <= 3e-6 * want.abs().max()


def test_matrices_are_computed_by_init() -> None:
    """A call of the program multiplies; cosines were computed when it was loaded."""
    graph = npusim.extract_ir(Compute(FUNCTIONS["two steps"]).eval(), (torch.randn(3, 256),))
    program = npusim.compile(graph)
    (method,) = program.methods
    kernels = {program.kernels[command.kernel].name for command in method.commands}
    assert kernels <= {"copy", "matmul", "gemm", "fill"}, kernels


def test_a_size_without_factors_may_be_too_large() -> None:
    x = torch.randn(2, 4093)
    graph = npusim.extract_ir(
        Compute(lambda x: torch.view_as_real(fft.fft(torch.complex(x, x)))).eval(), (x,)
    )
    assert {note.op for note in npusim.check(graph).others} == {
        "aten.view_as_complex.default",
        "aten._fft_c2c.default",
        "aten.view_as_real.default",
    }

"""Models that compute in the frequency domain, written from their papers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class KeywordSpotter(nn.Module):
    """A convolutional classifier after a mel front end: sound [N, samples] to [N, 12].

    Sainath & Parada, Convolutional neural networks for small-footprint keyword spotting, 2015.
    """

    def __init__(self, window: int = 200, mels: int = 16) -> None:
        super().__init__()
        self.window, self.step = window, window // 2
        self.register_buffer("taper", torch.hann_window(window))
        self.register_buffer("filters", torch.rand(window // 2 + 1, mels) / window)
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU()
        )
        self.head = nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Returns scores of words."""
        spectrum = torch.stft(x, self.window, self.step, window=self.taper, return_complex=True)
        power = spectrum.abs().square().transpose(1, 2)
        mel = (power @ self.filters).clamp_min(1e-6).log10()
        return self.head(self.features(mel.unsqueeze(1)).mean((2, 3)))


class Separator(nn.Module):
    """Masks the spectrum of a mixture and gives sound back: [N, samples] to [N, samples].

    Hershey et al., Deep clustering, 2016 (the masking network, without its clustering).
    """

    def __init__(self, window: int = 128) -> None:
        super().__init__()
        self.window, self.step = window, window // 4
        self.register_buffer("taper", torch.hann_window(window))
        bins = window // 2 + 1
        self.mask = nn.Sequential(
            nn.Conv1d(bins, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, bins, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns the masked sound."""
        mixture = torch.stft(x, self.window, self.step, window=self.taper, return_complex=True)
        masked = mixture * self.mask(mixture.abs()).sigmoid()
        return torch.istft(masked, self.window, self.step, window=self.taper, length=x.shape[-1])


class _SpectralConvolution(nn.Module):
    """Mixes channels mode by mode, over the lowest modes of a plane."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.low = nn.Parameter(torch.randn(2, channels, channels, modes, modes) / channels)
        self.high = nn.Parameter(torch.randn(2, channels, channels, modes, modes) / channels)

    def forward(self, x: Tensor) -> Tensor:
        """x[N, C, H, W] to the same shape."""
        spectrum, modes = torch.fft.rfft2(x), self.modes
        mixed = torch.zeros_like(spectrum)
        for weight, rows in ((self.low, slice(0, modes)), (self.high, slice(-modes, None))):
            part = spectrum[:, :, rows, :modes]
            factor = torch.complex(weight[0], weight[1])
            mixed[:, :, rows, :modes] = torch.einsum("nixy,ioxy->noxy", part, factor)
        return torch.fft.irfft2(mixed, s=x.shape[-2:])


class FourierNeuralOperator(nn.Module):
    """Maps functions on a plane to functions: [N, 1, H, W] to [N, 1, H, W].

    Li et al., Fourier neural operator for parametric partial differential equations,
    arXiv:2010.08895.
    """

    def __init__(self, channels: int = 8, modes: int = 5, layers: int = 2) -> None:
        super().__init__()
        self.lift = nn.Conv2d(1, channels, 1)
        self.spectral = nn.ModuleList(_SpectralConvolution(channels, modes) for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(layers))
        self.project = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the function at the same places."""
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = nn.functional.gelu(spectral(x) + local(x))
        return self.project(x)


class GlobalFilterNetwork(nn.Module):
    """Patches mixed by a learned filter in the frequency domain: images [N, 3, 32, 32] to [N, 10].

    Rao et al., Global filter networks for image classification, arXiv:2107.00645.
    """

    def __init__(self, width: int = 24, side: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, stride=4)
        shape = (layers, side, side // 2 + 1, width, 2)
        self.filters = nn.Parameter(torch.randn(shape) * 0.02 + 0.5)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.mixers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Returns scores of classes."""
        x = self.embed(x).permute(0, 2, 3, 1)
        for norm, mixer, weights in zip(self.norms, self.mixers, self.filters, strict=True):
            spectrum = torch.fft.rfft2(norm(x), dim=(1, 2), norm="ortho")
            filtered = spectrum * torch.view_as_complex(weights)
            x = x + mixer(torch.fft.irfft2(filtered, s=x.shape[1:3], dim=(1, 2), norm="ortho"))
        return self.head(x.mean((1, 2)))

"""Pictures from pictures or noise: super-resolution, denoising, generators, an autoencoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.plain.mixers import Residual


class SRCNN(nn.Module):
    """Three convolutions on an enlarged picture (Dong et al., arXiv:1501.00092)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 16, 9, padding=4), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.ReLU()),
            nn.Conv2d(8, 3, 5, padding=2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(F.interpolate(x, scale_factor=3, mode="bicubic", align_corners=False))


def espcn() -> nn.Module:
    """Sub-pixel convolution (Shi et al., arXiv:1609.05158)."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 12, 3, padding=1), nn.Tanh()),
        *(nn.Conv2d(12, 3 * 9, 3, padding=1), nn.PixelShuffle(3)),
    )


def edsr() -> nn.Module:
    """Residual blocks without norms, then sub-pixel convolution (Lim et al., arXiv:1707.02921)."""

    def block() -> nn.Module:
        layers = (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
        return Residual(*layers)

    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), Residual(block(), block())),
        *(nn.Conv2d(16, 64, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(16, 3, 3, padding=1)),
    )


class DnCNN(nn.Module):
    """Predicts the noise and subtracts it (Zhang et al., arXiv:1608.03981)."""

    def __init__(self) -> None:
        super().__init__()
        middle = (nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.noise = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), *middle, nn.Conv2d(16, 3, 3, padding=1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return x - self.noise(x)


def dcgan() -> nn.Module:
    """DCGAN's generator (Radford et al., arXiv:1511.06434): noise [N, 24, 1, 1] to pictures."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride, padding in ((24, 24, 1, 0), (24, 16, 2, 1), (16, 8, 2, 1)):
        layers += [nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh())


def cyclegan() -> nn.Module:
    """CycleGAN's generator (Zhu et al., arXiv:1703.10593): reflection, instance norm."""

    def convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
        return [
            *(nn.ReflectionPad2d(1), nn.Conv2d(inputs, outputs, 3, stride)),
            nn.InstanceNorm2d(outputs),
        ]

    return nn.Sequential(
        *(*convolution(3, 8), nn.ReLU(True), *convolution(8, 16, 2), nn.ReLU(True)),
        Residual(*convolution(16, 16), nn.ReLU(True), *convolution(16, 16)),
        *(nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), nn.InstanceNorm2d(8)),
        *(nn.ReLU(True), nn.ReflectionPad2d(3), nn.Conv2d(8, 3, 7), nn.Tanh()),
    )


class Autoencoder(nn.Module):
    """A variational autoencoder's mean path (Kingma and Welling, arXiv:1312.6114)."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            *(nn.Conv2d(3, 8, 4, 2, 1), nn.ELU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ELU()),
            *(nn.Flatten(), nn.Linear(16 * 64, 2 * 12)),
        )
        self.decode = nn.Sequential(
            *(nn.Linear(12, 16 * 64), nn.ELU(), nn.Unflatten(1, (16, 8, 8))),
            *(nn.Upsample(scale_factor=2), nn.Conv2d(16, 8, 3, padding=1), nn.ELU()),
            *(nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 3, padding=1), nn.Sigmoid()),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Maps [N, 3, 32, 32] to its reconstruction, mean and logarithm of the variance."""
        mean, log_variance = self.encode(x).chunk(2, dim=1)
        return self.decode(mean), mean, torch.clamp(log_variance, -10.0, 10.0)

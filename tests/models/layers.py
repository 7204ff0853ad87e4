"""Building blocks that several of the image models share."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Activation = Callable[[], nn.Module]


class ConvNormAct(nn.Sequential):
    """A convolution without bias, batch norm, and an activation if any."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        activation: Activation | None = nn.ReLU,
        eps: float = 1e-5,
    ) -> None:
        convolution = nn.Conv2d(
            inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False
        )
        tail = [activation()] if activation else []
        super().__init__(convolution, nn.BatchNorm2d(outputs, eps=eps), *tail)


class SqueezeExcitation(nn.Module):
    """Scales channels by a gate computed from their means (Hu et al., arXiv:1709.01507)."""

    def __init__(self, channels: int, squeezed: int, act: Activation, gate: Activation) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = act()
        self.scale_activation = gate()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, C, H, W] to the same shape."""
        gate = self.fc2(self.activation(self.fc1(self.avgpool(x))))
        return self.scale_activation(gate) * x


def round_channels(channels: float, divisor: int = 8) -> int:
    """Rounds to a multiple of `divisor`, losing at most a tenth."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded

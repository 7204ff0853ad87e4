"""Where the error of ResNet-50 in float16 comes from: an emulation of roundings on the CPU.

    PYTHONPATH=python:. python -m benchmarks.half_errors [--images 8]

Seeded random weights, rounded to float16; sums are float32 throughout. The error of a way to round
is the largest difference from float32 with the same weights, relative to the largest output, of all
images together and of each (least, largest).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tests.models import build
from torch import Tensor, nn
from torch.nn import functional as F


def half(x: Tensor) -> Tensor:
    return x.half().float()


def same(x: Tensor) -> Tensor:
    return x


def balanced(weight: Tensor) -> Tensor:
    """Returns weights [n, …] in float16 whose errors add up to about nothing for each of the n."""
    rows = weight.flatten(1)
    near = half(rows)
    error = rows - near
    ulp = 2.0 ** (near.abs().clamp_min(2.0**-14).log2().floor() - 10)
    far = half(near + torch.where(error >= 0, ulp, -ulp))
    total = error.sum(1, keepdim=True)
    cost = (rows - far).square() - error.square()
    cost = torch.where(error.sign() == total.sign(), cost / (far - near).abs(), torch.inf)
    order = cost.argsort(1)
    moved = torch.where(cost.isfinite(), far - near, 0.0).gather(1, order).cumsum(1)
    flips = torch.cat((total, total - moved), 1).abs().argmin(1, keepdim=True)
    return torch.where(order.argsort(1) < flips, far, near).view_as(weight)


@dataclass(frozen=True)
class Rounding:
    """What is rounded to float16, besides what every convolution reads.

    Attributes:
        folded: weights that batch norms have been folded into; else their scales are float32.
        balanced: of these, those nearest to a tie the other way, until the errors of a channel add
            up to nothing: inputs after a relu have a mean.
        level: what is taken out of the pooled values before the first block (center_pooled).
        between: the convolution's result before the batch norm, as PyTorch has it.
        sums: the sums of residuals, where they are added again.
        head: the pooled features and the logits.
    """

    folded: bool = False
    balanced: bool = False
    level: bool = False
    between: bool = False
    sums: bool = True
    head: bool = True
    values: Callable[[Tensor], Tensor] = half


class Emulated:
    """A ResNet of bottlenecks that rounds as it is told."""

    def __init__(self, net: nn.Module, how: Rounding) -> None:
        self.net, self.how = net, how

    def conv(self, x: Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d, add: Tensor | None) -> Tensor:
        scale = bn.weight / (bn.running_var + bn.eps).sqrt()  # type: ignore[operator]
        shift = bn.bias - bn.running_mean * scale  # type: ignore[operator]
        scale, shift = scale[:, None, None], shift[:, None, None]
        if self.how.folded:
            weight = (balanced if self.how.balanced else half)(conv.weight * scale[..., None])
            y = F.conv2d(x, weight, None, conv.stride, conv.padding) + shift
        else:
            y = F.conv2d(x, conv.weight, None, conv.stride, conv.padding)
            y = (half(y) if self.how.between else y) * scale + shift
            y = half(y) if self.how.between else y
        return y if add is None else y + add

    def __call__(self, x: Tensor) -> Tensor:
        net, rounded = self.net, self.how.values
        y = F.max_pool2d(self.conv(x, net.conv1, net.bn1, None).relu(), 3, 2, 1)
        level = half((net.bn1.bias + 1.494 * net.bn1.weight.abs()).relu())[:, None, None]
        level = level * self.how.level
        y = whole = rounded(y - level) + level
        for block in (b for i in range(1, 5) for b in getattr(net, f"layer{i}")):
            kept = y if self.how.sums else whole
            if block.downsample is not None:
                kept = self.conv(y, block.downsample[0], block.downsample[1], None)
                kept = rounded(kept) if self.how.sums else kept
            z = rounded(self.conv(y, block.conv1, block.bn1, None).relu())
            z = rounded(self.conv(z, block.conv2, block.bn2, None).relu())
            whole = self.conv(z, block.conv3, block.bn3, kept).relu()
            y = rounded(whole)
        if not self.how.head:
            return net.fc(whole.mean((2, 3)))  # type: ignore[no-any-return]
        return rounded(net.fc(rounded(y.mean((2, 3)))))


WAYS = {
    "nothing (the order of sums)": Rounding(values=same),
    "PyTorch's float16": Rounding(between=True),
    "norms folded in float32": Rounding(folded=True),
    "... and errors balanced": Rounding(folded=True, balanced=True),
    "... and the head in float32": Rounding(folded=True, head=False),
    "... and sums of residuals in float32": Rounding(folded=True, sums=False),
    "scales applied in float32": Rounding(),
    "... and the head in float32 ": Rounding(head=False),
    "... and sums of residuals in float32 ": Rounding(sums=False),
    "npusim: and the pooled level taken out": Rounding(level=True),
}


def main() -> None:
    """Parses the command line, computes and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=8)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    network, inputs = build("resnet50", batch=args.images)
    net, x = network.half().float().eval(), half(inputs[0])
    want = net(x)
    print(f"{'rounded':40} {'all':>8} {'least':>8} {'largest':>8}")
    for name, how in WAYS.items():
        off = (Emulated(net, how)(x) - want).abs()
        each = off.amax(1) / want.abs().amax(1)
        found = (off.max() / want.abs().max(), each.min(), each.max())
        print(f"{name:40} " + " ".join(f"{float(v):8.1e}" for v in found), flush=True)


if __name__ == "__main__":
    main()

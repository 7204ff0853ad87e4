"""Points, lines of text and warps: PointNet, DGCNN, CRNN, a spatial transformer, optical flow."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.layers import ConvNormAct


def _shared(*widths: int) -> nn.Module:
    """One perceptron for all points, as convolutions of size one."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class PointNet(nn.Module):
    """PointNet with its input transform (Qi et al., arXiv:1612.00593)."""

    def __init__(self) -> None:
        super().__init__()
        self.align, self.matrix = _shared(3, 16, 32), nn.Linear(32, 9)
        self.features = _shared(3, 16, 48)
        self.classify = nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 10))

    def forward(self, points: Tensor) -> Tensor:
        """Maps [N, 3, points] to logits [N, 10]."""
        matrix = self.matrix(self.align(points).max(dim=2).values).view(-1, 3, 3)
        matrix = matrix + torch.eye(3, device=points.device)
        aligned = torch.bmm(points.transpose(1, 2), matrix).transpose(1, 2)
        return F.log_softmax(self.classify(self.features(aligned).amax(2)), dim=1)


class DGCNN(nn.Module):
    """Convolutions over each point's nearest neighbours (Wang et al., arXiv:1801.07829)."""

    NEIGHBOURS = 4

    def __init__(self) -> None:
        super().__init__()
        self.edges = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * i, o, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))
            for i, o in ((3, 16), (16, 24))
        )
        self.classify = nn.Linear(2 * 40, 10)

    def forward(self, points: Tensor) -> Tensor:
        """Maps [N, 3, points] to logits [N, 10]."""
        features, maps = points, []
        for edge in self.edges:
            features = edge(self._around(features)).max(dim=-1).values
            maps.append(features)
        joined = torch.cat(maps, 1)
        return self.classify(torch.cat([joined.amax(2), joined.mean(2)], 1))

    def _around(self, x: Tensor) -> Tensor:
        """Returns [N, 2 C, points, neighbours]: differences to the neighbours, and the point."""
        rows = x.transpose(1, 2)
        nearest = torch.cdist(rows, rows).topk(self.NEIGHBOURS, largest=False).indices
        n, count, channels = rows.shape
        batch = torch.arange(n)[:, None, None]
        there = rows[batch, nearest]
        here = rows.unsqueeze(2).expand(n, count, self.NEIGHBOURS, channels)
        return torch.cat([there - here, here], -1).permute(0, 3, 1, 2)


class CRNN(nn.Module):
    """Lines of text: convolutions, then recurrent layers (Shi et al., arXiv:1507.05717)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(ConvNormAct(1, 8, 3), nn.MaxPool2d(2), ConvNormAct(8, 16, 3), nn.MaxPool2d((4, 1))),
        )
        self.recurrent = nn.LSTM(32, 16, bidirectional=True, batch_first=True)
        self.again = nn.GRU(32, 16, batch_first=True)
        self.classify = nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 1, 16, W] to log probabilities [W / 2, N, 12], as CTC takes them."""
        features = self.features(x).flatten(1, 2).transpose(1, 2)
        hidden, _ = self.again(self.recurrent(features)[0])
        return self.classify(hidden).log_softmax(2).transpose(0, 1)


class SpatialTransformer(nn.Module):
    """Straightens its input before it classifies (Jaderberg et al., arXiv:1506.02025)."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(1, 8, 7), nn.MaxPool2d(2, 2), nn.ReLU(True))
        self.locate = nn.Sequential(nn.Linear(8 * 81, 16), nn.Tanh(), nn.Linear(16, 6))
        self.classify = nn.Sequential(
            *(nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 100, 10))
        )

    def forward(self, x: Tensor) -> Tensor:
        theta = 0.3 * self.locate(self.look(x).flatten(1)).view(-1, 2, 3)
        theta = theta + torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return self.classify(F.grid_sample(x, grid, align_corners=False))


class Flow(nn.Module):
    """Optical flow from a volume of correlations, as PWC-Net has it (arXiv:1709.02371)."""

    REACH = 2

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(ConvNormAct(3, 8, 3, 2), ConvNormAct(8, 12, 3))
        self.estimate = nn.Sequential(
            nn.Conv2d((2 * self.REACH + 1) ** 2 + 12, 16, 3, padding=1),
            *(nn.LeakyReLU(0.1), nn.Conv2d(16, 2, 3, padding=1)),
        )

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Maps two pictures [N, 3, H, W] to a flow [N, 2, H, W]."""
        one, two = self.features(first), self.features(second)
        n, c, h, w = one.shape
        size = 2 * self.REACH + 1
        windows = F.unfold(two, size, padding=self.REACH).view(n, c, size * size, h, w)
        volume = (one.unsqueeze(2) * windows).mean(1)
        flow = self.estimate(torch.cat([F.leaky_relu(volume, 0.1), one], 1))
        return 2.0 * F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True)

"""Detectors that look once: DarkNet with YOLO's head, SSD, RetinaNet, FCOS."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.layers import ConvNormAct

CLASSES = 4
_Leaky = partial(nn.LeakyReLU, 0.1)


class DarkBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            ConvNormAct(channels, channels // 2, 1, activation=_Leaky),
            ConvNormAct(channels // 2, channels, 3, activation=_Leaky),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class YOLO(nn.Module):
    """DarkNet and YOLOv3's two finest heads, decoded to boxes (arXiv:1804.02767)."""

    ANCHORS = ((10.0, 13.0), (16.0, 30.0), (33.0, 23.0))

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Sequential(
            *(ConvNormAct(3, 8, 3, 2, activation=_Leaky), DarkBlock(8)),
            *(ConvNormAct(8, 16, 3, 2, activation=_Leaky), DarkBlock(16)),
        )
        self.late = nn.Sequential(ConvNormAct(16, 24, 3, 2, activation=_Leaky), DarkBlock(24))
        answers = len(self.ANCHORS) * (5 + CLASSES)
        self.heads = nn.ModuleList([nn.Conv2d(24, answers, 1), nn.Conv2d(40, answers, 1)])
        self.register_buffer("anchors", torch.tensor(self.ANCHORS))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 3, H, W] to [N, boxes, 5 + CLASSES]: centre, size, objectness, classes."""
        early = self.early(x)
        late = self.late(early)
        fine = torch.cat([early, F.interpolate(late, scale_factor=2.0)], 1)
        answers = [head(f) for head, f in zip(self.heads, (late, fine), strict=True)]
        return torch.cat([self._decode(a, x.shape[-1] // a.shape[-1]) for a in answers], 1)

    def _decode(self, answer: Tensor, stride: int) -> Tensor:
        n, _, h, w = answer.shape
        answer = answer.view(n, len(self.ANCHORS), -1, h, w).permute(0, 1, 3, 4, 2)
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        cells = torch.stack([columns, rows], -1).to(answer.dtype)
        centre = (answer[..., :2].sigmoid() + cells) * stride
        size = answer[..., 2:4].clamp(max=4.0).exp() * self.anchors[:, None, None]
        return torch.cat([centre, size, answer[..., 4:].sigmoid()], -1).flatten(1, 3)


class SSD(nn.Module):
    """Boxes from maps of falling resolution (Liu et al., arXiv:1512.02325)."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 8), (8, 16), (16, 24), (24, 24))
        self.stages = nn.ModuleList(ConvNormAct(i, o, 3, 2) for i, o in sizes)
        self.scale = nn.Parameter(torch.full((1, 16, 1, 1), 20.0))
        self.boxes = nn.ModuleList(nn.Conv2d(c, 4 * 3, 3, padding=1) for c in (16, 24, 24))
        self.classes = nn.ModuleList(nn.Conv2d(c, CLASSES * 3, 3, padding=1) for c in (16, 24, 24))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = []
        for index, stage in enumerate(self.stages):
            x = stage(x)
            maps.append(F.normalize(x, dim=1) * self.scale if index == 1 else x)
        boxes = [_rows(head(m), 4) for head, m in zip(self.boxes, maps[1:], strict=True)]
        classes = [_rows(head(m), CLASSES) for head, m in zip(self.classes, maps[1:], strict=True)]
        return torch.cat(boxes, 1), torch.cat(classes, 1).softmax(-1)


def _rows(answer: Tensor, count: int) -> Tensor:
    return answer.permute(0, 2, 3, 1).reshape(answer.shape[0], -1, count)


class Pyramid(nn.Module):
    """A feature pyramid on three stages (Lin et al., arXiv:1612.03144)."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            ConvNormAct(i, o, 3, 2) for i, o in ((3, 8), (8, 16), (16, 24), (24, 32))
        )
        self.lateral = nn.ModuleList(nn.Conv2d(c, 16, 1) for c in (16, 24, 32))
        self.smooth = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        merged = [lateral(m) for lateral, m in zip(self.lateral, maps[1:], strict=True)]
        for level in (1, 0):
            size = merged[level].shape[-2:]
            merged[level] = merged[level] + F.interpolate(merged[level + 1], size=size)
        return [smooth(m) for smooth, m in zip(self.smooth, merged, strict=True)]


class RetinaNet(nn.Module):
    """One head shared by the levels of a pyramid (Lin et al., arXiv:1708.02002)."""

    def __init__(self) -> None:
        super().__init__()
        self.pyramid = Pyramid()
        self.tower = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(inplace=True)
        )
        self.boxes = nn.Conv2d(16, 4 * 3, 3, padding=1)
        self.classes = nn.Conv2d(16, CLASSES * 3, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = [self.tower(m) for m in self.pyramid(x)]
        return {
            "boxes": torch.cat([_rows(self.boxes(m), 4) for m in maps], 1),
            "scores": torch.cat([_rows(self.classes(m), CLASSES) for m in maps], 1).sigmoid(),
        }


class FCOS(RetinaNet):
    """Without anchors: the best positions and their boxes (Tian et al., arXiv:1904.01355)."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        answers = super().forward(x)
        best, classes = answers["scores"].max(-1)
        scores, order = best.topk(8, dim=1)
        boxes = answers["boxes"].relu().gather(1, order[..., None].expand(-1, -1, 4))
        return {"boxes": boxes, "scores": scores, "classes": classes.gather(1, order)}

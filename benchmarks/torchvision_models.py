"""Models of the torchvision library for benchmarks: its architectures, seeded weights.

`build(name, batch)` gives a model in evaluation mode that returns a tensor, and its inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_SIZES = {"inception_v3": 299}  # of images; others take 224
_SEGMENTERS = ("deeplab", "fcn", "lraspp")
_VIDEO = ("r3d_18", "mc3_18", "r2plus1d_18")


class Scores(nn.Module):
    """A segmentation model of the library, of whose answer the scores are returned."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to scores [N, classes, H, W]."""
        found: Tensor = self.model(x)["out"]
        return found


def build(name: str, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a model of the library by its name there, and inputs; equal names, equal numbers."""
    import torchvision

    torch.manual_seed(0)
    segments = name.startswith(_SEGMENTERS)
    more: dict[str, object] = {"weights_backbone": None} if segments else {}
    if name in ("inception_v3", "googlenet"):
        more = {"init_weights": False}
    model = torchvision.models.get_model(name, weights=None, **more).eval()
    size = _SIZES.get(name, 224)
    shape = (3, 16, 112, 112) if name in _VIDEO else (3, size, size)
    generator = torch.Generator().manual_seed(1)
    inputs = (torch.randn(batch, *shape, generator=generator),)
    return (Scores(model).eval() if segments else model), inputs

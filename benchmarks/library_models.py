"""Models of torchvision and timm for benchmarks, by the names that these libraries have for them.

`build("torchvision/shufflenet_v2_x1_0")` and `build("timm/mobilevit_s")` give a model in evaluation
mode with seeded weights that returns a tensor, and its inputs; nothing is downloaded. Heads that
begin as zeros get numbers, as else no error could be seen behind them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LIBRARIES = ("torchvision", "timm")
_SEGMENTERS = ("deeplab", "fcn", "lraspp")
_VIDEO = ("r3d_18", "mc3_18", "r2plus1d_18")
_SIZES = {"inception_v3": 299}  # of images; others take 224


class First(nn.Module):
    """A model that answers with a dictionary, of which the entry `out` is returned."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to scores [N, classes, H, W]."""
        found: Tensor = self.model(x)["out"]
        return found


def _of_torchvision(name: str) -> nn.Module:
    from torchvision.models import get_model

    options: dict[str, object] = {}
    if name.startswith(_SEGMENTERS):
        options = {"weights_backbone": None}
    elif name in ("inception_v3", "googlenet"):
        options = {"init_weights": False}
    model: nn.Module = get_model(name, weights=None, **options)
    return First(model) if name.startswith(_SEGMENTERS) else model


def _of_timm(name: str) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name, pretrained=False)
    return model


def build(name: str, batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a model and its inputs; equal names give equal numbers.

    Args:
        name: of the library and its model, parted by a slash; `@SIZE` after it for images of
            another size than the model's usual one.
        batch: leading dimension of the inputs.
    """
    library, _, rest = name.partition("/")
    model_name, _, size = rest.partition("@")
    torch.manual_seed(0)
    model = _of_timm(model_name) if library == "timm" else _of_torchvision(model_name)
    for weight in model.parameters():
        if weight.ndim > 1 and not weight.any():
            nn.init.trunc_normal_(weight, std=0.02)
    pixels = int(size or _SIZES.get(model_name, 224))
    shape = (3, 16, 112, 112) if model_name in _VIDEO else (3, pixels, pixels)
    generator = torch.Generator().manual_seed(1)
    return model.eval(), (torch.randn(batch, *shape, generator=generator),)

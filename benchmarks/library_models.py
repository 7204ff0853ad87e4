"""Models of torchvision and timm for benchmarks, by the names that these libraries have for them.

`build("torchvision:shufflenet_v2_x1_0")` and `build("timm:mobilevit_s")` give a model in evaluation
mode with seeded weights, and its inputs; nothing is downloaded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LIBRARIES = ("torchvision", "timm")
SEGMENTATION = ("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "fcn_resnet50")


class First(nn.Module):
    """A model that answers with a dictionary, of which the entry `out` is returned."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Maps images to the answer."""
        found: Tensor = self.model(x)["out"]
        return found


def build(name: str, batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a model and its inputs; equal names give equal numbers.

    Args:
        name: of the library and its model, parted by a colon; `@SIZE` after it for images of
            another size than 224.
        batch: leading dimension of the inputs.
    """
    library, _, rest = name.partition(":")
    model_name, _, size = rest.partition("@")
    pixels = int(size or 224)
    torch.manual_seed(0)
    if library == "timm":
        import timm

        model = timm.create_model(model_name, pretrained=False)
    else:
        from torchvision.models import get_model

        dense = model_name in SEGMENTATION
        options = {"weights_backbone": None} if dense else {}
        model = get_model(model_name, weights=None, **options)
        model = First(model) if dense else model
    generator = torch.Generator().manual_seed(1)
    return model.eval(), (torch.randn(batch, 3, pixels, pixels, generator=generator),)

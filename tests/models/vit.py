"""Vision Transformer (Dosovitskiy et al., arXiv:2010.11929); state_dict keys as torchvision's."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn


class EncoderBlock(nn.Module):
    """Attention and an MLP, each after a layer norm and around a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            *(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.0)),
            *(nn.Linear(4 * width, width), nn.Dropout(0.0)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, tokens, width] to the same shape."""
        y = self.ln_1(x)
        attended, _ = self.self_attention(y, y, y, need_weights=False)
        x = attended + x
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    """Positions, blocks and a final norm."""

    def __init__(self, tokens: int, depth: int, width: int, heads: int) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, width).normal_(std=0.02))
        blocks = ((f"encoder_layer_{i}", EncoderBlock(width, heads)) for i in range(depth))
        self.layers = nn.Sequential(OrderedDict(blocks))
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, tokens, width] to the same shape."""
        return self.ln(self.layers(x + self.pos_embedding))


class VisionTransformer(nn.Module):
    """Patches become tokens; the class token is read out."""

    def __init__(
        self,
        image: int = 224,
        patch: int = 16,
        depth: int = 12,
        width: int = 768,
        heads: int = 12,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, width).normal_(std=0.02))
        self.encoder = Encoder((image // patch) ** 2 + 1, depth, width, heads)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, classes)))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, image, image] to logits [N, classes]."""
        patches = self.conv_proj(x).flatten(2).permute(0, 2, 1)
        token = self.class_token.expand(x.shape[0], -1, -1)
        x = self.encoder(torch.cat([token, patches], dim=1))
        return self.heads(x[:, 0])

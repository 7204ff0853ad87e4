"""An encoder-decoder transformer (Vaswani et al., arXiv:1706.03762) on `nn.Transformer`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Seq2Seq(nn.Module):
    """Source and target tokens to logits; one embedding serves both sides and the projection."""

    def __init__(
        self,
        words: int = 1000,
        positions: int = 64,
        depth: int = 3,
        width: int = 256,
        heads: int = 8,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.transformer = nn.Transformer(
            width, heads, depth, depth, 4 * width, dropout=0.1, batch_first=True, norm_first=False
        )
        self.projection = nn.Linear(width, words, bias=False)
        self.projection.weight = self.embedding.weight
        self.register_buffer("positions", _sinusoids(positions, width), persistent=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Maps int64 [N, S] and [N, T] to logits [N, T, words]; position t sees targets <= t."""
        size = target.shape[1]
        ahead = torch.ones(size, size, dtype=torch.bool, device=target.device).triu(1)
        hidden = self.transformer(
            self._embed(source), self._embed(target), tgt_mask=ahead, tgt_is_causal=True
        )
        return self.projection(hidden)

    def _embed(self, tokens: Tensor) -> Tensor:
        scale = math.sqrt(self.embedding.embedding_dim)
        return self.embedding(tokens) * scale + self.positions[: tokens.shape[1]]


def _sinusoids(positions: int, width: int) -> Tensor:
    """Returns sines and cosines of geometrically falling frequencies, interleaved."""
    position = torch.arange(positions)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angles = position * frequency
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)

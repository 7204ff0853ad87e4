"""Models written in tinygrad, and the same in PyTorch: a decoder as TinyLlama is one, a ResNet."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tinygrad import Tensor, nn
from torch import nn as torch_nn
from torch.nn import functional

VOCABULARY, DIM, HEADS, GROUPS, HIDDEN, LENGTH = 61, 32, 4, 2, 48, 12
SIZE = DIM // HEADS


def tables() -> tuple[Tensor, Tensor]:
    """Returns cos and sin of the rotations, [length, size], equal in both halves."""
    rates = 1.0 / (10000.0 ** (Tensor.arange(0, SIZE, 2) / SIZE))
    angles = Tensor.arange(LENGTH).reshape(LENGTH, 1) * rates.reshape(1, SIZE // 2)
    angles = angles.cat(angles, dim=-1)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x[b, heads, t, size] by tables [t, size]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + (-second).cat(first, dim=-1) * sin


def repeated(x: Tensor) -> Tensor:
    """Returns each group's head as often as there are queries for it."""
    b, g, t, d = x.shape
    n = HEADS // GROUPS
    return x.reshape(b, g, 1, t, d).expand(b, g, n, t, d).reshape(b, g * n, t, d)


class Attention:
    """Grouped-query attention over a cache that is written at a position known as an int."""

    def __init__(self) -> None:
        self.wq = nn.Linear(DIM, HEADS * SIZE, bias=False)
        self.wk = nn.Linear(DIM, GROUPS * SIZE, bias=False)
        self.wv = nn.Linear(DIM, GROUPS * SIZE, bias=False)
        self.wo = nn.Linear(HEADS * SIZE, DIM, bias=False)
        empty = np.zeros((1, GROUPS, LENGTH, SIZE), np.float32)
        self.cache_k, self.cache_v = Tensor(empty).realize(), Tensor(empty).realize()

    def cached(self, cache: Tensor, new: Tensor, start: int) -> Tensor:
        """Writes new rows and returns all up to them."""
        end = start + new.shape[2]
        cache[:, :, start:end].assign(new).realize()
        return cache[:, :, :end]

    def __call__(self, x: Tensor, start: Any, cos: Tensor, sin: Tensor, mask: Any) -> Tensor:
        b, t, _ = x.shape
        q = self.wq(x).reshape(b, t, HEADS, SIZE).transpose(1, 2)
        k = self.wk(x).reshape(b, t, GROUPS, SIZE).transpose(1, 2)
        v = self.wv(x).reshape(b, t, GROUPS, SIZE).transpose(1, 2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        keys, values = self.cached(self.cache_k, k, start), self.cached(self.cache_v, v, start)
        y = q.scaled_dot_product_attention(repeated(keys), repeated(values), attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(b, t, HEADS * SIZE))


class CatAttention(Attention):
    """The same, which joins what is in the cache with the new rows, and stores the whole."""

    def cached(self, cache: Tensor, new: Tensor, start: int) -> Tensor:
        """See `Attention`."""
        rows = cache[:, :, :start].cat(new, dim=2) if start else new
        rest = LENGTH - rows.shape[2]
        cache.assign(rows.pad(((0, 0), (0, 0), (0, rest), (0, 0))).contiguous()).realize()
        return rows


class PositionAttention(Attention):
    """The same for one token, at a position that is a tensor."""

    def cached(self, cache: Tensor, new: Tensor, start: Any) -> Tensor:
        """See `Attention`; returns the whole cache."""
        here = Tensor.arange(LENGTH).reshape(1, 1, LENGTH, 1) == start.reshape(1, 1, 1, 1)
        return cache.assign(here.where(new, cache))


class Block:
    """A layer: attention and SwiGLU, each after an RMS norm and around a residual."""

    def __init__(self, attention: type[Attention]) -> None:
        self.attention = attention()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.w1 = nn.Linear(DIM, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, DIM, bias=False)
        self.w3 = nn.Linear(DIM, HIDDEN, bias=False)

    def __call__(self, x: Tensor, *rest: Any) -> Tensor:
        h = x + self.attention(self.attention_norm(x), *rest)
        y = self.ffn_norm(h)
        return h + self.w2(self.w1(y).silu() * self.w3(y))


class Decoder:
    """tokens[1, t] at a position to logits[1, t, vocabulary]."""

    def __init__(self, attention: type[Attention] = Attention, layers: int = 2) -> None:
        self.tok_embeddings = nn.Embedding(VOCABULARY, DIM)
        self.layers = [Block(attention) for _ in range(layers)]
        self.norm = nn.RMSNorm(DIM)
        self.output = nn.Linear(DIM, VOCABULARY, bias=False)

    def __call__(self, tokens: Tensor, start: int) -> Tensor:
        t = tokens.shape[1]
        cos, sin = (table[start : start + t] for table in tables())
        mask = None
        if t > 1:
            mask = Tensor.full((1, 1, t, start + t), float("-inf")).triu(start + 1)
        return self._run(tokens, start, cos, sin, mask)

    def _run(self, tokens: Tensor, *rest: Any) -> Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, *rest)
        return self.output(self.norm(h))


class PositionDecoder(Decoder):
    """tokens[1, 1] at a position[1], a tensor, to logits."""

    def __init__(self) -> None:
        super().__init__(PositionAttention)

    def __call__(self, tokens: Tensor, position: Any) -> Tensor:
        cos, sin = (table[position] for table in tables())
        mask = Tensor.arange(LENGTH).reshape(1, 1, 1, LENGTH) <= position.reshape(1, 1, 1, 1)
        return self._run(tokens, position, cos, sin, mask)


# ---- ResNet ----


class BasicBlock:
    """Two convolutions around a residual, which is projected where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm(after)
        self.downsample: list[Any] = []
        if stride != 1 or before != after:
            projection = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.downsample = [projection, nn.BatchNorm(after)]

    def __call__(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y))
        return (y + x.sequential(self.downsample)).relu()


class ResNet:
    """ResNet-18's layers with few channels: images[n, 3, h, w] to logits[n, 10]."""

    def __init__(self, width: int = 4) -> None:
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm(width)
        self.layers: list[list[BasicBlock]] = []
        for level in range(4):
            before, after = width << max(level - 1, 0), width << level
            first = BasicBlock(before, after, 1 if level == 0 else 2)
            self.layers.append([first, BasicBlock(after, after, 1)])
        self.fc = nn.Linear(width << 3, 10)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu().max_pool2d(3, 2, padding=1)
        for layer in self.layers:
            y = y.sequential(list(layer))
        return self.fc(y.mean([2, 3]))


def settle(model: Any, seed: int = 0) -> Any:
    """Gives a model's tensors fixed values, statistics of batch norms included."""
    random = np.random.default_rng(seed)
    for name, tensor in nn.state.get_state_dict(model).items():
        if "cache" in name or "tracked" in name:
            continue
        values = random.standard_normal(tensor.shape).astype(np.float32) * 0.3
        if name.endswith("running_var"):
            values = np.abs(values) + 0.5
        tensor.replace(Tensor(values).realize())
    return model


# ---- the same in PyTorch ----


def rectified(x: torch.Tensor) -> torch.Tensor:
    """tinygrad's relu, which is 0 for NaN."""
    return torch.where(x > 0, x, 0.0)


class TorchBlock(torch_nn.Module):
    """`BasicBlock` in PyTorch."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = torch_nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn1 = torch_nn.BatchNorm2d(after)
        self.conv2 = torch_nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = torch_nn.BatchNorm2d(after)
        self.downsample = torch_nn.Sequential()
        if stride != 1 or before != after:
            projection = torch_nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.downsample = torch_nn.Sequential(projection, torch_nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = rectified(self.bn1(self.conv1(x)))
        return rectified(self.bn2(self.conv2(y)) + self.downsample(x))


class TorchResNet(torch_nn.Module):
    """`ResNet` in PyTorch."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv1 = torch_nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = torch_nn.BatchNorm2d(width)
        blocks = []
        for level in range(4):
            before, after = width << max(level - 1, 0), width << level
            blocks += [TorchBlock(before, after, 1 if level == 0 else 2)]
            blocks += [TorchBlock(after, after, 1)]
        self.layers = torch_nn.Sequential(*blocks)
        self.fc = torch_nn.Linear(width << 3, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = rectified(self.bn1(self.conv1(x)))
        y = functional.max_pool2d(y, 3, 2, 1)
        return self.fc(self.layers(y).mean((2, 3)))

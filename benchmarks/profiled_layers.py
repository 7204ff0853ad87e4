"""Single layers of which `device_profiles.py` makes profiles: seeded shapes of each class.

`CLASSES` are those that a preset is fitted to; `BEYOND` are what networks of images by the batch
have besides: products of many rows and of rows that no 16 bytes divide, and what works across the
innermost dimension, products of two tensors by the batch, and images of another size.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

WEIGHTS = 16 << 20  # elements of a layer's weights
RESIDENT = 1 << 19  # elements of a product's factors, where a cache holds those of a program
IMAGES = 24 << 20  # elements of a batch of images

Layer = tuple[nn.Module, tuple[int, ...]]  # and the shape of its input


class SideBySide(nn.Module):
    """Layers that have nothing to do with each other, each with an input of its own."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        """Maps each input by its layer."""
        return tuple(layer(x) for layer, x in zip(self.layers, xs, strict=True))


class SelfAttention(nn.Module):
    """Attention over [batch, length, 3 · heads · dim], whose thirds are queries, keys, values."""

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, heads, length, dim]."""
        parts = x.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(*parts, is_causal=self.causal)


class Products(nn.Module):
    """A batch of products: of [batch, m + n, k], the first m rows with the n others."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self.m = m

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, m, n]."""
        return x[:, : self.m] @ x[:, self.m :].mT


class Elementwise(nn.Module):
    """A chain of functions of an element."""

    def __init__(self, functions: list[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        for function in self.functions:
            x = function(x)
        return x


def size_of(draw: random.Random, low: int, high: int, multiple: int = 8) -> int:
    """Returns a multiple whose logarithm is uniform."""
    drawn = low * (high / low) ** draw.random()
    return max(multiple, round(drawn / multiple) * multiple)


def products(draw: random.Random, largest: float) -> Layer:
    """A linear layer of 1 to 4,096 rows."""
    while True:
        m = draw.choice((1, 1, 2, 4, 8, 16, 32, 64, 100, 128, 197, 256, 512, 1024, 2048, 4096))
        n, k = size_of(draw, 64, 8192), size_of(draw, 64, 8192)
        if 2.0 * m * n * k <= largest and n * k <= WEIGHTS:
            return nn.Linear(k, n, bias=draw.random() < 0.5), (m, k)


def matmuls(draw: random.Random, largest: float) -> Layer:
    """Products of two tensors, one or more of them side by side."""
    while True:
        batch, m = draw.choice((1, 1, 2, 4, 8, 12, 16, 32)), size_of(draw, 1, 1024, 1)
        n, k = size_of(draw, 16, 2048), size_of(draw, 16, 2048)
        if 2.0 * batch * m * n * k <= largest and batch * (m + n) * k <= WEIGHTS:
            return Products(m), (batch, m + n, k)


def few_rows(draw: random.Random, largest: float) -> Layer:
    """A linear layer, or products of two tensors side by side, of 1 to 16 rows."""
    while True:
        m = draw.choice((1, 1, 1, 2, 3, 4, 6, 8, 12, 16))
        n, k = size_of(draw, 16, 8192), size_of(draw, 16, 8192)
        batch = draw.choice((0, 0, 1, 4, 12, 32))
        if 2.0 * max(1, batch) * m * n * k > largest or max(1, batch) * (m + n) * k > WEIGHTS:
            continue
        if batch:
            return Products(m), (batch, m + n, k)
        return nn.Linear(k, n, bias=draw.random() < 0.5), (m, k)


def resident(draw: random.Random, _: float) -> Layer:
    """A linear layer, or products of two tensors, whose factors a cache holds from run to run."""
    while True:
        m, batch = draw.choice((1, 1, 2, 4, 8, 16, 64)), draw.choice((0, 0, 0, 1, 4, 12))
        n, k = size_of(draw, 32, 2048), size_of(draw, 32, 2048)
        if max(1, batch) * (m + n) * k > RESIDENT:
            continue
        if batch:
            return Products(m), (batch, m + n, k)
        return nn.Linear(k, n, bias=draw.random() < 0.5), (m, k)


def convolutions(draw: random.Random, largest: float) -> Layer:
    """A convolution of images: plain, of groups, or depthwise."""
    while True:
        channels, out = (size_of(draw, 8, 1024) for _ in range(2))
        kernel, stride, batch = draw.choice((1, 1, 3, 3, 5, 7)), draw.choice((1, 1, 2)), 1
        size = draw.choice((7, 14, 28, 56, 112))
        groups = channels if draw.random() < 0.3 else 1
        out = channels if groups > 1 else out
        work = 2.0 * batch * (size / stride) ** 2 * out * channels // groups * kernel**2
        if work <= largest and out * channels // groups * kernel**2 <= WEIGHTS:
            layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups)
            return layer, (batch, channels, size, size)


def windows(draw: random.Random, largest: float) -> Layer:
    """A convolution of 3 by 3 at every point, as residual networks are made of."""
    while True:
        channels, out = (size_of(draw, 16, 512, 16) for _ in range(2))
        size = draw.choice((7, 14, 28, 56, 112))
        if 18.0 * size**2 * channels * out <= largest:
            return nn.Conv2d(channels, out, 3, padding=1), (1, channels, size, size)


def stages(draw: random.Random, largest: float) -> Layer:
    """The same behind another layer, of as many channels as later stages of networks have."""
    while True:
        channels, out = (size_of(draw, 64, 512, 32) for _ in range(2))
        size = draw.choice((8, 14, 16, 20, 28, 32, 40, 56))
        if 18.0 * size**2 * channels * out <= largest:
            before = nn.Conv2d(channels, channels, 1, groups=channels)
            after = nn.Conv2d(channels, out, 3, padding=1)
            return nn.Sequential(before, after), (1, channels, size, size)


def attention(draw: random.Random, largest: float) -> Layer:
    """Attention of a whole text to itself."""
    while True:
        heads, dim = draw.choice((4, 8, 12, 16, 32)), draw.choice((32, 64, 128))
        length, batch = size_of(draw, 16, 2048, 1), draw.choice((1, 1, 2, 8))
        if 4.0 * batch * heads * dim * length**2 <= largest:
            return SelfAttention(heads, draw.random() < 0.5), (batch, length, 3 * heads * dim)


def rows(draw: random.Random, _: float) -> Layer:
    """A norm or softmax over rows, or a sum of them."""
    width, count = size_of(draw, 32, 8192), size_of(draw, 1, 4096, 1)
    while width * count > WEIGHTS:
        count //= 2
    kinds = (nn.LayerNorm(width), nn.RMSNorm(width), nn.Softmax(-1), Elementwise([_row_sums]))
    return draw.choice(kinds), (count, width)


def elementwise(draw: random.Random, _: float) -> Layer:
    """One to four functions of an element."""
    known = [torch.relu, torch.tanh, torch.sigmoid, nn.functional.gelu, torch.exp, torch.neg]
    functions = draw.sample(known, draw.randint(1, 4))
    return Elementwise(functions), (size_of(draw, 1 << 10, WEIGHTS),)


def pools(draw: random.Random, _: float) -> Layer:
    """A pool over windows, or over whole images, of what a convolution has left in its layout."""
    channels, size = size_of(draw, 8, 2048), draw.choice((7, 14, 28, 56, 112))
    while channels * size**2 > WEIGHTS >> 2:
        channels = max(8, channels // 16 * 8)
    kinds = (
        *(nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d(1)),
    )
    before = nn.Conv2d(channels, channels, 1, groups=channels)
    return nn.Sequential(before, draw.choice(kinds)), (1, channels, size, size)


def group_norms(draw: random.Random, _: float) -> Layer:
    """A norm over groups of channels, of what a convolution has left in its layout."""
    groups, size = draw.choice((1, 4, 8, 8, 16, 32, 32)), draw.choice((4, 8, 16, 32, 64, 128))
    channels = size_of(draw, 32, 1024, 32)
    while channels * size**2 > WEIGHTS >> 2:
        size //= 2
    before = nn.Conv2d(channels, channels, 1, groups=channels)
    return nn.Sequential(before, nn.GroupNorm(groups, channels)), (1, channels, size, size)


def _row_sums(x: Tensor) -> Tensor:
    return x.sum(-1)


CLASSES = {
    "products": products,
    "matmuls": matmuls,
    "few_rows": few_rows,
    "resident": resident,
    "convolutions": convolutions,
    "windows": windows,
    "stages": stages,
    "attention": attention,
    "rows": rows,
    "elementwise": elementwise,
    "pools": pools,
    "group_norms": group_norms,
}


# ---- what networks of images by the batch have besides ----


def many_rows(draw: random.Random, largest: float) -> Layer:
    """A linear layer of 256 to 16,384 rows, as images by the batch have."""
    while True:
        m, n, k = size_of(draw, 256, 16384), size_of(draw, 64, 4096), size_of(draw, 64, 4096)
        if 2.0 * m * n * k <= largest and m * max(n, k) <= IMAGES:
            return nn.Linear(k, n), (m, k)


def ragged_products(draw: random.Random, largest: float) -> Layer:
    """A linear layer whose rows no 16 bytes divide: 49 or 196 patches, 21 or 1,000 classes."""
    while True:
        m, n = size_of(draw, 64, 8192, 1), size_of(draw, 16, 2048)
        k = draw.choice((49, 98, 147, 196, 196, 196, 252, 324, 588, 65, 257, 385))
        if draw.random() < 0.3:
            n, k = draw.choice((21, 150, 10, 196, 49)), size_of(draw, 64, 2048)
        if 2.0 * m * n * k <= largest and m * max(n, k) <= IMAGES:
            return nn.Linear(k, n), (m, k)


def across(draw: random.Random, _: float) -> Layer:
    """Sums, means and softmax of what lies apart, of few or many elements each."""
    while True:
        before, size = size_of(draw, 1, 64, 1), draw.choice((2, 3, 4, 7, 9, 16, 49, 64, 196, 784))
        behind = size_of(draw, 16, 1 << 16)
        if 1 << 12 <= before * size * behind <= IMAGES:
            kinds = (_column_sums, _column_sums, _column_means, _column_softmax)
            return Elementwise([draw.choice(kinds)]), (before, size, behind)


def short_rows(draw: random.Random, _: float) -> Layer:
    """Sums, softmax and norms of many rows of few elements."""
    while True:
        count, width = size_of(draw, 256, 1 << 19, 1), draw.choice((4, 9, 16, 32, 49, 64, 96, 196))
        if count * width <= IMAGES:
            kinds = (nn.LayerNorm(width), nn.Softmax(-1), Elementwise([_row_sums]))
            return draw.choice(kinds), (count, width)


def many_images(draw: random.Random, largest: float) -> Layer:
    """A convolution of a batch of images: plain, of groups, depthwise, or of 3 channels."""
    while True:
        batch, size = draw.choice((4, 8, 8, 16)), draw.choice((7, 14, 28, 56, 112))
        channels, out = (size_of(draw, 8, 768) for _ in range(2))
        kernel, stride = draw.choice((1, 1, 1, 3, 3, 5, 7)), draw.choice((1, 1, 1, 2))
        each = draw.choice((0, 0, 0, 1, 1, 16, 32))  # channels of a group
        if each and kernel > 1:
            channels = out = max(each, channels // each * each)
        groups = channels // each if each and kernel > 1 else 1
        if draw.random() < 0.1:
            channels, groups, size = 3, 1, 224
        work = 2.0 * batch * (size / stride) ** 2 * out * channels // groups * kernel**2
        if work <= largest and batch * size**2 * max(channels, out) <= IMAGES:
            layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups)
            return layer, (batch, channels, size, size)


class Along(nn.Module):
    """Products of two tensors that sum over tokens, as linear attention does."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self.m = m

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, tokens, m + n] to [batch, m, n]."""
        return x[..., : self.m].mT @ x[..., self.m :]


def token_products(draw: random.Random, largest: float) -> Layer:
    """Products of two tensors by the batch, many of them of few or of ragged rows: sums over
    tokens, scores of windows."""
    while True:
        batch, tokens = (
            size_of(draw, 8, 1 << 13, 1),
            draw.choice((9, 16, 49, 64, 196, 197, 256, 785)),
        )
        m, n = (draw.choice((8, 9, 16, 24, 32, 49, 64, 81)) for _ in range(2))
        if 2.0 * batch * tokens * m * n <= largest and batch * tokens * (m + n) <= IMAGES:
            if draw.random() < 0.5:
                return Along(m), (batch, tokens, m + n)
            return Products(tokens), (batch, tokens + n, m)


def resizes(draw: random.Random, _: float) -> Layer:
    """Images of another size, of what a convolution has left in its layout."""
    while True:
        batch, size = draw.choice((1, 1, 4, 8)), draw.choice((7, 14, 16, 28, 32, 56, 64))
        channels, scale = size_of(draw, 8, 512), draw.choice((2.0, 2.0, 4.0))
        if batch * channels * (size * scale) ** 2 <= IMAGES:
            before = nn.Conv2d(channels, channels, 1, groups=channels)
            mode = draw.choice(("nearest", "bilinear"))
            return nn.Sequential(before, nn.Upsample(None, scale, mode)), (
                batch,
                channels,
                size,
                size,
            )


def grouped_images(draw: random.Random, largest: float) -> Layer:
    """A convolution in groups of 2 to 8 channels, or a transposed one."""
    while True:
        each, size = draw.choice((2, 2, 4, 4, 8, 8, 16)), draw.choice((7, 14, 28, 56))
        channels, kernel = size_of(draw, 16, 512, 16), draw.choice((3, 3, 5))
        if draw.random() < 0.4:
            out = size_of(draw, 8, 256)
            layer: nn.Module = nn.ConvTranspose2d(channels, out, draw.choice((2, 4)), 2)
            work = 8.0 * size**2 * channels * out
        else:
            groups, stride = channels // each, draw.choice((1, 1, 2))
            layer = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=groups)
            work = 2.0 * (size / stride) ** 2 * channels * each * kernel**2
        if work <= largest:
            return layer, (1, channels, size, size)


class Skip(nn.Module):
    """What a U-Net keeps of a level beside what comes up again from the one below."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before = nn.Conv2d(channels, channels, 1, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, channels, height, width] to twice as many channels."""
        near = self.before(x)
        below = nn.functional.max_pool2d(near, 2)
        return torch.cat((near, nn.functional.interpolate(below, scale_factor=2.0)), 1)


def skips(draw: random.Random, _: float) -> Layer:
    """A pool that reads one half of the channels of an image."""
    channels, size = size_of(draw, 8, 256), draw.choice((16, 32, 64, 128, 256))
    while channels * size**2 > WEIGHTS >> 2:
        channels = max(8, channels // 16 * 8)
    return Skip(channels), (1, channels, size, size)


def few_elements(draw: random.Random, _: float) -> Layer:
    """A copy, a function, rows by an index or a small sum of few elements, as steps of small
    networks are made of."""
    kinds = (_turned, _turned, _beside, _gated, _gated, _rows_at, _row_sums, nn.Softmax(-1))
    count, width = size_of(draw, 1, 64, 1), size_of(draw, 4, 512, 1)
    return Elementwise([draw.choice(kinds)]), (count, width)


def _turned(x: Tensor) -> Tensor:
    return x.mT.contiguous()


def _beside(x: Tensor) -> Tensor:
    return torch.cat((x, x), 1)


def _gated(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * torch.tanh(x) + x


def _column_sums(x: Tensor) -> Tensor:
    return x.sum(1)


def _column_means(x: Tensor) -> Tensor:
    return x.mean(1)


def _column_softmax(x: Tensor) -> Tensor:
    return x.softmax(1)


def gathers(draw: random.Random, _: float) -> Layer:
    """Rows, or single elements, that an index chooses: embeddings, gather, grids of points."""
    kind = draw.choice((_rows_at, _rows_at, _elements_at, _elements_of_both, _points_at))
    if kind is _points_at:
        size, channels = draw.choice((7, 14, 20, 28, 40)), draw.choice((2, 4, 8, 16, 32))
        return Elementwise([kind]), (draw.choice((1, 2, 8)), channels, size, size)
    count, width = size_of(draw, 8, 1 << 14, 1), size_of(draw, 4, 1024, 1)
    while count * width > WEIGHTS >> 4:
        count //= 2
    return Elementwise([kind]), (count, width)


def broadcasts(draw: random.Random, _: float) -> Layer:
    """Functions of elements that lie in different ways, in rows of few or many; and of integers."""
    inner = draw.choice((2, 3, 4, 4, 8, 12, 16, 32, 49, 64, 256))
    before, rows = size_of(draw, 1, 64, 1), size_of(draw, 4, 4096, 1)
    while before * rows * inner > WEIGHTS >> 4:
        rows = max(1, rows // 2)
    known = (_by_rows, _by_first, _by_both, _by_turned, _by_turned, _of_integers, _of_integers)
    functions = draw.sample(known, draw.choice((1, 1, 2)))
    return Elementwise(list(functions)), (before, rows, inner)


def _index_of(x: Tensor, size: int) -> Tensor:
    return (x * size).long().clamp(0, size - 1)


def _rows_at(x: Tensor) -> Tensor:
    return x[_index_of(x[:, 0], x.shape[0])]


def _elements_at(x: Tensor) -> Tensor:
    return x.gather(1, _index_of(x, x.shape[1]))


def _elements_of_both(x: Tensor) -> Tensor:
    return x[_index_of(x[:, :1], x.shape[0]), _index_of(x[:1], x.shape[1])]


def _points_at(x: Tensor) -> Tensor:
    grid = x[:, :2].permute(0, 2, 3, 1)
    return nn.functional.grid_sample(x, grid, align_corners=False)


def _by_rows(x: Tensor) -> Tensor:
    return x * x[:, :1]


def _by_first(x: Tensor) -> Tensor:
    return x + x[:1]


def _by_both(x: Tensor) -> Tensor:
    return x[:, :1] * x[:1] + x


def _by_turned(x: Tensor) -> Tensor:
    turned = x.reshape(x.shape[1], x.shape[0], x.shape[2]).transpose(0, 1)
    return torch.where(turned > x, turned, -x)


def _of_integers(x: Tensor) -> Tensor:
    cell = _index_of(x, 100)
    return torch.where((cell > 10) & (cell < 60), x, cell.to(x.dtype))


BEYOND = {
    "many_rows": many_rows,
    "ragged_products": ragged_products,
    "across": across,
    "short_rows": short_rows,
    "many_images": many_images,
    "token_products": token_products,
    "resizes": resizes,
    "few_elements": few_elements,
    "grouped_images": grouped_images,
    "skips": skips,
    "gathers": gathers,
    "broadcasts": broadcasts,
}

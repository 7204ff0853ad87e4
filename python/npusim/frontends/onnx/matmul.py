"""Matrix products, convolutions and Einsum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.kinds import is_floating
from npusim.frontends.onnx.registry import Call, translation
from npusim.frontends.onnx.shapes import pad_dim
from npusim.ir.symbolic import is_symbolic, maximum


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Returns NumPy's matmul; integers of fewer than 64 bits wrap as theirs."""
    if is_floating(a.kind):
        return a.op("matmul.default", b)
    product = a.to("int64").op("matmul.default", b.to("int64"))
    return product.to(a.dtype, a.kind)


@translation("MatMul")
def _matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return matmul(a, b)


@translation("Gemm")
def gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """Returns alpha · a · b + beta · c, as one linear where that is what it is."""
    alpha, beta = call.float("alpha", 1.0), call.float("beta", 1.0)
    a = a.permute((1, 0)) if call.int("transA") else a
    plain_bias = c is None or (c.rank == 1 and c.shape[0] > 1 and beta == 1.0)
    if call.int("transB") and alpha == 1.0 and plain_bias and is_floating(a.kind):
        return a.op("linear.default", b, c)
    product = matmul(a, b.permute((1, 0)) if call.int("transB") else b)
    if alpha != 1.0:
        product = (product * alpha).to(a.dtype, a.kind)
    if c is None or beta == 0.0:
        return product
    return product + (c if beta == 1.0 else (c * beta).to(c.dtype, c.kind))


def windows(
    call: Call, extents: Sequence[int], kernel: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Returns strides, dilations, and padding before and after, of a call over spatial extents."""
    rank = len(extents)
    strides = call.ints("strides", [1] * rank) or []
    dilations = call.ints("dilations", [1] * rank) or []
    mode = call.str("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        before, after = [], []
        for size, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
            total = maximum((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            small, large = total // 2, total - total // 2
            before.append(small if mode == "SAME_UPPER" else large)
            after.append(large if mode == "SAME_UPPER" else small)
        return strides, dilations, before, after
    pads = [0] * (2 * rank) if mode == "VALID" else call.ints("pads", [0] * (2 * rank)) or []
    return strides, dilations, pads[:rank], pads[rank:]


def padded(x: Tensor, before: Sequence[int], after: Sequence[int], fill: float = 0.0) -> Tensor:
    """Returns x with its last dimensions padded."""
    amounts = [n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair]
    return x.op("constant_pad_nd.default", amounts, fill) if differ(amounts) else x


def differ(amounts: Sequence[int], others: Sequence[int] = ()) -> bool:
    """Tells whether sizes are, or may be, other than these, or than 0."""
    rest = [a - b for a, b in zip(amounts, others or [0] * len(amounts), strict=True)]
    return any(is_symbolic(amount) or amount != 0 for amount in rest)


def convolved(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    setting: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]],
    groups: int,
) -> Tensor:
    """Returns a convolution of one to three dimensions, of any padding."""
    strides, dilations, before, after = (list(s) for s in setting)
    rank = x.rank - 2
    if not 1 <= rank <= 3:
        raise ExportError(f"convolutions have one to three spatial dimensions, not {rank}.")
    if differ(before, after) or is_symbolic(before):
        x = padded(x, before, after)
        before = [0] * rank
    return x.op(f"conv{rank}d.default", w, b, strides, before, dilations, groups)


@translation("Conv")
def _conv(call: Call, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    setting = windows(call, x.shape[2:], w.shape[2:])
    return convolved(x, w, b, setting, call.int("group", 1))


@translation("ConvTranspose")
def _conv_transpose(call: Call, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    rank, kernel = x.rank - 2, w.shape[2:]
    strides = call.ints("strides", [1] * rank) or []
    dilations = call.ints("dilations", [1] * rank) or []
    extra = call.ints("output_padding", [0] * rank) or []
    whole = [
        (n - 1) * s + d * (k - 1) + 1 + e
        for n, s, d, k, e in zip(x.shape[2:], strides, dilations, kernel, extra, strict=True)
    ]
    wanted = call.ints("output_shape")
    mode = call.str("auto_pad", "NOTSET")
    if mode.startswith("SAME") and wanted is None:
        wanted = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    if wanted is None:
        pads = call.ints("pads", [0] * (2 * rank)) or []
        before, after = pads[:rank], pads[rank:]
    else:
        total = [n - m for n, m in zip(whole, wanted[-rank:], strict=True)]
        small = [t // 2 for t in total]
        large = [t - s for t, s in zip(total, small, strict=True)]
        before, after = (small, large) if mode == "SAME_UPPER" else (large, small)
    # The odd parts of padding and of output padding are cut from, or added to, the whole result.
    name = f"conv_transpose{rank}d.{'default' if rank == 1 else 'input'}"
    zero = [0] * rank
    y = x.op(name, w, b, strides, zero, zero, call.int("group", 1), dilations)
    for i, (front, behind, added) in enumerate(zip(before, after, extra, strict=True)):
        y = _cropped(y, 2 + i, front, behind - added, b)
    return y


def _cropped(y: Tensor, dim: int, front: int, behind: int, bias: Tensor | None) -> Tensor:
    """Cuts both ends; a negative amount is room where no product falls, only the bias."""
    y = y.slice(dim, max(front, 0), y.shape[dim] - max(behind, 0))
    if front >= 0 and behind >= 0:
        return y
    grown = pad_dim(y, dim, max(-front, 0), max(-behind, 0))
    if bias is None:
        return grown
    inside = np.zeros(grown.shape[dim], bool)
    inside[max(-front, 0) : max(-front, 0) + y.shape[dim]] = True
    mask = y.graph.known(inside.reshape([-1 if d == dim else 1 for d in range(y.rank)]))
    rest = bias.view((1, bias.shape[0], *[1] * (y.rank - 2)))
    return y.graph.op("where.self", mask, grown, rest)


@translation("Einsum")
def _einsum(call: Call, *tensors: Tensor) -> Tensor:
    text = call.str("equation").replace(" ", "")
    left, _, right = text.partition("->")
    terms = left.split(",")
    inner = [len(t.replace("...", "")) for t in terms]
    free = max(x.rank - n for x, n in zip(tensors, inner, strict=True))
    dots = "".join(chr(ord("0") + i) for i in range(free))
    filled = [
        t.replace("...", dots[len(dots) - (x.rank - n) :])
        for t, x, n in zip(terms, tensors, inner, strict=True)
    ]
    if "->" in text:
        result = right.replace("...", dots)
    else:
        letters = sorted(c for c in set("".join(inner_of(terms))) if left.count(c) == 1)
        result = dots + "".join(letters)
    total, labels = _one_operand(tensors[0], filled[0])
    for x, term in zip(tensors[1:], filled[1:], strict=True):
        total, labels = _two_operands(total, labels, *_one_operand(x, term))
    gone = [i for i, c in enumerate(labels) if c not in result]
    if gone:
        total = total.op("sum.dim_IntList", gone).to(total.dtype, total.kind)
        labels = "".join(c for c in labels if c in result)
    return total.permute([labels.index(c) for c in result])


def inner_of(terms: Sequence[str]) -> list[str]:
    """Returns the letters of an equation's terms, without ellipses."""
    return [t.replace("...", "") for t in terms]


def _one_operand(x: Tensor, labels: str) -> tuple[Tensor, str]:
    """Takes the diagonal where a letter is repeated."""
    for letter in dict.fromkeys(labels):
        while labels.count(letter) > 1:
            first = labels.index(letter)
            second = labels.index(letter, first + 1)
            x = x.op("diagonal.default", 0, first, second)
            labels = labels.replace(letter, "") + letter * (labels.count(letter) - 1)
    return x, labels


def _two_operands(a: Tensor, la: str, b: Tensor, lb: str) -> tuple[Tensor, str]:
    """Multiplies with every letter of both kept, broadcast; sums come last."""
    labels = la + "".join(c for c in lb if c not in la)

    def spread(x: Tensor, own: str) -> Tensor:
        order = [own.index(c) for c in labels if c in own]
        extents = iter([x.shape[i] for i in order])
        return x.permute(order).view([next(extents) if c in own else 1 for c in labels])

    return spread(a, la) * spread(b, lb), labels


@translation("Det")
def _det(call: Call, x: Tensor) -> Tensor:
    """By elimination with pivoting as products of choices is PyTorch's: a fallback."""
    return x.op("linalg_det.default")


@translation("Col2Im")
def _col2im(call: Call, x: Tensor, image: Tensor, block: Tensor) -> Tensor:
    """Adds columns into an image: index_put with accumulation at places known beforehand."""
    size = image.ints("the image shape of Col2Im")
    kernel = block.ints("the block shape of Col2Im")
    rank = len(size)
    strides = call.ints("strides", [1] * rank) or []
    dilations = call.ints("dilations", [1] * rank) or []
    pads = call.ints("pads", [0] * (2 * rank)) or []
    whole = [s + pads[i] + pads[i + rank] for i, s in enumerate(size)]
    counts = [
        (w - d * (k - 1) - 1) // s + 1
        for w, d, k, s in zip(whole, dilations, kernel, strides, strict=True)
    ]
    lines = [
        (np.arange(k) * d)[:, None] + (np.arange(c) * s)[None, :]
        for k, d, c, s in zip(kernel, dilations, counts, strides, strict=True)
    ]
    flat = np.zeros([1] * (2 * rank), np.int64)
    for i, line in enumerate(lines):
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = line.shape
        flat = flat * whole[i] + line.reshape(shape)
    n, channels = x.shape[0], x.shape[1] // math.prod(kernel)
    columns = x.view((n, channels, flat.size))
    zeros = x.graph.full((n, channels, math.prod(whole)), 0, x.dtype)
    places = x.graph.known(flat.reshape(-1))
    y = zeros.op("index_add.default", 2, places, columns).view((n, channels, *whole))
    for i, extent in enumerate(size):
        y = y.slice(2 + i, pads[i], pads[i] + extent)
    return y

"""Turns every convolution with static weights into `npu.conv`, with one way to say padding.

Resolves "same" and "valid", takes a zero padding before the convolution into it, and gives
an unbatched input a batch of one. Convolutions whose weights are computed at run time stay, as do
float64 and integers, which the conv kernels do not take, and those over no channels, which have
no result.

Taps that lie in the padding for every output, as those of wide dilations over small images do, are
cut off the weight. They add zeros; where such a weight is not finite, NaN, which is left out.
"""

from __future__ import annotations

from npusim.analysis.fused_nodes import KERNEL_DTYPES, reshaped
from npusim.analysis.shapes import ints
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.ops.conv import as_tuple
from npusim.ops.fused import NO_EPILOGUE
from npusim.targets.target_config import TargetConfig

_RANKS: dict[str, int] = {
    **{f"aten.conv{r}d.{o}": r for r in (1, 2, 3) for o in ("default", "padding")},
    "aten.conv_transpose1d.default": 1,
    "aten.conv_transpose2d.input": 2,
    "aten.conv_transpose3d.input": 3,
}

Pads = tuple[tuple[int, ...], tuple[int, ...]]


def canonicalize_conv(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with its convolutions written as `npu.conv`."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    if node.op not in _RANKS and node.op != "aten.convolution.default":
        return None
    x, weight, bias = (*node.inputs, None)[:3]
    assert x is not None and weight is not None
    if not _fits(x, weight, bias, rewriter):
        return None
    rank = rewriter.types[weight].rank - 2
    attrs = _attributes(node, rewriter.types[weight].shape[2:], rank)
    if rewriter.types[x].rank == rank + 1:
        return _unbatched(node, (x, weight, bias, None), attrs, rewriter)
    x = _absorb_padding(x, attrs, rewriter)
    weight = _cut_taps(node, x, weight, attrs, rewriter)
    return become(node, "npu.conv", (x, weight, bias, None), attrs)


def _fits(x: str, weight: str, bias: str | None, rewriter: Rewriter) -> bool:
    static = weight in rewriter.static and (bias is None or bias in rewriter.static)
    a, b = rewriter.types[x], rewriter.types[weight]
    taken = a.dtype == b.dtype and a.dtype in KERNEL_DTYPES and 0 not in b.shape
    return static and x not in rewriter.static and taken


def _attributes(node: Node, kernel: tuple[int, ...], rank: int) -> dict[str, Attr]:
    def spatial(name: str, default: int) -> tuple[int, ...]:
        return ints(node, name, rank) if name in node.attrs else (default,) * rank

    dilation = spatial("dilation", 1)
    front, back = _padding(node, kernel, dilation, rank)
    return {
        "stride": spatial("stride", 1),
        "padding": front,
        "padding_back": back,
        "dilation": dilation,
        "output_padding": spatial("output_padding", 0),
        "groups": node.attrs.get("groups", 1),
        "transposed": bool(node.attrs.get("transposed", "transpose" in node.op)),
        "algorithm": "auto",
        **NO_EPILOGUE,
    }


def _padding(node: Node, kernel: tuple[int, ...], dilation: tuple[int, ...], rank: int) -> Pads:
    """Resolves the words; an odd remainder of "same" goes behind, as in PyTorch."""
    padding = node.attrs.get("padding", 0)
    if padding == "valid":
        return (0,) * rank, (0,) * rank
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    both = ints(node, "padding", rank) if "padding" in node.attrs else (0,) * rank
    return both, both


def _absorb_padding(x: str, attrs: dict[str, Attr], rewriter: Rewriter) -> str:
    """Adds a zero padding before the convolution to its own; returns what is read now."""
    node = rewriter.producer(x)
    if node is None or node.op != "aten.constant_pad_nd.default" or attrs["transposed"]:
        return x
    pad, rank = ints(node, "pad"), node.type.rank - 2
    if node.attrs.get("value", 0) != 0 or len(pad) > 2 * rank or min(pad, default=0) < 0:
        return x
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    pairs = [(0, 0)] * (rank - len(pairs)) + pairs[::-1]  # constant_pad_nd lists the last first
    for name, side in (("padding", 0), ("padding_back", 1)):
        own = attrs[name]
        assert isinstance(own, tuple)
        attrs[name] = tuple(a + p[side] for a, p in zip(own, pairs, strict=True))  # type: ignore[operator]
    (source,) = node.inputs
    assert source is not None
    return source


def _cut_taps(node: Node, x: str, weight: str, attrs: dict[str, Attr], rewriter: Rewriter) -> str:
    """Leaves out the taps that meet no element of x; returns the weight of the others."""
    sizes, type = rewriter.types[x].shape[2:], rewriter.types[weight]
    if attrs["transposed"] or is_symbolic(rewriter.types[x].shape):
        return weight
    names = ("stride", "padding", "padding_back", "dilation")
    rank = len(sizes)
    numbers = [as_tuple(attrs[name], rank) for name in names]
    cut = [_reach(*one) for one in zip(sizes, type.shape[2:], *numbers, strict=True)]
    for d, (size, (first, count, front, back, step)) in enumerate(
        zip(type.shape[2:], cut, strict=True), start=2
    ):
        if count == size:
            continue
        shape = rewriter.types[weight].shape
        part = TensorType(type.dtype, (*shape[:d], count, *shape[d + 1 :]))
        bounds: dict[str, Attr] = {"dim": d, "start": first, "end": first + count, "step": 1}
        weight = rewriter.emit("aten.slice.Tensor", (weight,), part, bounds, like=node)
        for name, number in (("padding", front), ("padding_back", back), ("dilation", step)):
            old = as_tuple(attrs[name], rank)
            attrs[name] = (*old[: d - 2], number, *old[d - 1 :])
    return weight


def _reach(
    size: int, kernel: int, stride: int, front: int, back: int, dilation: int
) -> tuple[int, int, int, int, int]:
    """Of one dimension: the first tap that meets x and how many there are from it on, paddings and
    dilation with these alone. The number of outputs stays."""
    outputs = (size + front + back - dilation * (kernel - 1) - 1) // stride + 1
    first, count = 0, kernel
    while outputs > 0 and count > 1 and (outputs - 1) * stride < front and dilation <= front:
        first, count, front = first + 1, count - 1, front - dilation
    while outputs > 0 and count > 1 and (count - 1) * dilation - front >= size and dilation <= back:
        count, back = count - 1, back - dilation
    return first, count, front, back, dilation if count > 1 else 1


def _unbatched(
    node: Node,
    inputs: tuple[str, str, str | None, None],
    attrs: dict[str, Attr],
    rewriter: Rewriter,
) -> Node:
    x, *rest = inputs
    batched = reshaped(x, (1, *rewriter.types[x].shape), node, rewriter)
    type = TensorType(node.type.dtype, (1, *node.type.shape))
    conv = rewriter.emit("npu.conv", (batched, *rest), type, attrs, like=node)
    return become(node, "aten.view.default", (conv,), {"size": node.type.shape})

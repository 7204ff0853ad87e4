"""How a kernel's work falls into items: groups, rows, columns and depth of each stem's commands."""

from __future__ import annotations

import math
from collections.abc import Callable

from npusim.abi.kernels import Params
from npusim.simulate.forms import taps

Sizes = tuple[int, int, int, int]  # groups, rows, columns, depth


def no_sizes(_: Params) -> Sizes:
    """Returns those of a kernel of which none are known."""
    return 1, 1, 1, 1


def _product(p: Params) -> Sizes:
    return math.prod(max(1, b) for b in p.get("batch", ())), p["m"], p["n"], p["k"]


def _grouped(p: Params) -> Sizes:
    """Returns groups of as many rows, as many as there can be."""
    groups = max(1, min(p["batch"][5], p["m"]))
    return groups, -(-p["m"] // groups), p["n"], p["k"]


def _depthwise(p: Params) -> Sizes:
    """Returns points and their channels: each is computed by itself."""
    points = p["batch"] * math.prod(p["out_size"])
    return 1, points, p["out_channels"], math.prod(p["kernel"])


def _convolution(p: Params) -> Sizes:
    groups, positions = max(1, p.get("groups", 1)), p["batch"] * math.prod(p["out_size"])
    depth = math.prod(p["kernel"]) * (p["in_channels"] // groups)
    return groups, positions, p["out_channels"] // groups, depth


def _winograd(p: Params) -> Sizes:
    """Returns a product for each point of a tile of the image: of its tiles."""
    tile = max(1, p["tile"])
    tiles = p["batch"] * math.prod(-(-size // tile) for size in p["out_size"][1:])
    return (tile + 2) ** 2, tiles, p["out_channels"], p["in_channels"]


def _pool(p: Params) -> Sizes:
    """Returns points and their channels, each of a window of its own."""
    return 1, p["batch"] * math.prod(p["out_size"]), p["out_channels"], taps(p)


def _resized(p: Params) -> Sizes:
    """Returns points and their channels."""
    return 1, p["batch"] * math.prod(p["out_size"]), p["channels"], 1


def _attention(p: Params) -> Sizes:
    """Returns the queries of each head: a tile of them goes through all keys."""
    return p["batch"] * p["heads"], p["q_len"], 1, p["kv_len"]


def most_keys(p: Params, mean: int) -> int:
    """Returns how many keys a query sees at most, who sees so many in the mean."""
    if not p["causal"]:
        return mean
    window = p["window"] or p["kv_len"]
    return max(mean, min(p["kv_len"], window, mean + p["q_len"] // 2))


def _norm(p: Params) -> Sizes:
    return p["rows"], 1, p["size"], p["size"]


def _group_norm(p: Params) -> Sizes:
    size = p["spatial"] * p["channels"] // max(1, p["groups"])
    return p["batch"] * p["groups"], 1, size, size


def _lines(p: Params) -> Sizes:
    return p["outer"] * p["inner"], 1, p["size"], p["size"]


def _reduce(p: Params) -> Sizes:
    out, inner = p["shape"][: p["rank"]], p["reduced"][: p["reduced_rank"]]
    return math.prod(out), 1, math.prod(inner), math.prod(inner)


def _copy(p: Params) -> Sizes:
    shape = p["shape"][: p["rank"]] or (1,)
    return math.prod(shape[:-1]), 1, shape[-1], 1


def _moved(p: Params) -> Sizes:
    """Returns elements as rows, by which cores share them."""
    return 1, math.prod(p["shape"][: p["rank"]]), 1, 1


def _elements(p: Params) -> Sizes:
    return 1, 1, math.prod(p["shape"]), 1


PRODUCTS = (
    "gemm", "linear", "normed_linear", "linear_before_norm", "linear_behind_norm",
    "linear_rope_append", "quantized_linear", "matmul", "widening_matmul",
)  # fmt: skip
_WINDOWS = ("conv", "conv_int8")
SIZES: dict[str, Callable[[Params], Sizes]] = {
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(_WINDOWS, _convolution),
    **dict.fromkeys(("softmax", "scan", "sort"), _lines),
    "grouped_matmul": _grouped,
    "conv_depthwise": _depthwise,
    "conv_winograd": _winograd,
    "pool": _pool,
    "resize": _resized,
    "attention": _attention,
    "norm": _norm,
    "group_norm": _group_norm,
    "reduce": _reduce,
    "copy": _copy,
    "pointwise": _elements,
    "index": _moved,
}

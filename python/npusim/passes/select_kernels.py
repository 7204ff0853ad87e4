"""Chooses the algorithm of every `npu.conv` that has none: depthwise, Winograd or indirect GEMM."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from npusim.analysis.shapes import ints
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import reading
from npusim.ir.symbolic import upper
from npusim.targets.measured import Winograd
from npusim.targets.target_config import TargetConfig


def select_kernels(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with `algorithm` set in every convolution."""
    nodes = tuple(_selected(node, graph, target) for node in graph.nodes)
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _selected(node: Node, graph: Graph, target: TargetConfig) -> Node:
    if node.op != "npu.conv":
        return node
    with reading(node):
        chosen = node.attrs["algorithm"]
        if chosen == "auto":
            chosen = conv_algorithm(node, graph, target)
    return replace(node, attrs={**node.attrs, "algorithm": chosen})


def conv_algorithm(node: Node, graph: Graph, target: TargetConfig) -> str:
    """Returns "depthwise", "winograd2", "winograd4" or "igemm" for an `npu.conv`."""
    x, weight = (graph.types[i] for i in node.inputs[:2] if i is not None)
    groups = node.attrs["groups"]
    depthwise = not node.attrs["transposed"] and groups == x.shape[1] == node.type.shape[1]
    if depthwise and target.has("conv_depthwise"):
        return "depthwise"
    plain = (
        not node.attrs["transposed"]
        and groups == 1
        and weight.shape[2:] == (3, 3)
        and ints(node, "stride") == ints(node, "dilation") == (1, 1)
        and x.dtype == "float32"  # transformed half-precision data loses what tolerances allow
    )
    tiles = target.winograd_tiles if target.has("winograd_weights", "conv_winograd") else ()
    costs = target.measurements.winograd if plain and tiles else None
    tile = winograd_tile(x.shape[1], node.type.shape, tiles, costs) if costs else 0
    return f"winograd{tile}" if tile else "igemm"


def winograd_tile(
    channels: int, out: tuple[int, ...], tiles: tuple[int, ...], costs: Winograd
) -> int:
    """Returns the tile of the cheapest Winograd form of a 3x3 convolution, or 0 for none.

    Costs are in multiply-adds, those of a CPU fitted to ResNet's layers (docs/benchmarks.md). With
    c input and n output channels, the direct form needs 9·c·n a pixel; F(t x t, 3 x 3) needs
    (t + 2)²·c·n a tile and about 9·(t + 2)² a tile and channel for the transforms. Fetching the
    weights costs as much as a few more pixels, or `weights_tiles` more tiles: Winograd's are
    (t + 2)² / 9 times as many, which decides for the direct form where images are small.

    Args:
        channels: input channels.
        out: output shape [batch, channels, height, width]; symbolic sizes count as the greatest.
        tiles: tile sizes the target has.
        costs: what was measured of its device.
    """
    batch, out_channels, height, width = map(upper, out)
    if min(channels, out_channels) < costs.least_channels:
        return 0
    pair, ends = channels * out_channels, channels + out_channels
    best, cost = 0, 9 * pair * (batch * height * width + costs.direct_weights_pixels)
    for tile in tiles:
        count = batch * ceil(height / tile) * ceil(width / tile)
        points = count * (pair + costs.transform_multiply_adds * ends)
        points += costs.weights_tiles * pair
        if (tile + 2) ** 2 * points < cost:
            best, cost = tile, (tile + 2) ** 2 * points
    return best

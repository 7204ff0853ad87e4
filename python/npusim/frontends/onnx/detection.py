"""Sampling of images: grid sampling, regions of interest, deformable convolution.

The latter two gather the four neighbours of every point and weigh them, in index arithmetic on the
graph's own values.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.files import RUNTIME_DOMAIN
from npusim.frontends.onnx.registry import Call, translation

_MODES = {"linear": 0, "bilinear": 0, "nearest": 1, "cubic": 2, "bicubic": 2}
_PADDING = {"zeros": 0, "border": 1, "reflection": 2}


@translation("GridSample")
@translation("GridSample", domain=RUNTIME_DOMAIN)
def _grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    mode = _MODES[call.str("mode", "linear")]
    padding = _PADDING[call.str("padding_mode", "zeros")]
    align = bool(call.int("align_corners"))
    name = "grid_sampler_2d.default" if x.rank == 4 else "grid_sampler_3d.default"
    return x.op(name, grid, mode, padding, align)


def _neighbours(flat: Tensor, size: int, y: Tensor, x: Tensor, width: int) -> Tensor:
    """Returns what lies at whole places (y, x) of images, zero outside.

    Args:
        flat: [n, channels, size], images in rows of `width`.
        y, x: whole numbers as floats, [n, points].
    """
    graph, height = flat.graph, size // width
    inside = [v.op("ge.Scalar", 0).op("logical_and.default", v.op("lt.Scalar", n))
              for v, n in ((y, height), (x, width))]  # fmt: skip
    rows, columns = (v.op("clamp.default", 0, n - 1) for v, n in ((y, height), (x, width)))
    places = (rows * width + columns).to("int64", TensorProto.INT64)
    n, channels = flat.shape[:2]
    wide = places.view((n, 1, places.shape[1])).expand((n, channels, places.shape[1]))
    taken = flat.op("gather.default", 2, wide)
    mask = inside[0].op("logical_and.default", inside[1]).view((n, 1, places.shape[1]))
    return graph.op("where.ScalarOther", mask, taken, 0.0)


def bilinear(flat: Tensor, width: int, y: Tensor, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns the four neighbours of points, [n, channels, points], each with its weight."""
    size, n, points = flat.shape[2], flat.shape[0], y.shape[1]
    y0, x0 = y.op("floor.default"), x.op("floor.default")
    fy, fx = y - y0, x - x0
    found = []
    for dy, wy in ((0, fy.op("rsub.Scalar", 1.0)), (1, fy)):
        for dx, wx in ((0, fx.op("rsub.Scalar", 1.0)), (1, fx)):
            value = _neighbours(flat, size, y0 + dy, x0 + dx, width)
            found.append((value, (wy * wx).view((n, 1, points))))
    return found


@translation("DeformConv")
def _deform_conv(
    call: Call,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    if x.rank != 4:
        raise ExportError("deformable convolutions have two spatial dimensions here.")
    n, channels, height, width = x.shape
    kernel, (rows, columns) = w.shape[2:], offset.shape[2:]
    strides, dilations = call.ints("strides", [1, 1]) or [], call.ints("dilations", [1, 1]) or []
    pads = call.ints("pads", [0] * 4) or []
    groups, offset_groups = call.int("group", 1), call.int("offset_group", 1)
    taps = kernel[0] * kernel[1]
    lines = [
        np.arange(k).reshape(-1, 1) * d + np.arange(c).reshape(1, -1) * s - p
        for k, d, c, s, p in zip(kernel, dilations, (rows, columns), strides, pads[:2], strict=True)
    ]
    base_y = np.broadcast_to(lines[0][:, None, :, None], (*kernel, rows, columns))
    base_x = np.broadcast_to(lines[1][None, :, None, :], (*kernel, rows, columns))
    points = taps * rows * columns
    moved = offset.view((n * offset_groups, taps, 2, rows * columns))
    places = []
    for i, base in enumerate((base_y, base_x)):
        table = call.graph.table(base.reshape(1, taps, rows * columns), x)
        places.append((moved.op("select.int", 2, i) + table).view((n * offset_groups, points)))
    flat = x.view((n * offset_groups, channels // offset_groups, height * width))
    sampled: Tensor | None = None
    for value, weight in bilinear(flat, width, places[0], places[1]):
        sampled = value * weight if sampled is None else sampled + value * weight
    assert sampled is not None
    if mask is not None:
        sampled = sampled * mask.view((n * offset_groups, 1, points))
    each = channels // groups * taps
    patches = sampled.view((n, groups, each, rows * columns))
    matrix = w.view((groups, w.shape[0] // groups, each))
    y = matrix.op("matmul.default", patches).view((n, w.shape[0], rows, columns))
    return y if b is None else y + b.view((1, b.shape[0], 1, 1))


@translation("RoiAlign")
def _roi_align(call: Call, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
    count = call.int("sampling_ratio")
    if count <= 0:
        raise ExportError("without a sampling_ratio the number of samples is a value of rois.")
    _, channels, height, width = x.shape
    regions = rois.shape[0]
    out = (call.int("output_height", 1), call.int("output_width", 1))
    half = call.str("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scaled = rois * call.float("spatial_scale", 1.0) - (0.5 if half and call.version >= 16 else 0.0)
    images = x.op("index_select.default", 0, batch.to("int64", TensorProto.INT64))
    flat = images.view((regions, channels, height * width))
    lines = []
    for axis, cells in ((1, out[0]), (0, out[1])):
        start = scaled.slice(1, axis, axis + 1)
        length = scaled.slice(1, axis + 2, axis + 3) - start
        if not (half and call.version >= 16):
            length = length.op("clamp.default", 1.0, None)
        steps = (np.arange(cells * count) + 0.5) / (cells * count)
        lines.append(start + length * call.graph.table(steps.reshape(1, -1), x))
    ys, xs = lines
    points = (regions, ys.shape[1], xs.shape[1])
    spread = [
        v.view(s).expand(points).view((regions, math.prod(points[1:])))
        for v, s in ((ys, (regions, ys.shape[1], 1)), (xs, (regions, 1, xs.shape[1])))
    ]
    total = _inside(flat, width, height, spread, call.str("mode", "avg") == "max")
    bins = total.view((regions, channels, out[0], count, out[1], count))
    if call.str("mode", "avg") == "max":
        return bins.op("amax.default", [3, 5])
    return bins.op("mean.dim", [3, 5])


def _inside(flat: Tensor, width: int, height: int, at: list[Tensor], largest: bool) -> Tensor:
    """Returns samples; those beyond a pixel outside are zero, others move onto the image.

    With `largest` a sample is the greatest of its weighed neighbours, as ONNX defines it.
    """
    y, x = at
    far = [
        v.op("lt.Scalar", -1.0).op("logical_or.default", v.op("gt.Scalar", float(n)))
        for v, n in ((y, height), (x, width))
    ]
    moved = [v.op("clamp.default", 0.0, n - 1.0) for v, n in ((y, height), (x, width))]
    total: Tensor | None = None
    for value, weight in bilinear(flat, width, moved[0], moved[1]):
        part = value * weight
        if total is None:
            total = part
        else:
            total = total.op("maximum.default", part) if largest else total + part
    assert total is not None
    gone = far[0].op("logical_or.default", far[1]).view((y.shape[0], 1, y.shape[1]))
    return flat.graph.op("where.ScalarSelf", gone, 0.0, total)

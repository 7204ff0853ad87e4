"""Resize and its older forms: PyTorch's upsamplings where they are these (`upsampling`), and else
products with filter matrices, one an axis, known beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.kinds import Array, is_floating
from npusim.frontends.onnx.registry import Call, translation
from npusim.frontends.onnx.upsampling import Axis, factor_between, linear, nearest
from npusim.ir.symbolic import is_symbolic


@translation("Upsample")
def _upsample(call: Call, x: Tensor, scales: Tensor | None = None) -> Tensor:
    given = call.attrs.get("scales") if scales is None else scales.values("the scales of Upsample")
    if given is None:
        raise ExportError("it has no scales.")
    factors = [float(v) for v in np.asarray(given).reshape(-1)]
    asked = Filter(call.str("mode", "nearest"), "asymmetric", "floor")
    axes = [_scaled(n, factor) for n, factor in zip(x.shape, factors, strict=True)]
    native = _native(x, axes, asked)
    if native is not None:
        return native
    for dim, axis in enumerate(axes):
        x = _resized(x, dim, axis, asked, None)
    return x


def _scaled(size: int, factor: float) -> Axis:
    """Returns what a scale makes of an axis."""
    if not is_symbolic(size):
        return Axis(size, math.floor(size * factor), factor)
    if factor != int(factor):
        raise ExportError(f"it resizes {size} elements, which calls choose, by {factor:g}.")
    return Axis(size, size * int(factor), factor)


def _sized(size: int, length: int) -> Axis:
    """Returns what a length makes of an axis."""
    return Axis(size, length, factor_between(size, length))


class Filter:
    """What a resize does along an axis: mode, coordinates, rounding, and their settings."""

    def __init__(
        self,
        mode: str,
        coordinates: str,
        nearest: str,
        cubic: float = -0.75,
        exclude: bool = False,
        antialias: bool = False,
    ) -> None:
        self.mode, self.coordinates, self.nearest = mode, coordinates, nearest
        self.cubic, self.exclude, self.antialias = cubic, exclude, antialias


@translation("Resize")
def _resize(
    call: Call,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    if call.version == 10:
        roi, scales = None, roi
    coordinates = call.str(
        "coordinate_transformation_mode", "half_pixel" if call.version > 10 else "asymmetric"
    )
    asked = Filter(
        call.str("mode", "nearest"),
        coordinates,
        call.str("nearest_mode", "round_prefer_floor" if call.version > 10 else "floor"),
        call.float("cubic_coeff_a", -0.75),
        bool(call.int("exclude_outside")),
        bool(call.int("antialias")),
    )
    dims = [a % x.rank for a in call.ints("axes", list(range(x.rank))) or []]
    axes = _axes(call, [x.shape[d] for d in dims], scales, sizes)
    boxes = _boxes(roi, coordinates, len(dims))
    if not any(boxes):
        every = dict(zip(dims, axes, strict=True))
        kept = [every.get(d, Axis(n, n, 1.0)) for d, n in enumerate(x.shape)]
        native = _native(x, kept, asked)
        if native is not None:
            return native
    fill = call.float("extrapolation_value")
    dtype, kind = x.dtype, x.kind
    if asked.mode != "nearest" and not is_floating(kind):
        x = x.to("float32")
    outside: list[tuple[int, Array]] = []
    for dim, axis, box in zip(dims, axes, boxes, strict=True):
        if box is not None:
            places = _coordinates(axis, asked.coordinates, box)
            outside.append((dim, (places < 0) | (places > axis.size - 1)))
        x = _resized(x, dim, axis, asked, box)
    for dim, mask in outside:
        shape = [-1 if d == dim else 1 for d in range(x.rank)]
        x = call.graph.op("where.ScalarSelf", call.graph.known(mask.reshape(shape)), fill, x)
    return x.to(dtype, kind) if x.dtype == dtype else _rounded(x, dtype, kind)


def _axes(
    call: Call, extents: Sequence[int], scales: Tensor | None, sizes: Tensor | None
) -> list[Axis]:
    """Returns what the scales or sizes of a Resize make of its axes."""
    if scales is not None and scales.shape != (0,):
        factors = [float(v) for v in scales.values("the scales of Resize")]
        return [_scaled(n, factor) for n, factor in zip(extents, factors, strict=True)]
    if sizes is None:
        raise ExportError("it has neither scales nor sizes.")
    axes = [_sized(n, m) for n, m in zip(extents, sizes.ints("the sizes of Resize"), strict=True)]
    policy = call.str("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return axes
    factors = [axis.factor for axis in axes if axis.factor is not None]
    if len(factors) < len(axes) or is_symbolic(tuple(extents)):
        raise ExportError("it keeps the ratio of sizes that calls choose.")
    one = min(factors) if policy == "not_larger" else max(factors)
    return [Axis(n, math.floor(n * one + 0.5), one) for n in extents]


def _native(x: Tensor, axes: Sequence[Axis], asked: Filter) -> Tensor | None:
    """Returns what one of PyTorch's upsamplings makes of x, if that is what is asked for."""
    if all(axis.is_kept for axis in axes) or asked.exclude or asked.antialias:
        return None
    if asked.mode == "nearest":
        return nearest(
            x, axes, asked.coordinates, asked.nearest, lambda axis: _taken(axis, asked, None)
        )
    return linear(x, axes, asked.coordinates) if asked.mode == "linear" else None


def _rounded(x: Tensor, dtype: str, kind: int) -> Tensor:
    bounds = np.iinfo(dtype)
    whole = x.op("round.default").op("clamp.default", int(bounds.min), int(bounds.max))
    return whole.to(dtype, kind)


def _boxes(
    roi: Tensor | None, coordinates: str, count: int
) -> Sequence[tuple[float, float] | None]:
    if coordinates != "tf_crop_and_resize" or roi is None:
        return [None] * count
    values = roi.values("the region of Resize").astype(np.float64)
    return [(float(values[i]), float(values[count + i])) for i in range(count)]


def _coordinates(axis: Axis, mode: str, box: tuple[float, float] | None) -> Array:
    """Returns where in the input each output lies, in elements."""
    size, length, scale = axis.size, axis.length, axis.factor
    if scale is None or axis.is_symbolic:
        raise ExportError(
            f"it makes {length} elements of {size}, which calls choose, in a way that is fixed "
            "while importing; give these sizes."
        )
    out = np.arange(length, dtype=np.float64)
    exact = scale * size
    if mode == "half_pixel":
        return (out + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        adjust = length / exact
        centre = size / 2
        return centre * (1 - adjust) + (out + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (out + 0.5) / scale - 0.5 if length > 1 else np.zeros_like(out)
    if mode == "align_corners":  # by what there is, not by what a factor would make exactly
        return out * (size - 1) / (length - 1) if length > 1 else np.zeros_like(out)
    if mode == "asymmetric":
        return out / scale
    if mode == "tf_half_pixel_for_nn":
        return (out + 0.5) / scale
    if mode == "tf_crop_and_resize" and box is not None:
        start, end = box
        if length > 1:
            return start * (size - 1) + out * (end - start) * (size - 1) / (length - 1)
        return np.full_like(out, 0.5 * (start + end) * (size - 1))
    raise ExportError(f"the coordinates {mode!r} are none that ONNX knows.")


def _resized(
    x: Tensor, dim: int, axis: Axis, asked: Filter, box: tuple[float, float] | None
) -> Tensor:
    if axis.is_kept and box is None:
        return x
    if asked.mode == "nearest":
        return x.op("index_select.default", dim, x.graph.known(_taken(axis, asked, box)))
    places = _coordinates(axis, asked.coordinates, box)
    matrix = _matrix(places, axis.size, axis.factor or 1.0, asked)
    table = x.graph.table(matrix.T, x)  # [size, length]
    order = [d for d in range(x.rank) if d != dim] + [dim]
    turned = x.permute(order).op("matmul.default", table)
    back = [order.index(d) for d in range(x.rank)]
    return turned.permute(back)


def _taken(axis: Axis, asked: Filter, box: tuple[float, float] | None) -> Array:
    """Returns the elements that are nearest."""
    places = _coordinates(axis, asked.coordinates, box)
    return np.clip(_nearest(places, asked.nearest), 0, axis.size - 1).astype(np.int64)


def _nearest(places: Array, mode: str) -> Array:
    if mode == "floor":
        return np.floor(places)
    if mode == "ceil":
        return np.ceil(places)
    if mode == "round_prefer_ceil":
        return np.floor(places + 0.5)
    return np.ceil(places - 0.5)


def _matrix(places: Array, size: int, scale: float, asked: Filter) -> Array:
    """Returns the weight of every input for every output, [length, size]."""
    reach = {"linear": 1, "cubic": 2}.get(asked.mode)
    if reach is None:
        raise ExportError(f"the mode {asked.mode!r} is none that ONNX knows.")
    shrink = min(scale, 1.0) if asked.antialias else 1.0
    radius = math.ceil(reach / shrink)
    matrix = np.zeros((len(places), size))
    for row, place in enumerate(places):
        base = math.floor(place)
        taps = np.arange(base - radius + 1, base + radius + 1)
        weights = np.array([_weight((t - place) * shrink, asked) for t in taps])
        if asked.exclude:
            weights = np.where((taps < 0) | (taps >= size), 0.0, weights)
        if asked.exclude or asked.antialias:
            weights = weights / weights.sum()
        np.add.at(matrix[row], np.clip(taps, 0, size - 1), weights)
    return matrix


def _weight(distance: float, asked: Filter) -> float:
    d = abs(distance)
    if asked.mode == "linear":
        return max(1.0 - d, 0.0)
    a = asked.cubic
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0

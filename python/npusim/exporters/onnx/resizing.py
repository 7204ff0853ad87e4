"""Upsampling: by scales where the call gives them, as PyTorch does, else to the result's size."""

from __future__ import annotations

from typing import Any

from npusim.exporters.onnx.registry import Call, Tensor, translation

_NEAREST = ("upsample_nearest", "_upsample_nearest_exact")
_SMOOTH = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")


@translation(
    *(f"aten.{n}{d}d.{o}" for n in _NEAREST for d in (1, 2, 3) for o in ("default", "vec")),
    *(f"aten.{n}.{o}" for n in _SMOOTH for o in ("default", "vec")),
)
def _upsample(call: Call, x: Tensor) -> Tensor:
    op = call.node.op
    attrs: dict[str, Any] = {"mode": "linear"}
    if "nearest" in op:
        exact = "exact" in op
        attrs = {
            "mode": "nearest",
            "coordinate_transformation_mode": "half_pixel" if exact else "asymmetric",
            "nearest_mode": "round_prefer_ceil" if exact else "floor",
        }
    else:
        aligned = bool(call.attr("align_corners"))
        attrs["coordinate_transformation_mode"] = "align_corners" if aligned else "half_pixel"
    if "bicubic" in op:
        attrs |= {"mode": "cubic", "cubic_coeff_a": -0.75}
    scales = _scales(call, x)
    if scales is not None and not call.attr("align_corners"):
        factors = call.const([1.0, 1.0, *scales], "float32")
        return call.op("Resize", x, None, factors, shape=call.type.shape, **attrs)
    return call.op(
        "Resize", x, None, None, call.ints(call.type.shape), shape=call.type.shape, **attrs
    )


def _scales(call: Call, x: Tensor) -> list[float] | None:
    """Returns the factors that a call gives for every dimension, where they lead to the result."""
    given = call.attr("scale_factors")
    if given is None:
        names = {
            1: ("scales",),
            2: ("scales_h", "scales_w"),
            3: ("scales_d", "scales_h", "scales_w"),
        }
        given = [call.attr(name) for name in names[x.rank - 2]]
    if any(factor is None for factor in given):
        return None
    fits = all(
        int(size * factor) == result
        for size, factor, result in zip(x.shape[2:], given, call.type.shape[2:], strict=True)
    )
    return [float(factor) for factor in given] if fits else None

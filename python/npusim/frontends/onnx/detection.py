"""Sampling and regions of images: grid sampling, regions of interest, deformable convolution."""

from __future__ import annotations

from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.registry import Call, translation

_MODES = {"linear": 0, "bilinear": 0, "nearest": 1, "cubic": 2, "bicubic": 2}
_PADDING = {"zeros": 0, "border": 1, "reflection": 2}


@translation("GridSample")
def _grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    mode = _MODES[call.str("mode", "linear")]
    padding = _PADDING[call.str("padding_mode", "zeros")]
    align = bool(call.int("align_corners"))
    name = "grid_sampler_2d.default" if x.rank == 4 else "grid_sampler_3d.default"
    return x.op(name, grid, mode, padding, align)

"""Geometry of pooling and resizing: a thread an output element."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from npusim.codegen.geometry import Geometry, Rule, line
from npusim.ops.kernels import Params


def _pool(p: Params) -> Geometry:
    geometry = line(p["batch"] * p["out_channels"] * prod(p["out_size"]))
    return replace(geometry, defines={**geometry.defines, "INDICES": p["has_indices"]})


def _resize(p: Params) -> Geometry:
    return line(p["batch"] * p["channels"] * prod(p["out_size"]))


RULES: dict[str, Rule] = {"pool": _pool, "resize": _resize}

"""Geometry of the kernels that work along rows: softmax, norms, reductions, scans, sorts."""

from __future__ import annotations

from npusim.codegen.geometry import Rule

RULES: dict[str, Rule] = {}

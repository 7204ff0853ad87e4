"""Geometry of the kernels that multiply: linear, gemm, matmul, convolution, attention, rope."""

from __future__ import annotations

from npusim.codegen.geometry import Rule

RULES: dict[str, Rule] = {}

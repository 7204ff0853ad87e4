"""Geometry of pooling and resizing."""

from __future__ import annotations

from npusim.codegen.geometry import Rule

RULES: dict[str, Rule] = {}

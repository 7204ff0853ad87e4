"""Geometry of index and scatter."""

from __future__ import annotations

from npusim.codegen.geometry import Rule

RULES: dict[str, Rule] = {}

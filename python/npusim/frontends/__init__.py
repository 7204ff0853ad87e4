"""Frontends: a model of some framework becomes a Graph. Imports no framework by itself."""

from __future__ import annotations

# Values up to this size travel with the graph as constants; greater ones are weights, or refused.
MAX_CONSTANT_BYTES = 1 << 20

"""Operators that nothing gives a meaning, found before anything is built and listed at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any

from onnx import ModelProto, NodeProto

from npusim.errors import ExportError
from npusim.frontends.onnx.control import OPERATORS
from npusim.frontends.onnx.evaluate import NEEDS_VALUES
from npusim.frontends.onnx.functions import has_body
from npusim.frontends.onnx.registry import TRANSLATIONS
from npusim.frontends.onnx.scope import domain_of

_BLOCKED = "com.microsoft.nchwc"  # convolutions over channels in blocks, of one processor


def refuse_unknown(
    model: ModelProto, name: str, opsets: Mapping[str, int], functions: Container[tuple[str, str]]
) -> None:
    """Raises ExportError with every operator that has no meaning here, and how many of each."""
    missing: Counter[tuple[str, str]] = Counter()
    for node in _all_nodes(model):
        domain, op = domain_of(node), node.op_type
        known = (domain, op) in TRANSLATIONS or (node.domain, op) in functions
        known |= not domain and (op in OPERATORS or op in NEEDS_VALUES)
        if not known and not has_body(op, domain, opsets):
            missing[domain or "ai.onnx", op] += 1
    if missing:
        listed = "".join(f"\n  {d}.{op} ({count})" for (d, op), count in sorted(missing.items()))
        hint = "Say what a custom one means with npusim.frontends.onnx.register_translation."
        if any(domain == _BLOCKED for domain, _ in missing):
            hint = (
                "ONNX Runtime saved the model for one processor's memory layout; save it with "
                "GraphOptimizationLevel.ORT_ENABLE_EXTENDED, or import the original."
            )
        raise ExportError(
            f"{name} calls operators that have no meaning here:{listed}", hint=f"\n{hint}"
        )


def _all_nodes(model: ModelProto) -> list[NodeProto]:
    found: list[NodeProto] = []
    pending: list[Any] = [model.graph, *model.functions]
    while pending:
        for node in pending.pop().node:
            found.append(node)
            pending.extend(a.g for a in node.attribute if a.HasField("g"))
    return found

"""What a node sees: the values with their names, the attributes and opsets around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from npusim.errors import ExportError

ONNX_DOMAINS = ("", "ai.onnx")


def opsets_of(model: ModelProto | FunctionProto) -> dict[str, int]:
    """Returns the version of each domain that a model or function names."""
    return {"" if o.domain in ONNX_DOMAINS else o.domain: o.version for o in model.opset_import}


def domain_of(node: NodeProto) -> str:
    """Returns an operator's domain; ONNX's own is the empty text."""
    return "" if node.domain in ONNX_DOMAINS else str(node.domain)


@dataclass
class Scope:
    """Names that nodes see: values, attributes of the function around them, opsets."""

    values: dict[str, Any]
    opsets: Mapping[str, int]
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """Returns a value; ExportError for a result that its node does not give."""
        if name not in self.values:
            raise ExportError(f"nothing gives the value {name}.")
        return self.values[name]

    def inner(self) -> Scope:
        """Returns a scope for a subgraph: it sees everything, and defines for itself."""
        return Scope(dict(self.values), self.opsets, self.attributes)


def with_attributes(node: NodeProto, scope: Scope) -> NodeProto:
    """Replaces references to attributes of the function around the node by their values."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif attribute.ref_attr_name in scope.attributes:
            given = copy.attribute.add()
            given.CopyFrom(scope.attributes[attribute.ref_attr_name])
            given.name = attribute.name
    return copy

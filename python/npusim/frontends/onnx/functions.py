"""What ONNX itself says of operators: versions, defaults, the functions they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto, helper

from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.scope import domain_of


@cache
def _schema(op: str, domain: str, version: int) -> Any:
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


def since(op: str, domain: str, opsets: Mapping[str, int]) -> int:
    """Returns the opset version that defined an operator as a model means it."""
    schema = _schema(op, domain, opsets.get(domain, 1))
    return 1 if schema is None else int(schema.since_version)


def defaults(node: NodeProto) -> dict[str, AttributeProto]:
    """Returns the attributes that an operator has without being given."""
    domain = domain_of(node)
    newest = 10_000 if domain else onnx.defs.onnx_opset_version()
    schema = _schema(node.op_type, domain, newest)
    if schema is None:
        return {}
    found = ((n, a.default_value) for n, a in schema.attributes.items())
    return {n: a for n, a in found if a.type}


def has_body(op: str, domain: str, opsets: Mapping[str, int]) -> bool:
    """Tells whether ONNX defines an operator by a function."""
    schema = _schema(op, domain, opsets.get(domain, 1))
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def body_of(
    node: NodeProto, inputs: Sequence[Any], opsets: Mapping[str, int]
) -> FunctionProto | None:
    """Returns the function that ONNX defines an operator by, for these operands; or None."""
    domain = domain_of(node)
    schema = _schema(node.op_type, domain, opsets.get(domain, 1))
    if schema is None:
        return None
    version = opsets.get("", onnx.defs.onnx_opset_version())
    if schema.has_function:
        usable = [v for v in schema.function_opset_versions if v <= version]
        data = schema.get_function_with_opset_version(usable[-1]) if usable else None
        return None if data is None else _parsed(data)
    if not schema.has_context_dependent_function:
        return None
    types = [_type_proto(i).SerializeToString() for i in inputs]
    usable = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if not usable:
        return None
    data = schema.get_context_dependent_function_with_opset_version(
        usable[-1], node.SerializeToString(), types
    )
    return _parsed(data)


def _parsed(data: Any) -> FunctionProto:
    if isinstance(data, FunctionProto):
        return data
    body = FunctionProto()
    body.ParseFromString(data)
    return body


def _type_proto(value: Any) -> TypeProto:
    if not isinstance(value, Tensor):
        return TypeProto()
    made: TypeProto = helper.make_tensor_type_proto(value.kind, value.shape)
    return made

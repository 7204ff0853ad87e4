"""PyTorch operator schemas as npusim reads them: which arguments are operands, which attributes.

Owns the two-way mapping between an operator call (positional and keyword arguments) and a node
(`inputs` and `attrs`, see `ir/graph.py`). Imports torch; `import npusim` must not import this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from npusim.errors import Error, ExportError, GraphError, UnsupportedOpError
from npusim.ir.graph import Attr
from npusim.ir.types import DTYPES, HOST_DTYPES

# Arguments that say where a tensor lives or how it is strided: not the graph's business.
_DROPPED_TYPES = ("Device", "Layout", "MemoryFormat", "Generator", "Stream")
_DROPPED_NAMES = ("pin_memory", "non_blocking")
_NUMBERS = ("number", "complex", "List[number]", "List[complex]")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an operator.

    Attributes:
        kind: "tensor", "tensors" (a list), "attr", or "dropped".
        type: the schema's type without its Optional ("int", "List[int]", "ScalarType" …).
        length: of a fixed-size list, which one element may stand for; else 0.
        keyword_only: whether a call must pass it by name.
        default: what stands in for an argument not given; `required` when there is none.
    """

    name: str
    kind: str
    type: str
    length: int
    keyword_only: bool
    required: bool
    default: Any


def resolve(op: str) -> torch._ops.OpOverload:
    """Returns PyTorch's operator of that name (`aten.add.Tensor`, `mylib.op.default`).

    Raises:
        UnsupportedOpError: PyTorch knows no such operator.
    """
    parts = op.split(".")
    try:
        packet = getattr(getattr(torch.ops, parts[0]), parts[1])
        overload = getattr(packet, parts[2] if len(parts) > 2 else "default")
    except (AttributeError, IndexError, RuntimeError):
        raise UnsupportedOpError(
            f"PyTorch has no operator {op}.",
            hint="Import the library that defines it, or give it to npusim.register_op.",
        ) from None
    return overload


@cache
def arguments(op: torch._ops.OpOverload) -> tuple[Argument, ...]:
    """Returns the arguments of an operator, in the order of its schema."""
    return tuple(map(_argument, op._schema.arguments))


def _argument(arg: Any) -> Argument:
    text = str(arg.real_type).removeprefix("Optional[")
    text = text[:-1] if str(arg.real_type).startswith("Optional[") else text
    if text == "Tensor":
        kind = "tensor"
    elif text in ("List[Tensor]", "List[Optional[Tensor]]"):
        kind = "tensors"
    else:
        kind = "dropped" if text in _DROPPED_TYPES or arg.name in _DROPPED_NAMES else "attr"
    required = not arg.has_default_value()
    default = None if required else arg.default_value
    return Argument(arg.name, kind, text, arg.N or 0, arg.kwarg_only, required, default)


def bind(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Argument, Any]]:
    """Yields every argument of the schema with the value a call gives it, defaults included."""
    for index, argument in enumerate(arguments(op)):
        if index < len(args) and not argument.keyword_only:
            yield argument, args[index]
        else:
            yield argument, kwargs.get(argument.name, argument.default)


def to_attr(value: Any, argument: Argument) -> Attr:
    """Returns a call's argument as a node's attribute.

    Raises:
        ExportError: the value has no place in a graph (a symbolic size, an object).
    """
    if isinstance(value, (list, tuple)):
        items = tuple(
            to_attr(item, argument)
            if isinstance(item, (list, tuple))
            else _scalar_attr(item, argument)
            for item in value
        )
        return items * argument.length if len(items) == 1 < argument.length else items
    attr = _scalar_attr(value, argument)
    spread = argument.length and attr is not None and argument.type.startswith("List[")
    return (attr,) * argument.length if spread else attr


def _scalar_attr(value: Any, argument: Argument) -> Attr:
    if argument.type == "ScalarType" and isinstance(value, int):
        value = _scalar_types()[value]
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise ExportError(f"{argument.name} is {value}, which is not known before the run.")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, complex):
        return str(value)  # a string, in a place where the schema has a number
    if not isinstance(value, (int, float)):
        raise ExportError(f"{argument.name} is {value!r}, a {type(value).__name__}.")
    return float(value) if argument.type in ("float", "List[float]") else value


@cache
def _scalar_types() -> dict[int, torch.dtype]:
    """PyTorch's dtypes by the integer that stands for them in a schema's default."""
    names = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
    codes = {code: getattr(torch, name) for code, name in enumerate(names)}
    others = {11: "bool", 9: "complex64", 10: "complex128", 15: "bfloat16", 23: "float8_e5m2"}
    others |= {24: "float8_e4m3fn", 27: "uint16", 28: "uint32", 29: "uint64"}
    return codes | {code: getattr(torch, name) for code, name in others.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """Returns a dtype's name in `DTYPES` or `HOST_DTYPES`.

    Raises:
        ExportError: npusim has no such dtype.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES and name not in HOST_DTYPES:
        known = ", ".join((*DTYPES, *HOST_DTYPES))
        raise ExportError(f"dtype {name} is not supported; supported are {known}.")
    return name


def result_leaves(result: Any) -> list[Any]:
    """Returns the tensors of an operator's result in order; lists of them count, None does not."""
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in result_leaves(item)]
    return [] if result is None else [result]


def call(
    op: torch._ops.OpOverload,
    inputs: Sequence[torch.Tensor | None],
    attrs: Mapping[str, Attr],
    device: torch.device | None = None,
) -> Any:
    """Calls a PyTorch operator with a node's operands and attributes.

    Args:
        device: where an operator that makes tensors from nothing puts them.

    Raises:
        GraphError: operands or attributes are too few or too many for the schema.
    """
    operands = list(inputs)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    used = set()
    for argument in arguments(op):
        used.add(argument.name)
        if argument.kind == "dropped":
            value = device if argument.type == "Device" and not inputs else argument.default
            if value is None and argument.required and argument.type == "Device":
                value = _device_of(inputs)
        else:
            value = _take(op, argument, operands, attrs)
        if argument.keyword_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    if operands or not used.issuperset(attrs):
        extra = sorted(set(attrs) - used)
        raise GraphError(
            f"{op} takes {len(inputs) - len(operands)} tensors, not {len(inputs)}."
            if operands
            else f"{op} has no argument {', '.join(extra)}."
        )
    return op(*args, **kwargs)


def _device_of(inputs: Sequence[torch.Tensor | None]) -> torch.device:
    """Returns where the operands are, for an operator whose schema insists on a device."""
    return next((t.device for t in inputs if t is not None), torch.device("cpu"))


def _take(
    op: torch._ops.OpOverload,
    argument: Argument,
    operands: list[torch.Tensor | None],
    attrs: Mapping[str, Attr],
) -> Any:
    """Returns the value of one argument; consumes its operands."""
    if argument.kind == "attr":
        return _from_attr(attrs.get(argument.name, argument.default), argument)
    if argument.kind == "tensor":
        count: Attr = 1
    else:
        count = attrs.get(argument.name)
        if count is None:
            return None
    if type(count) is not int or not 0 <= count <= len(operands):
        raise GraphError(f"{op}: the operands for {argument.name} are missing.")
    taken = operands[:count]
    del operands[:count]
    return taken if argument.kind == "tensors" else taken[0]


def _from_attr(value: Any, argument: Argument) -> Any:
    if argument.type == "ScalarType" and isinstance(value, str):
        if value not in DTYPES and value not in HOST_DTYPES:
            raise GraphError(f"{argument.name} is {value!r}, which is no dtype.")
        return getattr(torch, value)
    if isinstance(value, str) and argument.type in _NUMBERS:
        return _complex(value, argument)
    return [_from_attr(item, argument) for item in value] if isinstance(value, tuple) else value


def _complex(value: str, argument: Argument) -> complex:
    try:
        return complex(value)
    except ValueError:
        raise GraphError(f"{argument.name} is {value!r}, which is no number.") from None


# Where an implementation for tensors of the CPU may be registered, its decompositions included.
_CPU_KEYS = (
    "CPU",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


def host_refusal(op: torch._ops.OpOverload) -> str | None:
    """Returns why PyTorch may not, or cannot, run an operator of a graph on the CPU, or None.

    A graph may come from anywhere: an operator that changes its operands would break the values of
    others, and one that opens files is nobody's business.
    """
    if not _has_cpu_kernel(op):
        return "PyTorch has no implementation of it on the CPU"
    if op._schema.is_mutable:
        return "it changes its operands"
    if any(argument.name == "filename" for argument in arguments(op)):
        return "it opens a file"
    return None


def _has_cpu_kernel(op: torch._ops.OpOverload) -> bool:
    name = op._name
    try:
        if any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in _CPU_KEYS):
            return True
    except RuntimeError:  # an operator of TorchScript alone
        return False
    keys = (getattr(torch._C.DispatchKey, key) for key in _CPU_KEYS)
    return any(key in op.py_kernels for key in keys)


def is_random(op: torch._ops.OpOverload) -> bool:
    """Tells whether calls of an operator with equal arguments may give different results."""
    return torch.Tag.nondeterministic_seeded in op.tags


def attributes(op: str, given: Mapping[str, Any]) -> dict[str, Attr]:
    """Returns the attributes of a call: those given, and the schema's defaults of the others.

    Ops that PyTorch does not know have no schema: theirs are all given.

    Raises:
        UnsupportedOpError: PyTorch has no such operator.
        Error: the operator has no argument of that name, or one without a default is not given.
    """
    if op.startswith("npu."):
        return dict(given)
    left = dict(given)
    attrs: dict[str, Attr] = {}
    for argument in arguments(resolve(op)):
        if argument.kind not in ("tensors", "attr"):
            continue
        if argument.required and argument.name not in left:
            raise Error(f"{op} needs its argument '{argument.name}'.")
        value = left.pop(argument.name, argument.default)
        attrs[argument.name] = value if argument.kind == "tensors" else to_attr(value, argument)
    if left:
        raise Error(f"{op} has no argument '{next(iter(left))}'.")
    return attrs

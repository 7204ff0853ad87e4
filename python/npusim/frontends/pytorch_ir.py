"""Graph files of the package pytorch-ir (`torch_ir`), version 0.2: its JSON becomes a Graph.

Such a file lists the calls of torch.export before any decomposition: ATen operators with in-place
ones and views among them, tensor operands flat, other arguments by name as far as the call gave
them. It is rebuilt as a module that makes the same calls, and that module is extracted like any
other, so that in-place operators become values and composite ones what the dialect has for them.
A file is hostile until it has been: only operators of ATen that work on tensors are called, on
tensors without data, and every declared shape is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from npusim.errors import Error, GraphError
from npusim.frontends.torch_export import extract_ir
from npusim.ir.graph import Graph, Source
from npusim.ops import schema

_GETITEM = "<built-in function getitem>"
_LISTS = "_tensor_list_sizes"
_HOLES = "_tensor_list_none_masks"
_MAX_ELEMENTS = 1 << 48

# Where the rebuilt module keeps its calls, beside the weights' own paths.
_CALLS = "npusim_calls"
_PREFIX = f"{_CALLS}.n_"


@dataclass(frozen=True)
class _Meta:
    """A tensor as the file describes it; `node` and `index` say who gives it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    node: str | None
    index: int

    def fits(self, value: object) -> bool:
        return (
            isinstance(value, Tensor)
            and tuple(value.shape) == self.shape
            and value.dtype == self.dtype
        )

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


@dataclass(frozen=True)
class _Call:
    """A node of the file; `path` is where it stands there."""

    name: str
    op: str
    inputs: tuple[_Meta, ...]
    outputs: tuple[_Meta, ...]
    attrs: Mapping[str, Any]
    path: str


def graph_of(tree: Mapping[str, Any]) -> Graph:
    """Returns the graph that a file of pytorch-ir describes; weights have their state_dict keys.

    Raises:
        GraphError: the file is not what that package writes, or calls what has no meaning here.
    """
    inputs = _metas(tree, "$", "graph_inputs")
    outputs = _metas(tree, "$", "graph_outputs")
    calls = [_call(item, path) for item, path in _items(tree, "$", "nodes")]
    _refuse_unknown(calls)
    network = _Network(tree, calls, outputs)
    arguments = {meta.name: _empty(meta) for meta in inputs}
    if len(arguments) != len(inputs):
        raise GraphError("$.graph_inputs names an input twice.")
    try:
        graph = extract_ir(network.eval(), (), arguments, model_name=_text(tree, "$", "model_name"))
    except GraphError:
        raise
    except Error as error:
        raise GraphError(f"The calls of the file do not fit together: {error}") from error
    return _renamed(graph, outputs)


def _renamed(graph: Graph, outputs: Sequence[_Meta]) -> Graph:
    """Gives nodes the file's names as their source, and outputs the names they have there."""
    nodes = []
    for node in graph.nodes:
        module = node.source.module if node.source else ""
        source = Source(module.removeprefix(_PREFIX)) if module.startswith(_PREFIX) else None
        nodes.append(replace(node, source=source))
    shown = [replace(o, name=m.name) for o, m in zip(graph.outputs, outputs, strict=True)]
    return replace(graph, nodes=tuple(nodes), outputs=tuple(shown))


# ---- the module that makes the file's calls ----


class _Network(nn.Module):
    def __init__(
        self, tree: Mapping[str, Any], calls: Sequence[_Call], outputs: Sequence[_Meta]
    ) -> None:
        super().__init__()
        self._steps, self._results = list(calls), list(outputs)
        self.add_module(_CALLS, nn.ModuleDict({f"n_{call.name}": _Step(call) for call in calls}))
        if len(self.get_submodule(_CALLS)._modules) != len(calls):
            raise GraphError("$.nodes names a node twice.")
        weights = {meta.name: meta for meta in _metas(tree, "$", "weights")}
        held = _constants(tree)
        self._stored: dict[str, tuple[nn.Module, str]] = {}
        for key, meta in weights.items():
            self._stored[key] = self._place(key, held.get(key), meta)
        mapping = tree.get("weight_name_mapping", {})
        if not isinstance(mapping, Mapping):
            raise GraphError("$.weight_name_mapping must be an object.")
        for name, key in mapping.items():
            if not isinstance(key, str) or key not in self._stored:
                raise GraphError(f"$.weight_name_mapping.{name}: no weight {key!r} is listed.")
            self._stored[name] = self._stored[key]

    def _place(self, key: str, data: Tensor | None, meta: _Meta) -> tuple[nn.Module, str]:
        """Makes room for a tensor at its path; a constant that the file holds keeps its data."""
        *path, name = key.split(".")
        module: Any = self
        try:
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module._modules[part]
            if data is None:
                module.register_buffer(
                    name, torch.empty(meta.shape, dtype=meta.dtype, device="meta")
                )
            elif meta.fits(data) and not hasattr(module, name):
                setattr(module, name, data)
            else:
                raise GraphError(f"$.constants.{key} does not fit: expected {meta}.")
        except (KeyError, TypeError):
            raise GraphError(f"$.weights: {key!r} is no path of a tensor in a module.") from None
        return module, name

    def forward(self, **inputs: Tensor) -> list[Tensor]:
        made: dict[str, list[Any]] = {name: [tensor] for name, tensor in inputs.items()}
        named: dict[str, Any] = dict(inputs)
        for call in self._steps:
            operands = [self._operand(meta, call, made, named) for meta in call.inputs]
            results = self.get_submodule(_PREFIX + call.name)(*operands)
            made[call.name] = results
            named.update((m.name, r) for m, r in zip(call.outputs, results, strict=True))
        return [self._read(meta.name, named, "$.graph_outputs") for meta in self._results]

    def _operand(
        self, meta: _Meta, call: _Call, made: Mapping[str, list[Any]], named: Mapping[str, Any]
    ) -> Any:
        if meta.node is None:
            return self._read(meta.name, named, f"{call.path}.inputs")
        results = made.get(meta.node, [])
        if not 0 <= meta.index < len(results):
            raise GraphError(
                f"{call.path}.inputs: result {meta.index} of {meta.node!r} is read before it is "
                "made, or does not exist."
            )
        return results[meta.index]

    def _read(self, name: str, named: Mapping[str, Any], path: str) -> Any:
        if name in self._stored:
            module, attribute = self._stored[name]
            return getattr(module, attribute)
        if name not in named:
            raise GraphError(f"{path}: nothing is named {name!r}.")
        return named[name]


class _Step(nn.Module):
    """One call; a module of its own, so that extraction says which one a node comes from."""

    def __init__(self, call: _Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *operands: Any) -> list[Any]:
        call = self.call
        if call.op == _GETITEM:
            index = call.attrs.get("index", 0)
            if type(index) is not int or not -len(operands) <= index < len(operands):
                raise GraphError(f"{call.path}.attrs.index is {index!r}.")
            results = [operands[index]]
        else:
            args, kwargs = _arguments(call, operands)
            returned = schema.resolve(call.op)(*args, **kwargs)
            results = [r for r in schema.result_leaves(returned) if isinstance(r, Tensor)]
        fits = len(results) == len(call.outputs) and all(
            meta.fits(result) for meta, result in zip(call.outputs, results, strict=True)
        )
        if not fits:
            declared = ", ".join(map(str, call.outputs))
            given = ", ".join(f"{str(r.dtype)[6:]} {list(r.shape)}" for r in results)
            raise GraphError(f"{call.path} ({call.op}) declares {declared}, but gives {given}.")
        return results


def _arguments(call: _Call, operands: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Returns a call's arguments: tensors fill the places of tensors in order, the rest by name."""
    left, lists = list(operands), iter(call.attrs.get(_LISTS, ()))
    masks = iter(call.attrs.get(_HOLES, ()))
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in schema.arguments(schema.resolve(call.op)):
        if argument.kind == "tensors":
            count = next(lists, len(left))
            value: Any = [left.pop(0) for _ in range(count) if left]
            value = (
                _with_holes(value, next(masks, None)) if argument.type != "List[Tensor]" else value
            )
        elif argument.kind == "tensor" and left:
            value = left.pop(0)
        else:
            value = call.attrs.get(argument.name, argument.default)
        if argument.keyword_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    if left:
        raise GraphError(f"{call.path}: {call.op} takes fewer than {len(operands)} tensors.")
    return args, kwargs


def _with_holes(tensors: list[Any], mask: Sequence[bool] | None) -> list[Any]:
    if mask is None:
        return tensors
    rest = iter(tensors)
    return [None if hole else next(rest, None) for hole in mask]


def _refuse_unknown(calls: Sequence[_Call]) -> None:
    """Raises GraphError with everything that is called and has no meaning here."""
    problems = []
    for call in calls:
        if call.op == _GETITEM:
            continue
        try:
            if not call.op.startswith("aten."):
                raise Error("it is no operator of ATen")
            if any(a.name == "filename" for a in schema.arguments(schema.resolve(call.op))):
                raise Error("it opens a file")
        except Error as error:
            problems.append(f"\n  {call.path} ({call.op}): {error}")
    if problems:
        raise GraphError(f"The file calls what a graph cannot hold:{''.join(problems)}")


# ---- reading ----


def _items(tree: Mapping[str, Any], path: str, key: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    listed = tree.get(key)
    if not isinstance(listed, list):
        raise GraphError(f"{path}.{key} must be a list.")
    for i, item in enumerate(listed):
        if not isinstance(item, Mapping):
            raise GraphError(f"{path}.{key}[{i}] must be an object.")
        yield item, f"{path}.{key}[{i}]"


def _text(tree: Mapping[str, Any], path: str, key: str) -> str:
    value = tree.get(key)
    if not isinstance(value, str):
        raise GraphError(f"{path}.{key} must be a string.")
    return value


def _metas(tree: Mapping[str, Any], path: str, key: str) -> tuple[_Meta, ...]:
    return tuple(_meta(item, where) for item, where in _items(tree, path, key))


def _meta(tree: Mapping[str, Any], path: str) -> _Meta:
    shape = tree.get("shape")
    whole = isinstance(shape, list) and all(type(d) is int and d >= 0 for d in shape)
    if not whole or math.prod(shape) > _MAX_ELEMENTS:  # type: ignore[arg-type]
        raise GraphError(f"{path}.shape is {shape!r}, which is no shape.")
    node, index = tree.get("producer_node"), tree.get("producer_output_idx", 0)
    if not isinstance(node, (str, type(None))) or type(index) is not int:
        raise GraphError(f"{path} does not say which result of which node it is.")
    return _Meta(_text(tree, path, "name"), tuple(shape), _dtype(tree, path), node, index)  # type: ignore[arg-type]


def _dtype(tree: Mapping[str, Any], path: str) -> torch.dtype:
    found = getattr(torch, _text(tree, path, "dtype"), None)
    if not isinstance(found, torch.dtype):
        raise GraphError(f"{path}.dtype is {tree['dtype']!r}, which is no dtype.")
    return found


def _call(tree: Mapping[str, Any], path: str) -> _Call:
    attrs = tree.get("attrs", {})
    if not isinstance(attrs, Mapping):
        raise GraphError(f"{path}.attrs must be an object.")
    for key in (_LISTS, _HOLES):
        if not isinstance(attrs.get(key, []), list):
            raise GraphError(f"{path}.attrs.{key} must be a list.")
    name = _text(tree, path, "name")
    if not name.isidentifier():
        raise GraphError(f"{path}.name is {name!r}, which is no name of a node.")
    op, inputs = _text(tree, path, "op_type"), _metas(tree, path, "inputs")
    return _Call(name, op, inputs, _metas(tree, path, "outputs"), attrs, path)


def _constants(tree: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors whose elements the file holds, by name."""
    listed = tree.get("constants", {})
    if not isinstance(listed, Mapping):
        raise GraphError("$.constants must be an object.")
    found = {}
    for name, item in listed.items():
        path = f"$.constants.{name}"
        if not isinstance(item, Mapping):
            raise GraphError(f"{path} must be an object.")
        try:
            found[name] = torch.tensor(item.get("data"), dtype=_dtype(item, path))
        except (TypeError, ValueError, RuntimeError) as error:
            raise GraphError(f"{path}.data is no tensor: {error}") from None
    return found


def _empty(meta: _Meta) -> Tensor:
    return torch.empty(meta.shape, dtype=meta.dtype, device="meta")

"""Runs a function of tinygrad's tensors on stand-ins, so that nothing is computed.

Owns the stand-ins for inputs and weights, what is switched off meanwhile (realising, the JIT,
reading values), and finding out what the function changed. Everything is put back afterwards.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npusim.errors import Error, ExportError, foreign
from npusim.frontends.tinygrad.reader import dtype_name, stored_dtype
from npusim.frontends.tinygrad.terms import Leaf

Leaves = dict[Any, tuple[Leaf, str, tuple[int, ...]]]


@dataclass
class Captured:
    """What a model computes.

    Attributes:
        leaves: what UOps are inputs and weights, with dtype and shape.
        outputs: name and UOp of each result.
        updates: for each key of a weight that was written to, what it was and what it is now.
        weights: the caller's tensors by key.
        computed: whether the outputs were computed before, from the inputs themselves.
    """

    leaves: Leaves = field(default_factory=dict)
    outputs: list[tuple[str, Any]] = field(default_factory=list)
    updates: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    computed: bool = False


def capture(function: Callable[..., Any], inputs: Any, weights: Mapping[str, Any]) -> Captured:
    """Returns what a function computes of stand-ins for its inputs and weights.

    Raises:
        ExportError: it asks for values, or computes before it returns.
    """
    captured = Captured(weights=dict(weights))
    function = _plain(function)
    stand_ins, arguments = _arguments(function, inputs, captured.leaves)
    with _stand_in_weights(captured) as waiting:
        stand_ins.update(waiting)
        before = {key: t.uop for key, t in captured.weights.items()}
        with _nothing_runs(stand_ins):
            result = _called(function, arguments)
        captured.outputs = _outputs(result)
        for key, tensor in captured.weights.items():
            if tensor.uop is not before[key]:
                captured.updates[key] = (before[key], tensor.uop)
    return captured


def _called(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    from tinygrad import tensor as tinygrads

    made_by = tinygrads._METADATA.get()
    try:
        return function(*arguments)
    except Error:
        raise
    except Exception as error:  # a model runs, and fails in, any code
        raise ExportError(f"The model fails while it is imported: {foreign(error)}.") from error
    finally:
        tinygrads._METADATA.set(made_by)  # which a method that raises leaves behind


def graph_of(tensors: Any, inputs: Any, weights: Mapping[str, Any]) -> Captured:
    """Returns what tensors that were computed already, but not realised, depend on."""
    captured = Captured(weights=dict(weights), computed=True)
    named = (
        [p for key, item in inputs.items() for p in named_tensors(item, str(key))]
        if isinstance(inputs, Mapping)
        else named_tensors(inputs, "input")
    )
    for name, tensor in named:
        leaf = Leaf("input", name)
        uop = _unwritten(tensor.uop)
        captured.leaves[uop] = (leaf, dtype_name(tensor.dtype), _shape(tensor, name))
    for key, tensor in captured.weights.items():
        uop = _unwritten(tensor.uop)
        if uop not in captured.leaves:
            kind = "weight" if uop is tensor.uop else "state"
            entry = (Leaf(kind, key), dtype_name(tensor.dtype), _shape(tensor, key))
            captured.leaves[uop] = entry
        if uop is not tensor.uop:
            captured.updates[key] = (uop, tensor.uop)
    captured.outputs = _outputs(tensors)
    return captured


def named_tensors(value: Any, name: str) -> list[tuple[str, Any]]:
    """Returns the tensors in nested tuples, lists and dicts, with names; a lone one has `name`."""
    from tinygrad import Tensor

    if isinstance(value, Tensor):
        return [(name, value)]
    if isinstance(value, Mapping):
        return [p for key, item in value.items() for p in named_tensors(item, f"{name}.{key}")]
    if isinstance(value, (list, tuple)):
        return [p for i, item in enumerate(value) for p in named_tensors(item, f"{name}.{i}")]
    return []


def _outputs(result: Any) -> list[tuple[str, Any]]:
    """Returns the results by name, named as those of a PyTorch model are."""
    if isinstance(result, Mapping):
        pairs = [p for key, item in result.items() for p in named_tensors(item, str(key))]
    elif isinstance(result, (list, tuple)):
        pairs = [p for i, item in enumerate(result) for p in named_tensors(item, f"output_{i}")]
    else:
        pairs = named_tensors(result, "output")
    if not pairs:
        raise ExportError(f"The model returns no tensor, but {type(result).__name__}.")
    return [(name, tensor.uop) for name, tensor in pairs]


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what a TinyJit, or what tinygrad's @function, was made of."""
    if not hasattr(function, "fxn"):
        return function
    if function.fxn is None:
        raise ExportError(
            "A TinyJit that was loaded from a file holds kernels, and no function to import.",
            hint="Import the function it was made of.",
        )
    plain: Callable[..., Any] = function.fxn
    return plain


def _arguments(
    function: Callable[..., Any], inputs: Any, leaves: Leaves
) -> tuple[dict[Any, str], list[Any]]:
    """Returns stand-ins' buffers by name, and the arguments with stand-ins for tensors."""
    from tinygrad import Tensor

    inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    names = _parameters(function, len(inputs))
    stand_ins: dict[Any, str] = {}

    def replaced(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            tensor = _stand_in(value, name)
            leaves[tensor.uop] = (Leaf("input", name), dtype_name(tensor.dtype), tensor.shape)
            stand_ins[tensor.uop.base] = f"the input {name}"
            return tensor
        if isinstance(value, Mapping):
            return {k: replaced(v, f"{name}.{k}") for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(replaced(v, f"{name}.{i}") for i, v in enumerate(value))
        if type(value).__name__ == "UOp":
            raise ExportError(
                f"The argument {name} is a Variable, which is known only once the model runs.",
                hint="Pass a Python int; import one graph for each.",
            )
        return value

    return stand_ins, [replaced(v, n) for v, n in zip(inputs, names, strict=True)]


def _parameters(function: Callable[..., Any], count: int) -> list[str]:
    """Returns names for arguments: those of the function's parameters, where it has them."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in positional][:count]
    return names + [f"input_{i}" for i in range(len(names), count)]


def _stand_in(tensor: Any, name: str) -> Any:
    """Returns a tensor of the same type that has no data and gets none."""
    from tinygrad import Tensor

    dtype = stored_dtype(tensor)
    return Tensor.empty(*_shape(tensor, name), dtype=dtype, device=tensor.device)


def _shape(tensor: Any, name: str) -> tuple[int, ...]:
    if any(type(d) is not int for d in tensor.shape):
        raise ExportError(f"{name} has a symbolic shape, {tensor.shape}; shapes are fixed.")
    return tuple(tensor.shape)


@contextlib.contextmanager
def _stand_in_weights(captured: Captured) -> Iterator[dict[Any, str]]:
    """Gives the caller's tensors other graphs meanwhile: buffers without data."""
    originals = {key: tensor.uop for key, tensor in captured.weights.items()}
    first: dict[int, str] = {}
    buffers: dict[Any, str] = {}
    try:
        for key, tensor in captured.weights.items():
            same = first.setdefault(id(tensor), key)
            if same != key:
                uop = captured.weights[same].uop
                leaf, *_ = captured.leaves[uop]
                leaf.aliases = (*leaf.aliases, key)
                continue
            uop = _stand_in(tensor, key).uop
            entry = (Leaf("weight", key), dtype_name(uop.dtype), _shape(tensor, key))
            captured.leaves[uop] = entry
            buffers[uop.base] = f"the weight {key}"
            tensor.uop = uop
        for key in [k for k, t in captured.weights.items() if first[id(t)] != k]:
            del captured.weights[key]
        yield buffers
    finally:
        for key, uop in originals.items():
            if key in captured.weights:
                captured.weights[key].uop = uop


@contextlib.contextmanager
def _nothing_runs(stand_ins: Mapping[Any, str]) -> Iterator[None]:
    """Makes realising do nothing, reading stand-ins an error, and what is kept whole its parts."""
    from tinygrad import Tensor
    from tinygrad.engine import jit
    from tinygrad.function import _function

    compiled = getattr(jit, "_TinyJit", None) or jit.TinyJit
    realize, read = Tensor.realize, Tensor._buffer

    def not_now(tensor: Any, *others: Any, **options: Any) -> Any:
        return tensor

    def checked(tensor: Any) -> Any:
        found = [stand_ins[u] for u in tensor.uop.toposort() if u in stand_ins]
        if found:
            raise ExportError(
                f"The model asks for values while it is imported (item, tolist, numpy), and they "
                f"depend on {found[0]}.",
                hint="Keep them tensors, or pass what they decide as a Python value.",
            )
        with _set(Tensor, "realize", realize):
            return read(tensor)

    def called(kept: Any, *args: Any, **kwargs: Any) -> Any:
        return _plain(kept)(*args, **kwargs)

    with contextlib.ExitStack() as stack:
        stack.enter_context(_set(Tensor, "realize", not_now))
        stack.enter_context(_set(Tensor, "_buffer", checked))
        stack.enter_context(_set(compiled, "__call__", called))
        stack.enter_context(_set(_function, "__call__", called))
        yield
    for buffer, name in stand_ins.items():
        if buffer.op.name == "BUFFER" and buffer.buffer.is_allocated():
            raise ExportError(
                f"The model computes on {name} before it returns; what it returns is a result, "
                "no graph.",
                hint="Leave realising to the caller.",
            )


@contextlib.contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _unwritten(uop: Any) -> Any:
    """Returns what a tensor was before writes to it."""
    while uop.op.name == "AFTER":
        uop = uop.src[0]
    return uop

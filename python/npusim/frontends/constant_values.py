"""What tensors hold that a model computes of constants alone, asked while it is traced.

A trace has no data: `if mask.any()` is refused. A mask that forward makes of numbers, or that the
model has as a plain attribute, holds the same in every call; so its value is computed, from the
nodes that the trace has so far, and the branch is the only one that there is. nn.Transformer, for
one, compares the masks it is given with a causal one.

Owns `decided`, which answers such a question, or does not, and how often it did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

ASKING: frozenset[Callable[..., Any]] = frozenset(
    {
        *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
        *(Tensor.item, Tensor.tolist, Tensor.is_nonzero, torch.is_nonzero),
        *(Tensor.equal, torch.equal, Tensor.allclose, torch.allclose),
    }
)
"""Functions that give Python values of what tensors hold."""

_DECIDED = "npusim_decided"  # an attribute of tracers
_MOST_ELEMENTS = 1 << 22  # of a value that is computed while tracing
_UNSET = ("empty", "new_empty", "resize")  # operators whose result holds anything


class _Unknown(Exception):
    """A value depends on more than constants."""


def decided(func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any] | None:
    """Returns the answer of a function of ASKING, or None where constants do not decide it."""
    mode = proxy_tensor.get_proxy_mode()
    if mode is None:
        return None
    try:
        values = pytree.tree_map_only(Tensor, _Values(mode.tracer).of, (args, kwargs))
    except _Unknown:
        return None
    setattr(mode.tracer, _DECIDED, decisions_made(mode.tracer) + 1)
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return (func(*values[0], **values[1]),)


def decisions_made(tracer: Any) -> int:
    """Returns how many questions constants have decided in a trace.

    What was traced meanwhile holds for the tensors that it was called with, not for their likes.
    """
    made: int = getattr(tracer, _DECIDED, 0)
    return made


class _Values:
    """Computes what the nodes of a trace hold that are computed of constants alone."""

    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer
        self.held: dict[fx.Node, Any] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """Returns what a tensor of the trace holds.

        Raises:
            _Unknown: that depends on what the model is called with, or on weights.
        """
        if not isinstance(tensor, FakeTensor):
            return tensor
        slot = proxy_tensor.get_proxy_slot(tensor, self.tracer, None)
        if slot is None:
            raise _Unknown
        if slot.constant is not None:
            return slot.constant
        if not _of_constants(slot.proxy.node):
            raise _Unknown
        if slot.proxy.node not in self.held:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                self._compute()
        found: Tensor = self._known(slot.proxy.node)
        return found

    def _known(self, node: fx.Node) -> Any:
        if node not in self.held:
            raise _Unknown
        return self.held[node]

    def _compute(self) -> None:
        """Computes all nodes in order, as what changes tensors in place is among them."""
        self.held.clear()
        for node in self.tracer.graph.nodes:
            if node.op == "get_attr":
                value = getattr(self.tracer.root, node.target, None)
                if isinstance(value, Tensor) and not isinstance(value, FakeTensor):
                    self.held[node] = value.clone()
            elif node.op == "call_function":
                try:
                    self.held[node] = self._call(node)
                except _Unknown:
                    self._require_untouched(node)

    def _call(self, node: fx.Node) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._known)
        if not isinstance(node.target, OpOverload):  # getitem
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if torch.Tag.nondeterministic_seeded in node.target.tags or not _small(node):
            raise _Unknown
        if node.target._schema.name.removeprefix("aten::").startswith(_UNSET):
            raise _Unknown
        return node.target(*args, **kwargs)

    def _require_untouched(self, node: fx.Node) -> None:
        """Raises _Unknown where a node that is not computed changes a tensor that is."""
        if isinstance(node.target, OpOverload) and not node.target._schema.is_mutable:
            return
        if any(one in self.held for one in node.all_input_nodes):
            raise _Unknown


def _of_constants(node: fx.Node) -> bool:
    """Tells whether no input and no weight is among what a node is computed of."""
    seen, waiting = {node}, [node]
    while waiting:
        one = waiting.pop()
        if one.op == "placeholder":
            return False
        fresh = [each for each in one.all_input_nodes if each not in seen]
        seen.update(fresh)
        waiting += fresh
    return True


def _small(node: fx.Node) -> bool:
    made = pytree.tree_leaves(node.meta.get("val"))
    sizes = [t.numel() for t in made if isinstance(t, Tensor)]
    return all(type(size) is int and size <= _MOST_ELEMENTS for size in sizes)

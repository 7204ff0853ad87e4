"""A module without its weights' data, for as long as it is traced.

Owns the stand-ins: every parameter, buffer and dataless tensor attribute of a module is replaced by
a fake tensor of the same shape and dtype, and put back afterwards. No weight is read or copied, and
a model on the meta device, on a GPU or in memory looks the same to the trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from npusim.errors import ExportError
from npusim.module_tensors import module_tensors as held_tensors
from npusim.module_tensors import own_tensors


@dataclass
class ModuleTensors:
    """The tensors of a module by their path (`layer1.0.conv1.weight`).

    Attributes:
        originals: path -> the tensor itself. A tensor under several paths is a tied weight.
        persistent: the paths that `state_dict()` lists.
    """

    originals: dict[str, Tensor] = field(default_factory=dict)
    persistent: set[str] = field(default_factory=set)

    def paths(self, path: str) -> tuple[str, ...]:
        """Returns all paths of the tensor at `path`, those of the state_dict first, in order."""
        return self._groups[id(self.originals[path])]

    @cached_property
    def _groups(self) -> dict[int, tuple[str, ...]]:
        groups: dict[int, list[str]] = {}
        for path, tensor in self.originals.items():
            groups.setdefault(id(tensor), []).append(path)
        stored = self.persistent
        return {i: tuple(sorted(g, key=lambda p: p not in stored)) for i, g in groups.items()}


def module_tensors(model: nn.Module) -> ModuleTensors:
    """Returns the tensors of a module, each under every path that leads to it.

    Raises:
        ExportError: one has a layout without strides, or belongs to a transform of torch.func.
    """
    table = ModuleTensors()
    for path, tensor, persistent in held_tensors(model):
        require_dense(tensor, f"The weight {path}")
        table.originals[path] = tensor
        if persistent:
            table.persistent.add(path)
    return table


@contextmanager
def weight_free(model: nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Puts fake tensors in the place of the module's own; restores them on exit, come what may.

    The module must not be used by another thread meanwhile.
    """
    stand_ins: dict[int, Tensor] = {}
    with ExitStack() as undo:
        for module in model.modules():
            for name, tensor, _ in list(own_tensors(module)):
                if _has_data_of_its_own(module, name, tensor):
                    continue
                if id(tensor) not in stand_ins:
                    stand_ins[id(tensor)] = fake_like(tensor, mode)
                undo.callback(setattr, module, name, tensor)
                # setattr, since some modules (nn.LSTM) keep further references up to date in it.
                setattr(module, name, stand_ins[id(tensor)])
        yield


def fake_like(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """Returns a dense fake tensor on the CPU; a Parameter for a Parameter."""
    with mode:
        fake = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")
    return nn.Parameter(fake, requires_grad=False) if isinstance(tensor, nn.Parameter) else fake


def require_dense(tensor: Tensor, what: str) -> None:
    """Raises ExportError for a tensor that is no plain array of numbers."""
    functorch = torch._C._functorch
    if functorch.is_functorch_wrapped_tensor(tensor):
        kind, hint = "belongs to a transform of torch.func", "Extract outside of vmap and grad."
    elif tensor.is_nested:
        kind, hint = "is a nested tensor", "Pad it: torch.nested.to_padded_tensor."
    elif tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.").lstrip("_")
        kind, hint = f"has the layout {layout}", "Make it dense: tensor.to_dense()."
    else:
        return
    raise ExportError(f"{what} {kind}; a graph has dense tensors.", hint=hint)


def fake_arguments(tree: Any, mode: FakeTensorMode) -> Any:
    """Returns example arguments with a fake tensor for every tensor in the nested structure.

    Raises:
        ExportError: one is no dense tensor.
    """
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor):
            require_dense(leaf, "An example argument")
    return pytree.tree_map_only(Tensor, lambda t: fake_like(t.detach(), mode), tree)


def _has_data_of_its_own(module: nn.Module, name: str, tensor: Tensor) -> bool:
    """Tells whether a tensor is a plain attribute with data, which the trace lifts by itself."""
    return name in vars(module) and tensor.device.type == "cpu"

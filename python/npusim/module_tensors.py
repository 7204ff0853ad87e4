"""Which tensors a PyTorch module holds, and by which paths: those that a graph's weights have.

Owns the walk. A module's `state_dict()` leaves out buffers that are not persistent and tensors that
are plain attributes (tables that forward makes once), though a graph may read them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from torch import Tensor, nn


def is_module(value: object) -> TypeGuard[nn.Module]:
    """Tells whether a value is a PyTorch module, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def module_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Yields every path of every tensor of a module: (path, tensor, whether in the state_dict)."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, tensor, persistent in own_tensors(module):
            yield f"{prefix}.{name}" if prefix else name, tensor, persistent


def own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Yields (name, tensor, whether in the state_dict) of a module without its children's."""
    from torch import Tensor

    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield name, parameter, True
    for name, buffer in module._buffers.items():
        if buffer is not None:
            yield name, buffer, name not in module._non_persistent_buffers_set
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            yield name, value, False

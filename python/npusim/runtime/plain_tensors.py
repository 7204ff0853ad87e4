"""Tensors whose bits are their values: what the runtime can use where it lies.

Owns what becomes of all others. A conjugate or negative view is resolved to a copy; a tensor that
has no memory of its own, or keeps its values in another form, is refused with what to do instead.
NumPy's masked arrays are refused too: the runtime would read what the mask hides.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from npusim.errors import ShapeError
from npusim.runtime.host import is_torch


def plain(value: Any, name: str) -> Any:
    """Returns a tensor of PyTorch, or an array, whose bits are its values: itself, or a copy.

    Args:
        value: a tensor of any library; those of others than PyTorch and NumPy are returned as they
            are.
        name: of the input or weight, for messages.

    Raises:
        ShapeError: it has no values, or none in memory as a dense tensor has them.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ShapeError(
            f"'{name}' is a masked array, whose mask npusim does not know.",
            hint="Pass array.filled(value).",
        )
    if not is_torch(value):
        return value
    why, hint = _foreign(value)
    if why:
        raise ShapeError(f"'{name}' is {why}.", hint=hint)
    require_no_tracing()
    value = value.detach()
    if value.is_conj():
        value = value.resolve_conj()
    return value.resolve_neg() if value.is_neg() else value


def is_plain(tensor: Any) -> bool:
    """Tells whether a tensor of PyTorch can be used as it is."""
    return not _foreign(tensor)[0] and not tensor.is_neg() and not tensor.is_conj()


def require_no_tracing() -> None:
    """Refuses to go on inside a mode of PyTorch in which tensors are made without values.

    Raises:
        ShapeError: such as FakeTensorMode.
    """
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    if not torch._C._len_torch_dispatch_stack():
        return
    for mode in _get_current_dispatch_mode_stack():
        if getattr(mode, "_mode_key", None) is not None:
            raise ShapeError(
                f"{type(mode).__name__} is active, in which PyTorch computes no values.",
                hint="Call npusim outside of it.",
            )


def _foreign(tensor: Any) -> tuple[str, str]:
    """Returns what keeps the values of a tensor elsewhere, and what to do; empty where nothing."""
    import torch

    wrapped = sys.modules.get("torch._C._functorch")
    if wrapped is not None and wrapped.is_functorch_wrapped_tensor(tensor):
        return "a tensor of torch.func, without values of its own", (
            "Call npusim outside of vmap, grad and functionalize."
        )
    if torch._is_functional_tensor(tensor):
        return "a functional tensor, without values of its own", (
            "Call npusim outside of functionalization."
        )
    kind = type(tensor)
    # PyTorch's own way to say that a class leaves all operators as they are.
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"a {kind.__name__}, whose values npusim cannot know", (
            "Pass a plain torch.Tensor with the values."
        )
    if tensor.is_nested:
        return "a nested tensor", "Pass torch.nested.to_padded_tensor(tensor, padding)."
    if tensor.layout is not torch.strided:
        return f"a tensor of the layout {tensor.layout}", "Pass tensor.to_dense()."
    if tensor.is_quantized:
        return "a quantized tensor", "Pass tensor.dequantize()."
    if tensor.device.type == "meta":
        return "on the meta device: it has no data", "Pass a tensor with data."
    return "", ""

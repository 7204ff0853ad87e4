"""Functions of PyTorch that take sizes as plain numbers, where calls choose these sizes.

A trace through them fixes what was to stay open, so they are written with functions that keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def open_call(func: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., Any] | None:
    """Returns what computes a call in place of its function; None where that does it."""
    known = _WRITTEN.get(func)
    if known is None:
        return None
    takes, written = known
    return written if takes(*args, **kwargs) else None


def _takes_length(x: Tensor, *_: Any, **__: Any) -> bool:
    return isinstance(x.shape[-1], torch.SymInt)


def _max_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Maxima over windows of x[…, length]: those of images of one row."""
    size, gap, apart = (_number(v) for v in (kernel_size, padding, dilation))
    step = size if stride in (None, (), []) else _number(stride)
    windows: Any = ((1, size), (1, step), (0, gap), (1, apart), ceil_mode)
    if not return_indices:
        return F.max_pool2d(x.unsqueeze(-2), *windows).squeeze(-2)
    values, places = F.max_pool2d(x.unsqueeze(-2), *windows, return_indices=True)
    return values.squeeze(-2), places.squeeze(-2)


def _max_pool1d_with_places(*args: Any, **kwargs: Any) -> Any:
    return _max_pool1d(*args, **{**kwargs, "return_indices": True})


def _number(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) else value


def _takes_steps(start: Any, end: Any, steps: Any, **_: Any) -> bool:
    return isinstance(steps, torch.SymInt) and not isinstance(start, Tensor | complex)


def _linspace(
    start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **others: Any
) -> Tensor:
    """So many numbers from start to end, counted from the nearer one, as PyTorch counts them."""
    kind = dtype or torch.get_default_dtype()
    place = torch.arange(steps, device=others.get("device"))
    gaps = torch.full((), steps, dtype=torch.int64).sub(1).clamp_min(1)
    step = torch.full((), end - start, dtype=_counted(kind)) / gaps.to(_counted(kind))
    behind = (gaps - place).to(step.dtype)
    first = place < torch.sym_max(steps // 2, 1)
    return torch.where(first, start + step * place, end - step * behind).to(kind)


def _counted(kind: torch.dtype) -> torch.dtype:
    """Returns what numbers between the ends are computed in."""
    return kind if kind.is_floating_point and kind.itemsize >= 4 else torch.float32


_WRITTEN: dict[Callable[..., Any], tuple[Callable[..., bool], Callable[..., Any]]] = {
    F.max_pool1d: (_takes_length, _max_pool1d),
    torch.max_pool1d: (_takes_length, _max_pool1d),
    F.max_pool1d_with_indices: (_takes_length, _max_pool1d_with_places),
    torch.max_pool1d_with_indices: (_takes_length, _max_pool1d_with_places),
    torch.linspace: (_takes_steps, _linspace),
}

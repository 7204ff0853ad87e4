"""Recurrences in traces: layers of open length as one call, last states in PyTorch's own shapes.

PyTorch traces an LSTM, a GRU and an Elman network as steps, one behind the other, which fixes their
number. Where calls choose the length a layer is one `npu.recurrence` instead, behind the product
of all its inputs; steps of a known number stay what they are, and passes join them where that pays.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decompositions

from npusim.errors import ExportError
from npusim.ops.recurrence import reference_recurrence
from npusim.ops.recurrent_step import GATES

_LSTM, _RNN, _CHOICE = "one_layer_lstm", "one_layer_rnn", "select_one_layer_lstm_function"
_turn = threading.Lock()
_traces: list[dict[str, Any]] = []  # PyTorch's functions, once for each trace under way

_library = torch.library.Library("npusim", "FRAGMENT")
_library.define(
    "recurrence(Tensor sums, Tensor weight, Tensor? bias, Tensor hidden, Tensor? state, *, "
    "str cell, int[] gates, str act, bool reverse) -> Tensor[]"
)


def _computed(*operands: Tensor, **attrs: Any) -> list[Tensor]:
    found = reference_recurrence(*operands, **{**attrs, "gates": tuple(attrs["gates"])})
    return list(found) if isinstance(found, tuple) else [found]


def _without_data(
    sums: Tensor, weight: Tensor, bias: Any, hidden: Tensor, state: Any, **attrs: Any
) -> list[Tensor]:
    rows = sums.new_empty((sums.shape[0], *hidden.shape))
    return [rows] if state is None else [rows, torch.empty_like(state)]


_library.impl("recurrence", _computed, "CompositeExplicitAutograd")
torch.library.register_fake("npusim::recurrence", _without_data, lib=_library)

# The call that stands for an `npu.recurrence` in a trace.
RECURRENCE = torch.ops.npusim.recurrence.default


@contextlib.contextmanager
def recurrences_as_given() -> Iterator[None]:
    """Has traces keep layers of open length whole, and give the last states of others as they are.

    PyTorch 2.11 squeezes the batch of an LSTM's last states instead of the step it has added in
    front, so that of several sequences the states are [layers, 1, batch, hidden], in the trace
    alone; 2.13 does not. Process-wide while a trace lasts; states of the right shape stay.
    """
    with _turn:
        own = _traces[0] if _traces else _own()
        _traces.append(own)
        if len(_traces) == 1:
            setattr(decompositions, _LSTM, _lstm(own[_LSTM]))
            setattr(decompositions, _RNN, _rnn(own[_RNN]))
            setattr(decompositions, _CHOICE, lambda *_: getattr(decompositions, _LSTM))
    try:
        yield
    finally:
        with _turn:
            _traces.pop()
            if not _traces:
                for name, function in own.items():
                    setattr(decompositions, name, function)


def _own() -> dict[str, Any]:
    return {name: getattr(decompositions, name) for name in (_LSTM, _RNN, _CHOICE)}


def _lstm(layer: Callable[..., Any]) -> Callable[..., Any]:
    def one_layer(
        inp: Tensor, hidden: Any, params: Any, has_biases: bool, reverse: bool = False
    ) -> Any:
        if isinstance(inp.shape[0], torch.SymInt):
            if len(params) in (3, 5):
                raise ExportError(
                    "an LSTM with a projection (proj_size) has no open length.",
                    hint="Keep the length of its sequences fixed, or leave the projection to a "
                    "linear layer behind it.",
                )
            y, cell = _whole("lstm", inp, hidden, params, has_biases, reverse)
            return y, (_last(y, reverse), cell)
        y, states = layer(inp, hidden, params, has_biases, reverse=reverse)
        pairs = zip(states, hidden, strict=True)
        return y, tuple(last.squeeze(0) if last.dim() > h.dim() else last for last, h in pairs)

    return one_layer


def _rnn(layer: Callable[..., Any]) -> Callable[..., Any]:
    def one_layer(
        inp: Tensor,
        hidden: Tensor,
        params: Any,
        has_biases: bool,
        hidden_fn: Callable[..., Any],
        reverse: bool = False,
    ) -> Any:
        if not isinstance(inp.shape[0], torch.SymInt):
            return layer(inp, hidden, params, has_biases, hidden_fn, reverse=reverse)
        cell, act = _cell_of(hidden_fn)
        (y,) = _whole(cell, inp, (hidden, None), params, has_biases, reverse, act)
        return y, _last(y, reverse)

    return one_layer


def _cell_of(step: Callable[..., Any]) -> tuple[str, str]:
    """Returns the cell and the activation of PyTorch's function of a step."""
    if step is decompositions.gru_cell:
        return "gru", "tanh"
    (function,) = (cell.cell_contents for cell in step.__closure__ or ())
    return "plain", "relu" if function is torch.relu else "tanh"


def _whole(
    cell: str,
    inp: Tensor,
    states: tuple[Tensor, Tensor | None],
    params: Any,
    has_biases: bool,
    reverse: bool,
    act: str = "tanh",
) -> Any:
    """Returns the rows of all steps, [T, batch, units], and an LSTM's last cell, of inp[T, …]."""
    own, more = (params[2], params[3]) if has_biases else (None, None)
    sums = torch.nn.functional.linear(inp, params[0], own)
    gates = list(range(GATES[cell]))
    return RECURRENCE(
        sums, params[1], more, *states, cell=cell, gates=gates, act=act, reverse=reverse
    )


def _last(y: Tensor, reverse: bool) -> Tensor:
    return y.select(0, 0 if reverse else -1)

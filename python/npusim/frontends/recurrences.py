"""Recurrences in traces: last states in the shapes that PyTorch itself gives them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch._decomp import decompositions

_LAYER = "one_layer_lstm"
_turn = threading.Lock()
_traces: list[Callable[..., Any]] = []  # PyTorch's function, once for each trace under way


@contextlib.contextmanager
def states_as_given() -> Iterator[None]:
    """Has traces give the last states of an LSTM's layer the shape of its first, [batch, hidden].

    PyTorch traces an LSTM as steps. There 2.11 squeezes the batch instead of the step it has added
    in front, so that of several sequences the states are [layers, 1, batch, hidden], in the trace
    alone; 2.13 does not. Process-wide while a trace lasts; states of the right shape stay.
    """
    with _turn:
        layer = _traces[0] if _traces else getattr(decompositions, _LAYER, None)
        if layer is not None:
            _traces.append(layer)
            setattr(decompositions, _LAYER, _corrected(layer))
    try:
        yield
    finally:
        if layer is not None:
            with _turn:
                _traces.pop()
                if not _traces:
                    setattr(decompositions, _LAYER, layer)


def _corrected(layer: Callable[..., Any]) -> Callable[..., Any]:
    def corrected(inp: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        y, states = layer(inp, hidden, *args, **kwargs)
        pairs = zip(states, hidden, strict=True)
        return y, tuple(last.squeeze(0) if last.dim() > h.dim() else last for last, h in pairs)

    return corrected

"""RNN, GRU and LSTM: one product over all steps for the inputs, and steps one behind the other.

Of a number of steps that calls choose, all of them are one node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnx import TensorProto

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.registry import Call, Results, translation
from npusim.ir.graph import Attr
from npusim.ir.symbolic import is_symbolic
from npusim.ops.recurrence import RECURRENCE
from npusim.ops.recurrent_step import ACTIVATIONS

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {
    "RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"],
}  # fmt: skip
# The cell of a recurrence, and where the gates lie that it names: ONNX has iofc and zrh.
_CELLS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "RNN": ("plain", (0,)), "GRU": ("gru", (1, 0, 2)), "LSTM": ("lstm", (0, 2, 3, 1)),
}  # fmt: skip
Activation = Callable[[Tensor], Tensor]


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    plain = {
        "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "softplus": "softplus",
    }  # fmt: skip
    key = name.lower()
    if key in plain:
        return lambda x: x.op(f"{plain[key]}.default")
    if key == "affine":
        return lambda x: x * (1.0 if alpha is None else alpha) + (beta or 0.0)
    if key == "leakyrelu":
        return lambda x: x.op("leaky_relu.default", 0.01 if alpha is None else alpha)
    if key == "thresholdedrelu":
        return lambda x: x.op("threshold.default", 1.0 if alpha is None else alpha, 0.0)
    if key == "elu":
        return lambda x: x.op("elu.default", 1.0 if alpha is None else alpha)
    if key == "softsign":
        return lambda x: x / (x.op("abs.default") + 1.0)
    if key == "hardsigmoid":
        low, high = 0.2 if alpha is None else alpha, 0.5 if beta is None else beta
        return lambda x: (x * low + high).op("clamp.default", 0.0, 1.0)
    if key == "scaledtanh":
        inner, outer = 1.0 if beta is None else beta, 1.0 if alpha is None else alpha
        return lambda x: (x * inner).op("tanh.default") * outer
    raise ExportError(f"the activation {name!r} is none that ONNX knows.")


class _Layer:
    """One direction of a recurrent operator."""

    def __init__(
        self,
        call: Call,
        kind: str,
        activations: list[tuple[str, Activation]],
        operand: Activation,
    ) -> None:
        self.call, self.kind, self.operand = call, kind, operand
        self.names = [name for name, _ in activations[: len(_DEFAULTS[kind])]]
        self.activations = [function for _, function in activations]
        self.linear_before_reset = bool(call.int("linear_before_reset"))
        self.clip = call.attrs.get("clip")
        self.coupled = bool(call.int("input_forget"))

    def whole_activation(self) -> str | None:
        """Returns the activation of a layer whose steps one node computes; None of others."""
        if self.clip is not None or self.coupled:
            return None
        if self.kind == "GRU" and not self.linear_before_reset:
            return None
        names = tuple(name.lower() for name in self.names)
        if self.kind == "RNN":
            return names[0] if names[0] in ACTIVATIONS else None
        return "tanh" if list(names) == [n.lower() for n in _DEFAULTS[self.kind]] else None

    def _clipped(self, x: Tensor) -> Tensor:
        if self.clip is None:
            return x
        return x.op("clamp.default", -float(self.clip), float(self.clip))

    def step(
        self,
        gates: Tensor,
        h: Tensor,
        c: Tensor | None,
        r: Tensor,
        rb: Tensor | None,
        peepholes: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the next hidden (and cell) state; gates are W·x plus the input's bias."""
        if self.kind == "GRU":
            return self._gru(gates, h, r, rb), None
        total = gates + self.operand(h).op("linear.default", r, rb)
        if self.kind == "RNN":
            return self.activations[0](self._clipped(total)), None
        assert c is not None
        return self._lstm(total, c, peepholes)

    def _gru(self, gates: Tensor, h: Tensor, r: Tensor, rb: Tensor | None) -> Tensor:
        size = h.shape[-1]
        f, g = self.activations[:2]
        both = h.op(
            "linear.default",
            r.slice(0, 0, 2 * size),
            None if rb is None else rb.slice(0, 0, 2 * size),
        )
        zr = f(self._clipped(gates.slice(1, 0, 2 * size) + both))
        z, reset = zr.slice(1, 0, size), zr.slice(1, size, 2 * size)
        rest = r.slice(0, 2 * size, 3 * size)
        bias = None if rb is None else rb.slice(0, 2 * size, 3 * size)
        own = gates.slice(1, 2 * size, 3 * size)
        if self.linear_before_reset:
            new = own + reset * h.op("linear.default", rest, bias)
        else:
            new = own + (reset * h).op("linear.default", rest, bias)
        new = g(self._clipped(new))
        return new + z * (h - new)

    def _lstm(self, total: Tensor, c: Tensor, peepholes: Tensor | None) -> tuple[Tensor, Tensor]:
        size = c.shape[-1]
        f, g, last = self.activations[:3]
        i, o, forget, cell = (total.slice(1, n * size, (n + 1) * size) for n in range(4))
        seen = [None] * 3 if peepholes is None else [
            peepholes.slice(0, n * size, (n + 1) * size) for n in range(3)
        ]  # fmt: skip

        def with_cell(x: Tensor, p: Tensor | None, state: Tensor) -> Tensor:
            return self._clipped(x if p is None else x + p * state)

        i = f(with_cell(i, seen[0], c))
        forget = i.op("rsub.Scalar", 1.0) if self.coupled else f(with_cell(forget, seen[2], c))
        new = forget * c + i * g(self._clipped(cell))
        o = f(with_cell(o, seen[1], new))
        return o * last(new), new


@translation("RNN", "GRU", "LSTM")
def _recurrent(call: Call, *operands: Tensor | None) -> Results:
    return recurrent(call, *operands, kind=call.op)  # type: ignore[arg-type]


def recurrent(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    peepholes: Tensor | None = None,
    *,
    kind: str,
    operand: Activation = lambda x: x,
) -> list[Tensor | None]:
    """Returns the results of "RNN", "GRU" or "LSTM"; `operand` is applied to what an LSTM or RNN
    multiplies by its weights."""
    batch_first = bool(call.int("layout"))
    if batch_first:
        x = x.permute((1, 0, 2))
        h0, c0 = (None if s is None else s.permute((1, 0, 2)) for s in (h0, c0))
    direction = call.str("direction", "forward")
    ways = 2 if direction == "bidirectional" else 1
    results = []
    for way in range(ways):
        reverse = direction == "reverse" or way == 1
        states = [None if s is None else s.op("select.int", 0, way) for s in (h0, c0)]
        weights = [None if t is None else t.op("select.int", 0, way) for t in (w, r, b, peepholes)]
        layer = _Layer(call, kind, _activations(call, kind, way), operand)
        results.append(_run(layer, x, weights, states, lengths, reverse))
    graph = call.graph
    y = graph.op("stack.default", [result[0] for result in results], 1)
    h = graph.op("stack.default", [result[1] for result in results], 0)
    c = None
    if kind == "LSTM":
        c = graph.op("stack.default", [result[2] for result in results], 0)
    if batch_first:
        y = y.permute((2, 0, 1, 3))
        h = h.permute((1, 0, 2))
        c = None if c is None else c.permute((1, 0, 2))
    return [y, h, c]


def _whole(
    layer: _Layer,
    sums: Tensor,
    weights: tuple[Tensor, Tensor | None],
    states: tuple[Tensor, Tensor | None],
    extra: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns what `_run` does, of a number of steps that calls choose, as one node.

    Raises:
        ExportError: the layer is none that `npu.recurrence` computes.
    """
    act = layer.whole_activation()
    if act is None or extra is not None:
        raise ExportError(
            f"{layer.kind} over a number of steps that calls choose takes the activations of its "
            "definition, and neither clip, peepholes, input_forget nor sequence_lens; a GRU has "
            "linear_before_reset.",
            hint="Give that dimension a fixed size (shapes=).",
        )
    (r, rb), (h, c) = weights, states
    cell, gates = _CELLS[layer.kind]
    attrs: dict[str, Attr] = {"cell": cell, "gates": gates, "act": act, "reverse": reverse}
    y, *cells = sums.graph.add(RECURRENCE, (sums, r, rb, h, c), attrs)
    last = y.op("select.int", 0, 0 if reverse else y.shape[0] - 1)
    return y, last, cells[0] if cells else None


def _activations(call: Call, kind: str, way: int) -> list[tuple[str, Activation]]:
    """Returns the functions of one direction's activations, with their names."""
    default = _DEFAULTS[kind]
    given = call.attrs.get("activations")
    names = [n.decode() if isinstance(n, bytes) else n for n in given] if given else default * 2
    alphas, betas = (
        list(call.attrs.get("activation_alpha", ())),
        list(call.attrs.get("activation_beta", ())),
    )
    made = []
    takes = {"affine": 2, "hardsigmoid": 2, "scaledtanh": 2, "leakyrelu": 1, "elu": 1}
    for name in names:
        count = takes.get(name.lower(), 1 if name.lower() == "thresholdedrelu" else 0)
        alpha = float(alphas.pop(0)) if count and alphas else None
        beta = float(betas.pop(0)) if count > 1 and betas else None
        made.append((name, _activation(name, alpha, beta)))
    return made[way * len(default) :]


def _run(
    layer: _Layer,
    x: Tensor,
    weights: list[Tensor | None],
    states: list[Tensor | None],
    lengths: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the outputs of all steps, [steps, batch, hidden], and the last states."""
    graph = x.graph
    w, r, b, peepholes = weights
    assert w is not None and r is not None
    steps, batch = x.shape[:2]
    size, wide = r.shape[-1], _GATES[layer.kind] * r.shape[-1]
    wb, rb = (None, None) if b is None else (b.slice(0, 0, wide), b.slice(0, wide, 2 * wide))
    h, c = states
    h = graph.full((batch, size), 0.0, x.dtype) if h is None else h
    if layer.kind == "LSTM" and c is None:
        c = graph.full((batch, size), 0.0, x.dtype)
    gates = layer.operand(x).op("linear.default", w, wb)
    if is_symbolic(steps):
        return _whole(layer, gates, (r, rb), (h, c), lengths or peepholes, reverse)
    count = None if lengths is None else lengths.to("int64", TensorProto.INT64).view((batch, 1))
    outputs: dict[int, Tensor] = {}
    for step in reversed(range(steps)) if reverse else range(steps):
        new_h, new_c = layer.step(gates.op("select.int", 0, step), h, c, r, rb, peepholes)
        out = new_h
        if count is not None:
            active = count > step
            out = graph.op("where.ScalarOther", active, new_h, 0.0)
            new_h = graph.op("where.self", active, new_h, h)
            if new_c is not None and c is not None:
                new_c = graph.op("where.self", active, new_c, c)
        h, c, outputs[step] = new_h, new_c, out
    return graph.op("stack.default", [outputs[s] for s in range(steps)], 0), h, c

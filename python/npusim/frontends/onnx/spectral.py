"""Fourier transforms, as products with their matrices, and windows."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.kinds import Array, numpy_dtype
from npusim.frontends.onnx.registry import Call, translation


def _transform(count: int, inverse: bool) -> Array:
    """Returns the matrix of a discrete Fourier transform, [input, output]."""
    line = np.arange(count)
    angle = (2j if inverse else -2j) * np.pi * np.outer(line, line) / count
    matrix: Array = np.exp(angle) / (count if inverse else 1)
    return matrix


def _times(x: Tensor, matrix: Array) -> Tensor:
    """Returns x times a complex matrix over its axis before the last, which holds 1 or 2 parts."""
    real, imaginary = (x.graph.table(m, x) for m in (matrix.real, matrix.imag))
    parts = [x.op("select.int", -1, i) for i in range(x.shape[-1])]
    first = parts[0].op("matmul.default", real)
    second = parts[0].op("matmul.default", imaginary)
    if len(parts) > 1:
        first = first - parts[1].op("matmul.default", imaginary)
        second = second + parts[1].op("matmul.default", real)
    return x.graph.op("stack.default", [first, second], -1)


@translation("DFT")
def _dft(
    call: Call, x: Tensor, length: Tensor | None = None, where: Tensor | None = None
) -> Tensor:
    axis = where.ints("the axis of DFT")[0] if where is not None else call.int(
        "axis", 1 if call.version < 20 else -2
    )  # fmt: skip
    axis = axis % x.rank
    inverse, half = bool(call.int("inverse")), bool(call.int("onesided"))
    last = x.rank - 2
    order = [d for d in range(x.rank - 1) if d != axis] + [axis, x.rank - 1]
    x = x.permute(order)
    count = length.ints("the length of DFT")[0] if length is not None else x.shape[last]
    if inverse and half:
        count = length.ints("the length of DFT")[0] if length is not None else 2 * (count - 1)
        return _inverse_of_half(x, count).permute([order.index(d) for d in range(x.rank)])
    have = min(count, x.shape[last])
    x = x.slice(last, 0, have)
    matrix = _transform(count, inverse)[:have]
    y = _times(x, matrix[:, : count // 2 + 1] if half else matrix)
    return y.permute([order.index(d) for d in range(x.rank)])


def _inverse_of_half(x: Tensor, count: int) -> Tensor:
    """A real signal from one half of its transform; the other half is the first, conjugated."""
    last, half = x.rank - 2, count // 2 + 1
    have = min(half, x.shape[last])
    matrix = _transform(count, True)[:have]
    twice = np.full(have, 2.0)
    twice[0] = 1.0
    if count % 2 == 0 and have == half:
        twice[-1] = 1.0
    return _times(x.slice(last, 0, have), matrix * twice[:, None]).slice(x.rank - 1, 0, 1)


@translation("STFT")
def _stft(
    call: Call,
    signal: Tensor,
    step: Tensor,
    window: Tensor | None = None,
    length: Tensor | None = None,
) -> Tensor:
    hop = step.ints("the step of STFT")[0]
    if length is not None:
        count = length.ints("the frame length of STFT")[0]
    else:
        count = signal.shape[1] if window is None else window.shape[0]
    frames = signal if signal.rank == 3 else signal.view((*signal.shape, 1))
    frames = frames.op("unfold.default", 1, count, hop).permute((0, 1, 3, 2))
    if window is not None:
        frames = frames * window.view((count, 1))
    matrix = _transform(count, False)
    return _times(frames, matrix[:, : count // 2 + 1] if call.int("onesided", 1) else matrix)


@translation("HannWindow", "HammingWindow", "BlackmanWindow")
def _window(call: Call, size: Tensor) -> Tensor:
    count = size.ints(f"the size of {call.op}")[0]
    span = count if call.int("periodic", 1) else max(count - 1, 1)
    angle = 2 * np.pi * np.arange(count) / span
    terms = {
        "HannWindow": (0.5, 0.5, 0.0),
        "HammingWindow": (25 / 46, 1 - 25 / 46, 0.0),
        "BlackmanWindow": (0.42, 0.5, 0.08),
    }[call.op]
    data = terms[0] - terms[1] * np.cos(angle) + terms[2] * np.cos(2 * angle)
    kind = call.int("output_datatype", TensorProto.FLOAT)
    return call.graph.known(data.astype(numpy_dtype(kind)))

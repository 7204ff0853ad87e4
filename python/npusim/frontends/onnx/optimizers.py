"""Steps of optimizers (ai.onnx.preview.training): arithmetic on tensors like any other.

Each takes a learning rate, a count of steps so far, and lists of tensors one after another:
what is optimized, gradients, and what the optimizer carries along.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.registry import Call, translation

DOMAIN = "ai.onnx.preview.training"


def _lists(tensors: Sequence[Tensor], count: int) -> Iterator[tuple[Tensor, ...]]:
    """Yields, for each tensor that is optimized, what the `count` lists hold of it."""
    each = len(tensors) // count
    for i in range(each):
        yield tuple(tensors[i + each * part] for part in range(count))


def _gradient(call: Call, x: Tensor, gradient: Tensor) -> Tensor:
    """Returns the gradient of the loss with a penalty on squares."""
    return gradient + x * call.float("norm_coefficient")


def _first_or(call: Call, step: Tensor, first: Tensor | float, later: Tensor | float) -> Tensor:
    """Returns one value at step 0, and another from then on."""
    parts = [v if isinstance(v, Tensor) else call.graph.table(v, "float32") for v in (first, later)]
    return call.graph.op("where.self", step.op("eq.Scalar", 0), *parts)


@translation("Adagrad", domain=DOMAIN)
def _adagrad(call: Call, rate: Tensor, step: Tensor, *tensors: Tensor) -> list[Tensor | None]:
    moved, sums = [], []
    slower = step.to("float32") * call.float("decay_factor") + 1.0
    for x, g, h in _lists(tensors, 3):
        g = _gradient(call, x, g)
        total = h + g * g
        sums.append(total)
        scale = total.op("sqrt.default") + call.float("epsilon")
        moved.append(x - g * (rate / slower) / scale)
    return [*moved, *sums]


@translation("Adam", domain=DOMAIN)
def _adam(call: Call, rate: Tensor, step: Tensor, *tensors: Tensor) -> list[Tensor | None]:
    alpha, beta = call.float("alpha", 0.9), call.float("beta", 0.999)
    count = step.to("float32")
    decays = [call.graph.op("pow.Scalar", base, count).op("rsub.Scalar", 1.0)
              for base in (alpha, beta)]  # fmt: skip
    corrected = rate * decays[1].op("sqrt.default") / decays[0]
    rate = _first_or(call, step, rate, corrected)
    moved, means, squares = [], [], []
    for x, g, v, h in _lists(tensors, 4):
        g = _gradient(call, x, g)
        mean, square = v * alpha + g * (1 - alpha), h * beta + g * g * (1 - beta)
        scale = square.op("sqrt.default") + call.float("epsilon")
        moved.append((x - mean * rate / scale) * (1 - call.float("norm_coefficient_post")))
        means.append(mean)
        squares.append(square)
    return [*moved, *means, *squares]


@translation("Momentum", domain=DOMAIN)
def _momentum(call: Call, rate: Tensor, step: Tensor, *tensors: Tensor) -> list[Tensor | None]:
    alpha = call.float("alpha")
    share = _first_or(call, step, 1.0, call.float("beta"))
    moved, speeds = [], []
    for x, g, v in _lists(tensors, 3):
        g = _gradient(call, x, g)
        speed = v * alpha + g * share
        ahead = call.str("mode") == "nesterov"
        moved.append(x - (g + speed * alpha if ahead else speed) * rate)
        speeds.append(speed)
    return [*moved, *speeds]

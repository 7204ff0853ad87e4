"""Random programs on tinygrad's tensors, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from tinygrad import Tensor

Step = Callable[[Tensor, random.Random], Tensor]
MOST_ELEMENTS = 2000


def _axis(x: Tensor, choose: random.Random) -> int:
    return choose.randrange(x.ndim)


def _along(x: Tensor, axis: int, what: tuple[int, int]) -> tuple[tuple[int, int] | None, ...]:
    return tuple(what if d == axis else None for d in range(x.ndim))


def _unary(x: Tensor, choose: random.Random) -> Tensor:
    names = (
        *("relu", "tanh", "sigmoid", "silu", "gelu", "abs", "neg", "exp", "cos", "sin", "square"),
        *("sign", "softplus", "erf", "floor", "ceil", "round", "trunc", "hardswish", "elu", "mish"),
    )
    return getattr(x, choose.choice(names))()


def _binary(x: Tensor, choose: random.Random) -> Tensor:
    return choose.choice(
        (
            lambda: x + 1.5, lambda: x * x.sum(), lambda: x.minimum(0.5),
            lambda: x.maximum(x * 0.5), lambda: x.clip(-1, 1), lambda: x / (x.abs() + 1),
            lambda: 1 / (x.abs() + 0.5), lambda: x.square().mean(),
            lambda: (x > 0.1).where(x, x * 2), lambda: (x < 0.3).where(-1e9, x), lambda: 2 - x,
            lambda: x.abs().add(0.1).rsqrt(), lambda: x.abs().add(0.1).log(),
        )
    )()  # fmt: skip


def _reduced(x: Tensor, choose: random.Random) -> Tensor:
    axis, keep = _axis(x, choose), choose.random() < 0.5
    return getattr(x, choose.choice(("sum", "max", "mean")))(axis, keepdim=keep)


def _normalised(x: Tensor, choose: random.Random) -> Tensor:
    axis = _axis(x, choose)
    return choose.choice(
        (lambda: x.softmax(axis), lambda: x.log_softmax(axis), lambda: x.layernorm(axis=axis))
    )()


def _moved(x: Tensor, choose: random.Random) -> Tensor:
    axis = _axis(x, choose)
    return choose.choice(
        (
            lambda: x.permute(choose.sample(range(x.ndim), x.ndim)), lambda: x.flip(axis),
            lambda: x.shrink(_along(x, axis, (x.shape[axis] // 3, x.shape[axis]))),
            lambda: x.pad(_along(x, axis, (1, 2)), value=choose.choice((0.0, 1.5))),
            lambda: x.reshape(-1), lambda: x[..., ::2], lambda: x.repeat_interleave(2, axis),
        )
    )()  # fmt: skip


def _joined(x: Tensor, choose: random.Random) -> Tensor:
    axis = _axis(x, choose)
    return choose.choice(
        (lambda: x.cat(x * 2, x + 1, dim=axis), lambda: Tensor.stack(x, x + 1, dim=axis))
    )()


def _product(x: Tensor, choose: random.Random) -> Tensor:
    return x @ x.transpose(-1, -2)


def _windows(x: Tensor, choose: random.Random) -> Tensor:
    stride, padding = choose.randint(1, 2), choose.randint(0, 1)
    if choose.random() < 0.5:
        pool = choose.choice((x.max_pool2d, x.avg_pool2d))
        return pool(kernel_size=2, stride=stride, padding=padding)
    count = 2 * x.shape[1] * 4
    weight = (Tensor.arange(count) * 0.1).reshape(2, x.shape[1], 2, 2)
    return x.conv2d(weight, stride=stride, padding=padding, dilation=choose.choice((1, 1, 2)))


# A step, how many dimensions it needs at least, and how often it is taken.
STEPS: tuple[tuple[Step, int, int], ...] = (
    (_unary, 0, 3), (_binary, 0, 3), (_reduced, 1, 3), (_normalised, 1, 1), (_moved, 1, 4),
    (_joined, 1, 2), (_product, 2, 2), (_windows, 4, 4),
)  # fmt: skip


def program(seed: int) -> Callable[[Tensor], Tensor]:
    """Returns a function of x[2, 3, 4, 4]."""

    def run(x: Tensor) -> Tensor:
        choose = random.Random(seed)
        values = [x]
        for _ in range(choose.randint(3, 7)):
            value = choose.choice(values[-2:])
            steps = [s for s, least, often in STEPS if value.ndim >= least for _ in range(often)]
            step = choose.choice(steps)
            if step is _windows and (value.ndim != 4 or min(value.shape[2:]) < 3):
                step = _unary
            result = step(value, choose)
            if 0 < result.numel() <= MOST_ELEMENTS:
                values.append(result)
        return values[-1]

    return run

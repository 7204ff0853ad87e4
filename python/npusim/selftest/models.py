"""Small seeded models end to end: extracted, compiled for a device, run, held to PyTorch.

Each stands for a kind of network: what passes fuse, which layouts they choose and which sizes calls
choose shows in whole models only. The CPU backend runs the same model beside the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from npusim.compile import compile
from npusim.frontends.torch_export import extract_ir
from npusim.runtime.device import Device
from npusim.runtime.session import load
from npusim.targets import TargetConfig

# How far results may be from PyTorch's in float32, relative to the largest: sums of some hundred
# products in another order, rounded to the dtype after every layer.
BOUNDS = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class Residual(nn.Module):
    """A residual network of two stages, as ResNet's basic blocks are."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.down = nn.Sequential(nn.Conv2d(16, 32, 1, 2, bias=False), nn.BatchNorm2d(32))
        self.block = nn.Sequential(
            *(nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32)),
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [n, 3, h, w] to [n, 10]."""
        x = self.stem(x)
        x = torch.relu(self.down(x) + self.block(x))
        return self.head(x.mean((2, 3)))


class Separable(nn.Module):
    """Depthwise convolutions, squeeze and excitation, hardswish, as in MobileNetV3."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(
            nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24), nn.Hardswish()
        )
        self.depth = nn.Sequential(
            nn.Conv2d(24, 24, 5, 2, 2, groups=24, bias=False), nn.BatchNorm2d(24), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(24, 8, 1),
            nn.ReLU(),
            nn.Conv2d(8, 24, 1),
            nn.Hardsigmoid(),
        )
        self.project = nn.Conv2d(24, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [n, 8, h, w] to [n, 8, h / 2, w / 2]."""
        x = self.depth(self.expand(x))
        return self.project(x * self.squeeze(x))


class Encoder(nn.Module):
    """An embedding and a layer of a transformer with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.norm = nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Maps tokens [n, t] and a mask of the same shape to [n, t, 32]."""
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        bias = (mask == 0)[:, None, None] * torch.finfo(x.dtype).min
        y = nn.functional.scaled_dot_product_attention(q, k, v, bias.to(x.dtype))
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Perceptron(nn.Module):
    """Linears wide enough for quantized weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 64))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [n, 64] to [n, 64]."""
        return self.layers(x)


@dataclass(frozen=True)
class Example:
    """A model, what it is given, and how it is compiled.

    Attributes:
        inputs: several lots where calls choose sizes.
        dynamic: as `extract_ir` takes `dynamic_shapes`.
        bound: of the error, relative to the largest result; 0: that of the dtype.
    """

    model: Callable[[], nn.Module]
    inputs: Callable[[], list[tuple[Tensor, ...]]]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16)
    dynamic: Any = None
    quantize: str | None = None
    bound: float = 0.0


def _tokens() -> list[tuple[Tensor, ...]]:
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    return [(torch.randint(0, 50, (2, 9)), mask)]


def _batches() -> list[tuple[Tensor, ...]]:
    return [(torch.randn(n, 64),) for n in (3, 1, 8)]


EXAMPLES: Mapping[str, Example] = {
    "residual": Example(Residual, lambda: [(torch.randn(2, 3, 32, 32),)]),
    "separable": Example(Separable, lambda: [(torch.randn(1, 8, 14, 14),)]),
    "encoder": Example(Encoder, _tokens, (torch.float32, torch.bfloat16)),
    "perceptron of any batch": Example(
        Perceptron, _batches, dynamic=({0: torch.export.Dim("batch", max=8)},)
    ),
    "perceptron in int8": Example(
        Perceptron, lambda: [(torch.randn(3, 64),)], quantize="int8", bound=5e-2
    ),
    "perceptron in int4": Example(
        Perceptron, lambda: [(torch.randn(3, 64),)], quantize="int4-g32", bound=2e-1
    ),
}


def run_model(
    example: Example, dtype: torch.dtype, target: TargetConfig, device: Device
) -> dict[str, object]:
    """Runs one example in a dtype on the device and on the CPU.

    Returns:
        The largest error relative to the largest result, of the device and of the CPU, and the
        bound; what went wrong, as a sentence, under "failure".
    """
    torch.manual_seed(0)
    exact = example.model().eval()
    model = example.model().eval()
    model.load_state_dict(exact.state_dict())
    model.to(dtype)
    lots = example.inputs()
    given = [tuple(t.to(dtype) if t.is_floating_point() else t for t in lot) for lot in lots]
    ir = extract_ir(model, given[0], dynamic_shapes=example.dynamic)
    bound = example.bound or BOUNDS[dtype]
    errors: dict[str, object] = {"bound": bound}
    for name, on, where in (("error", target, device), ("cpu_error", None, Device("cpu"))):
        program = compile(ir, on or "cpu", quantize=example.quantize)
        session = load(program, model.state_dict(), where)
        worst = 0.0
        for lot, cast in zip(lots, given, strict=True):
            with torch.no_grad():
                want = exact(*lot)
            (result,) = session(*cast)
            got = torch.as_tensor(result).float()
            # A NaN anywhere is an error, which `max` would pass over.
            error = ((got - want).abs().max() / want.abs().max()).nan_to_num(nan=float("inf"))
            worst = max(worst, float(error))
        errors[name] = worst
    if errors["error"] > bound:  # type: ignore[operator]
        errors["failure"] = f"the results are {errors['error']:.2g} from PyTorch's"
    return errors

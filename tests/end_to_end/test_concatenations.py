"""Parts of a concatenation are computed where it has them, and results are PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import npusim
from npusim.lowering.assemble import assemble
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig


class Dense(nn.Module):
    """Each convolution reads all that were before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(16 + 8 * i, 8, 3, padding=1) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 16, H, W] to [N, 40, H, W]."""
        found = [torch.relu(x)]
        for layer in self.layers:
            found.append(torch.relu(layer(torch.cat(found, 1))))
        return torch.cat(found, 1) * 2


class Nested(nn.Module):
    """A concatenation is a part of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(16, 16, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 16, H, W] to [N, 48, H, W]."""
        inner = torch.cat([self.a(x), self.b(x)], 1)
        return torch.relu(torch.cat([torch.relu(inner), self.c(x)], 1)) + torch.cat(
            [inner, self.c(x)], 1
        )


class Split(nn.Module):
    """Both halves of a split go on beside what follows from one of them, added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.body = nn.Conv2d(16, 32, 1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 16, H, W] to [N, 48, H, W]."""
        first, second = self.enter(x).chunk(2, 1)
        return functional.max_pool2d(torch.cat([first, second, second + self.body(second)], 1), 2)


class Scales(nn.Module):
    """What was pooled and resized, along each dimension."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.layer = dim, nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 16, H, W] to twice as many along a dimension, of half the height and width."""
        y = functional.max_pool2d(self.layer(x), 2)
        z = functional.interpolate(functional.avg_pool2d(y, 2), scale_factor=2.0)
        return torch.cat([y, z], self.dim).abs()


class Twice(nn.Module):
    """A value stands twice in one, and leaves the model as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Maps [N, 16, H, W] to itself and [N, 48, H, W]."""
        y, z = self.layer(x), self.layer(x + 1)
        return y, torch.cat([y, z, z], 1) + 1


class Odd(nn.Module):
    """Parts that do not lie on whole chunks of 16 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(16, 5, 1), nn.Conv2d(16, 19, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 16, H, W] to [N, 24, H, W]."""
        return torch.cat([self.a(x), self.b(x)], 1).abs()


class Rows(nn.Module):
    """Values that others want dense, of another dtype, and of a model's input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 16, H, W] to [N, 64, H, W]."""
        y = self.layer(x)
        sums = torch.cumsum(y, 1)
        return torch.cat([x, y, sums, (y > 0).to(y.dtype)], 1).abs()


class Around(nn.Module):
    """A model between convolutions, which have channels last."""

    def __init__(self, model: nn.Module, channels: int) -> None:
        super().__init__()
        self.stem, self.model = nn.Conv2d(16, 16, 1), model
        self.head = nn.Conv2d(channels, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Maps [N, 16, H, W] to [N, 4, H', W'], and what else the model gives."""
        *others, y = results(self.model(self.stem(x)))
        return *others, self.head(y)


def results(y: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return y if isinstance(y, tuple) else (y,)


# What is concatenated, its channels, and how many copies it takes.
MODELS: dict[str, tuple[nn.Module, int, int]] = {
    "dense": (Dense(), 40, 0),
    "nested": (Nested(), 48, 1),
    "split": (Split(), 48, 0),
    "along channels": (Scales(1), 32, 0),
    "along the batch": (Scales(0), 16, 0),
    "along rows": (Scales(2), 16, 0),
    "along columns": (Scales(3), 16, 0),
    "twice": (Twice(), 48, 3),
    "odd": (Odd(), 24, 1),
    "rows": (Rows(), 64, 2),
}
TARGET = TargetConfig.named("cuda:sm_90a")


def _integers(name: str) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    model, channels, _ = MODELS[name]
    model = Around(model, channels).eval()
    for parameter in model.parameters():
        parameter.data = torch.randint(-1, 2, parameter.shape, generator=generator).float()
    return model


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_same_bits(name: str, batch: int) -> None:
    """Of small integers, whose sums are exact in any order."""
    model = _integers(name)
    x = torch.randint(-1, 2, (batch, 16, 8, 12)).float()
    with torch.no_grad():
        want = model(x)
    program = npusim.compile(npusim.extract_ir(model, (x,)))
    got = npusim.load(program, weights=dict(model.state_dict()))(x)
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(torch.as_tensor(mine), theirs)


def _copies(model: nn.Module) -> int:
    graph = npusim.extract_ir(model.half(), (torch.zeros(2, 16, 8, 12).half(),))
    program = assemble(run_passes(graph, TARGET), TARGET)
    return [program.kernels[c.kernel].name for c in program.methods[0].commands].count("copy")


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_copied_that_can_be_computed_there(name: str) -> None:
    model = _integers(name)
    outputs = len(results(model(torch.zeros(2, 16, 8, 12))))
    call = _copies(Around(nn.Identity(), 16).eval()) + outputs - 1  # of the input, and of results
    assert _copies(model) - call == MODELS[name][2]

"""Programs decomposed one distinct call at a time are those that PyTorch decomposes as a whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn import functional as F

import npusim
from npusim.frontends import torch_export
from npusim.frontends.distinct_calls import decomposed
from npusim.ir.graph import Graph


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding="same")
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
            for _ in range(6)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return x


class Parts(nn.Module):
    """Several results of a call, and lists of operands."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(6):
            a, b, c = torch.chunk(x, 3, dim=-1)
            values, places = torch.max(c, dim=-1, keepdim=True)
            x = torch.cat((b, a * values, c + places), dim=-1)
        return x


class Numbers(nn.Module):
    """Arguments that are equal and mean different things."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = []
        for _ in range(8):
            found += [x * 0.0, x * -0.0, x + 1, x + 1.0]
        return tuple(found)


class Counting(nn.Module):
    """A buffer that every layer changes, and reads as it is then."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            x = x * self.count
            self.count.add_(1.5)
            x = x + self.count
        return x


class InPlace(nn.Module):
    """What is changed in place has been computed, and is read by its only name."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            y = x * 2
            y.add_(x)
            y.clamp_(min=-3.0)
            x = y.mul_(0.5)
        return x


class OtherNames(nn.Module):
    """What is changed in place is read by another name."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            y = x * 2
            row = y[0]
            y.add_(1)
            x = y + row
        return x


class ResultsInPlace(nn.Module):
    """What a call in place gave is read after a view of it was changed."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            y = x * 2
            flat = y.view(-1)
            result = y.add_(1)
            flat.mul_(0.5)
            x = result + 1
        return x


class PartOfBuffer(nn.Module):
    """A view of a buffer is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(8):
            self.kept[i].mul_(0.5)
            self.kept[i].add_(x[0])
        return self.kept * 1


class Narrowing(nn.Module):
    """In-place calls compute in a wider type than that of what they change."""

    def forward(self, x: Tensor, wide: Tensor) -> Tensor:
        total = x * 1
        for _ in range(8):
            total = total + 1
            total.mul_(wide)
        return total


class NarrowingAgain(nn.Module):
    """The same after a call that gives the wider type."""

    def forward(self, x: Tensor, wide: Tensor) -> tuple[Tensor, Tensor]:
        total, other = x * 1, x * 1
        for _ in range(8):
            other = (total + 1) * wide
            total = total + 1
            total.mul_(wide)
        return total, other


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation=F.gelu)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _image() -> Tensor:
    return torch.randn(1, 3, 9, 9)


def _rows() -> Tensor:
    return torch.randn(2, 3)


MODELS: dict[str, tuple[type[nn.Module], tuple[Tensor, ...]]] = {
    "convolutions": (Convolutions, (_image(),)),
    "parts": (Parts, (torch.randn(2, 9),)),
    "numbers": (Numbers, (_rows(),)),
    "counting": (Counting, (torch.randn(2),)),
    "in place": (InPlace, (_rows(),)),
    "attention": (Attention, (torch.randn(1, 5, 16),)),
}
WHOLE: dict[str, tuple[type[nn.Module], tuple[Tensor, ...]]] = {
    "other names": (OtherNames, (_rows(),)),
    "results in place": (ResultsInPlace, (_rows(),)),
    "part of a buffer": (PartOfBuffer, (_rows(),)),
    "narrowing again": (
        NarrowingAgain,
        (torch.ones(3, dtype=torch.int8), torch.full((3,), 3, dtype=torch.int64)),
    ),
    "narrowing": (
        Narrowing,
        (torch.ones(3, dtype=torch.int8), torch.full((3,), 3, dtype=torch.int64)),
    ),
}


class _Ways:
    """Replaces `decomposed`, and notes whether calls were decomposed one by one."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.one_by_one: list[bool] = []

    def __call__(self, program: ExportedProgram, table: Any) -> ExportedProgram:
        if self.whole:
            return program.run_decompositions(table)
        found = decomposed(program, table)
        self.one_by_one.append(found is program)
        return found


def _extracted(model: nn.Module, args: tuple[Tensor, ...], way: _Ways) -> Graph:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_export, "decomposed", way)
        return npusim.extract_ir(model, args)


def _shown(graph: Graph) -> Any:
    """Returns a graph with numbers for names."""
    number: dict[str | None, int] = {None: -1}

    def of(name: str | None) -> int:
        return number.setdefault(name, len(number))

    values = (*graph.inputs, *graph.weights, *graph.constants, *graph.states)
    given = [(of(value.name), value.type) for value in values]
    for node in graph.nodes:
        for value in node.outputs:
            of(value.name)
    nodes = [
        (n.op, repr(n.attrs), [of(x) for x in n.inputs], [v.type for v in n.outputs], n.source)
        for n in graph.nodes
    ]
    ends = [(o.name, of(o.value)) for o in (*graph.outputs, *graph.updates)]
    return given, nodes, ends


def _check(kind: type[nn.Module], args: tuple[Tensor, ...], one_by_one: bool) -> None:
    """Holds a model's graph to that of decomposing it as a whole, by the way that was expected."""
    model = kind().eval()
    way = _Ways(whole=False)
    found = _extracted(model, args, way)
    assert way.one_by_one == [one_by_one]
    assert _shown(found) == _shown(_extracted(model, args, _Ways(whole=True)))


@pytest.mark.parametrize("name", MODELS)
def test_the_same_graph(name: str) -> None:
    """Distinct calls are decomposed once, and the graph is that of decomposing them all."""
    _check(*MODELS[name], one_by_one=True)


@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_where_names_matter(name: str) -> None:
    """What in-place calls do to other names is PyTorch's to say, and values are its values."""
    _check(*WHOLE[name], one_by_one=False)


def test_sizes_that_calls_choose() -> None:
    """A program with open sizes is decomposed as a whole."""
    way = _Ways(whole=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_export, "decomposed", way)
        shapes = ({0: torch.export.Dim("batch", max=8)},)
        npusim.extract_ir(InPlace().eval(), (_rows(),), dynamic_shapes=shapes)
    assert way.one_by_one == [False]


def test_few_repetitions() -> None:
    """Where most calls differ, nothing is gained."""
    way = _Ways(whole=False)
    _extracted(nn.Linear(3, 3).eval(), (_rows(),), way)
    assert way.one_by_one == [False]


def test_values_of_layers() -> None:
    """A deep model computes what PyTorch does, with the buffer it leaves behind."""
    model = Counting().eval()
    x = torch.tensor([1.0, -2.0])
    graph = npusim.extract_ir(model, (x,))
    session = npusim.load(npusim.compile(graph), {}, "cpu")
    for _ in range(2):
        (found,) = session(x.numpy())
        torch.testing.assert_close(torch.from_numpy(found), model(x), rtol=0, atol=0)

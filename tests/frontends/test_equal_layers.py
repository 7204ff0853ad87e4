"""Layers that are equal are traced once, and the graph is that of tracing each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import npusim
from npusim.frontends import equal_layers, torch_export
from npusim.frontends.language_model import extract_llm
from npusim.ir.graph import Graph
from tests.end_to_end.architectures import CONFIGURATIONS
from tests.frontends.test_distinct_calls import _shown

LAYERS = 8
DECODERS = ("qwen2-tied", "qwen2-sliding", "gemma2", "llama3")


class Counted:
    """Counts what is traced, and what is put in again."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.traced = self.again = 0
        run, again = equal_layers._Trace.run, equal_layers._Trace.again

        def counted_run(trace: Any, *args: Any) -> Any:
            self.traced += 1
            return run(trace, *args)

        def counted_again(trace: Any, *args: Any) -> Any:
            result = again(trace, *args)
            self.again += 1
            return result

        patch.setattr(equal_layers._Trace, "run", counted_run)
        patch.setattr(equal_layers._Trace, "again", counted_again)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def _each(extract: Callable[[], Any]) -> Any:
    """Returns what is extracted where every layer is traced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_export, "traced_once", lambda _: contextlib.nullcontext())
        return extract()


@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name: str, counted: Counted) -> None:
    """Of two kinds of layers in turns, and of a window from some layer on, too."""
    torch.manual_seed(0)
    config = CONFIGURATIONS[name]()
    given = {k: v for k, v in config.to_dict().items() if k != "layer_types"}
    given |= {"num_hidden_layers": LAYERS, "max_window_layers": LAYERS // 2}
    config = type(config)(**given)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()

    def extract() -> Any:
        return extract_llm(model, max_context=64, prefill_chunk=8)

    module = extract()
    kinds = 1 if name in ("qwen2-tied", "llama3") else 2
    assert counted.traced == 2 * kinds and counted.again == 2 * (LAYERS - 3 * kinds)
    for method, graph in _each(extract).methods.items():
        assert _shown(module.methods[method]) == _shown(graph)


CALLED: list[int] = []  # by the layers that change what is no attribute of theirs


class Shared:
    """An object that layers have together."""

    def __init__(self) -> None:
        self.calls = 0
        self.inner = SimpleNamespace(calls=0)


class Block(nn.Module):
    """A layer that may do what is not seen from its attributes."""

    calls_of_all = 0

    def __init__(self, number: int, kind: str, shared: Shared) -> None:
        super().__init__()
        self.shared = shared
        self.number, self.kind = number, kind
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(4))
        self.scale = 2.0 if kind != "attribute" else float(number)
        self.calls = 0

    def forward(self, x: Tensor, kept: list[Tensor], skip: Tensor | None = None) -> Any:
        if self.kind == "number" and self.number % 2:
            return x + self.linear(x)
        if self.kind == "comparison" and self.number == 3:
            return x
        if self.kind == "index":
            return x + kept[self.number] * self.linear(x)
        if self.kind == "sum":
            return x + (self.number + 1) * self.linear(x)
        if self.kind == "operand":
            return x + self.linear(x) * self.number
        if self.kind == "text":
            return x + len(f"{self.number:>{self.number + 1}}") * x
        if self.kind == "left behind":
            self.calls += 1
        if self.kind == "object":
            self.shared.calls += 1
            return self.linear(x) * (2.0 if self.shared.calls < 4 else 3.0)
        if self.kind == "object of an object":
            self.shared.inner.calls += 1
            return self.linear(x) * (2.0 if self.shared.inner.calls < 3 else 3.0)
        if self.kind == "class":
            Block.calls_of_all += 1
            return self.linear(x) * (2.0 if Block.calls_of_all < 4 else 3.0)
        if self.kind == "collected":
            kept.append(x)
        if self.kind == "replaced":
            x, kept[0] = kept[0], x
        if self.kind == "alias":
            return x.view(1, 2, 4)[0]
        if self.kind == "type of number" and type(self.number) is int:
            return x + self.linear(x)
        if self.kind == "constant by type":
            return x * (3.0 if type(self.number) is int else 2.0)
        if self.kind == "written by type" and type(self.number) is int:
            self.count.add_(x[0])
        if self.kind == "returned by type":
            y = self.linear(x)
            return (y, None) if type(self.number) is int else (None, y)
        if self.kind == "global":
            CALLED.append(self.number)
            return x + self.linear(x) if len(CALLED) < 4 else self.linear(x)
        if self.kind == "buffer":
            self.count.add_(x[0])
            return x * self.count
        if self.kind == "pair":
            return self.linear(x), None
        y = self.linear(x) * self.scale
        return y if skip is None else y + skip


class Layers(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.shared = Shared()
        self.layers = nn.ModuleList(Block(i, kind, self.shared) for i in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        kept = [x * i for i in range(LAYERS)] if self.kind in ("index", "replaced") else []
        first = x
        self.shared.calls = self.shared.inner.calls = Block.calls_of_all = 0
        for i, layer in enumerate(self.layers):
            skip = first if self.kind == "argument" and i > 2 else None
            x = layer(x, kept, skip)
            if isinstance(x, tuple):
                x = x[0] if x[1] is None else x[1]
        return x + sum(kept[:2]) if self.kind == "collected" else x


def _checked(kind: str) -> Graph:
    torch.manual_seed(0)
    CALLED.clear()
    model = Layers(kind).eval()
    found = npusim.extract_ir(model, (torch.randn(2, 4),))
    CALLED.clear()
    each = _each(lambda: npusim.extract_ir(Layers(kind).eval(), (torch.randn(2, 4),)))
    assert _shown(found) == _shown(each)
    return found


@pytest.mark.parametrize("kind", ["plain", "buffer", "pair"])
def test_once(kind: str, counted: Counted) -> None:
    _checked(kind)
    assert (counted.traced, counted.again) == (1, LAYERS - 3)


def test_other_arguments_are_another_call(counted: Counted) -> None:
    _checked("argument")
    assert (counted.traced, counted.again) == (2, LAYERS - 5)


UNSEEN = (
    *("number", "comparison", "index", "sum", "operand", "text"),
    *("left behind", "collected", "replaced", "alias", "object", "class", "global"),
)


@pytest.mark.parametrize("kind", UNSEEN)
def test_what_is_not_seen_is_traced_each(kind: str, counted: Counted) -> None:
    _checked(kind)
    assert counted.again == 0


BY_TYPE = ("type of number", "constant by type", "written by type", "returned by type")


@pytest.mark.parametrize("kind", BY_TYPE)
def test_the_second_call_shows_what_stand_ins_do_not(kind: str, counted: Counted) -> None:
    """The model is traced again, each layer, with the numbers themselves."""
    _checked(kind)
    assert (counted.traced, counted.again) == (1, 0)


def test_the_last_layer_shows_what_the_second_does_not(counted: Counted) -> None:
    _checked("object of an object")
    assert counted.traced == 1 and counted.again > 0


def test_layers_of_other_attributes_are_others(counted: Counted) -> None:
    _checked("attribute")
    assert counted.again == counted.traced == 0


def test_hooks_are_run(counted: Counted) -> None:
    model, seen = Layers("plain").eval(), []
    for layer in model.layers:
        layer.linear.register_forward_hook(lambda *_: seen.append(1))
    npusim.extract_ir(model, (torch.randn(2, 4),))
    assert counted.again == 0 and len(seen) == LAYERS


def test_tied_weights_are_read_as_they_are(counted: Counted) -> None:
    """Two layers of one weight beside others."""

    def model() -> nn.Module:
        made = Layers("plain").eval()
        made.layers[3].linear.weight = made.layers[1].linear.weight
        return made

    args = (torch.randn(2, 4),)
    found = npusim.extract_ir(model(), args)
    assert _shown(found) == _shown(_each(lambda: npusim.extract_ir(model(), args)))
    assert counted.again == LAYERS - 3


def test_the_classes_are_left_as_they_were() -> None:
    own = Block.forward
    npusim.extract_ir(Layers("plain").eval(), (torch.randn(2, 4),))
    assert Block.forward is own

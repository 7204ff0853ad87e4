"""Checkpoint: weights under other names, found by every way to run a program, or a hint."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim import _runtime

safetensors = pytest.importorskip("safetensors.torch")


class Wrapped(nn.Module):
    """What people export: their network inside of another module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [n, 4] to [n, 2]."""
        return torch.softmax(self.model(x), -1)


class Solving(Wrapped):
    """Likewise, with an operator that PyTorch runs, and a weight that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.model.register_parameter("matrix", nn.Parameter(torch.eye(4) * 3))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [n, 4] to [n, 2]."""
        return self.model(x) @ torch.linalg.inv(self.model.matrix)[:2, :2]


class Tables(Solving):
    """Likewise, with tables that no state_dict holds, and which are too large to embed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buffer", torch.linspace(-3, 3, 300_000), persistent=False)
        self.attribute = torch.linspace(2, 5, 300_000)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [n, 4] to [n, 2]."""
        tables = (self.buffer * self.attribute).reshape(-1, 2)  # type: ignore[operator]
        return super().forward(x) + tables[7::40_000].sum(0)


X = torch.linspace(-1, 1, 8).reshape(2, 4)
STRIP = {"model.": ""}


def compiled(model: nn.Module) -> npusim.CompiledProgram:
    return npusim.compile(npusim.extract_ir(model.eval(), (X,)))


@pytest.mark.parametrize("form", ["mapping", "safetensors", "pt"])
def test_names_are_exchanged(tmp_path: Path, form: str) -> None:
    model = Wrapped()
    inner = model.model.state_dict()
    source: object = inner
    if form == "safetensors":
        source = tmp_path / "inner.safetensors"
        safetensors.save_file(inner, source)
    elif form == "pt":
        source = tmp_path / "inner.pt"
        torch.save(inner, source)
    program = compiled(model)
    session = npusim.load(program, npusim.Checkpoint(source, STRIP))  # type: ignore[arg-type]
    with torch.inference_mode():
        torch.testing.assert_close(session(X)[0], model(X))
    assert pickle.loads(pickle.dumps(session))(X)[0].equal(session(X)[0])
    weights = npusim.load_weights(
        npusim.Checkpoint({**inner, "other": torch.zeros(1)}, STRIP), program, npusim.Device("cpu")
    )
    assert weights.extra == ["other"], "what is renamed is used"


def test_a_prefix_can_be_added() -> None:
    model = Wrapped()
    around = {f"module.{key}": value for key, value in model.state_dict().items()}
    session = npusim.load(compiled(model), npusim.Checkpoint(around, {"": "module."}))
    with torch.inference_mode():
        torch.testing.assert_close(session(X)[0], model(X))


def test_partitions_find_renamed_weights() -> None:
    model = Solving().eval()
    plan = npusim.partition(npusim.extract_ir(model, (X,)))
    assert plan.fallback_nodes
    inner = npusim.Checkpoint(model.model.state_dict(), STRIP)
    executor = npusim.DAGExecutor(plan, "cpu", summary=False).load_weights(inner)
    with torch.inference_mode():
        torch.testing.assert_close(executor(X)[0], model(X))


@pytest.mark.parametrize("source", [lambda model: model, npusim.Checkpoint])
def test_a_model_gives_what_its_state_dict_leaves_out(source) -> None:  # type: ignore[no-untyped-def]
    model = Tables().eval()
    graph = npusim.extract_ir(model, (X,))
    plan = npusim.partition(graph)
    assert {weight.key for weight in graph.weights} >= {"buffer", "attribute", "model.matrix"}
    executor = npusim.DAGExecutor(plan, "cpu", summary=False).load_weights(source(model))
    with torch.inference_mode():
        torch.testing.assert_close(executor(X)[0], model(X))
    with pytest.raises(npusim.WeightMismatchError, match="the model itself"):
        npusim.DAGExecutor(plan, "cpu", summary=False).load_weights(model.state_dict())


def test_a_model_is_loaded_as_its_tensors_are() -> None:
    model = Wrapped().eval()
    session = npusim.load(compiled(model), model)
    with torch.inference_mode():
        torch.testing.assert_close(session(X)[0], model(X))
    renamed = npusim.load(compiled(model), npusim.Checkpoint(model.model, STRIP))
    assert renamed(X)[0].equal(session(X)[0])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (lambda key: key.removeprefix("model."), ['rename={"model.": ""}']),
        (lambda key: f"module.{key}", ['rename={"": "module."}']),
    ],
)
def test_a_renaming_that_fits_is_named(names, words) -> None:  # type: ignore[no-untyped-def]
    model = Wrapped()
    state = {names(key): value for key, value in model.state_dict().items()}
    with pytest.raises(npusim.WeightMismatchError) as caught:
        npusim.load(compiled(model), state)
    assert all(word in str(caught.value) for word in words), caught.value


def test_no_renaming_is_named_where_none_fits() -> None:
    model = Wrapped()
    state = {k.removeprefix("model."): v for k, v in model.state_dict().items() if "0.b" not in k}
    with pytest.raises(npusim.WeightMismatchError) as caught:
        npusim.load(compiled(model), state)
    assert "rename" not in str(caught.value)


def test_the_longest_beginning_counts() -> None:
    names = [("a.", "x."), ("a.b.", "y."), ("a.b.c", "z"), ("", "w.")]
    keys = ["a.k", "a.b.k", "a.b.c", "b", ""]
    assert [_runtime.renamed(key, names) for key in keys] == ["x.k", "y.k", "z", "w.b", "w."]
    assert _runtime.renamed("a", []) == "a"


@pytest.mark.parametrize("rename", [["model."], {"model.": None}, {1: ""}, "model.="])
def test_what_is_no_renaming_is_refused(rename: object) -> None:
    with pytest.raises(npusim.Error, match="rename"):
        npusim.Checkpoint({}, rename)  # type: ignore[arg-type]


def test_misfits_under_other_names_are_refused() -> None:
    model = Wrapped()
    wrong = {k: np.zeros((1,), np.float32) for k in model.model.state_dict()}
    with pytest.raises(npusim.WeightMismatchError, match="wrong shape"):
        npusim.load(compiled(model), npusim.Checkpoint(wrong, STRIP))

"""Files of the package pytorch-ir load as they are, and programs agree with its own executor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.cli import main
from npusim.errors import Error, GraphError
from tests.models import MODELS, build

torch_ir = pytest.importorskip("torch_ir", reason="the package pytorch-ir is not installed")


class Attention(nn.Module):
    """Masked attention with a residual: chunks (getitem), a buffer, and an infinity in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.register_buffer("past", torch.ones(5, 5).tril().bool())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(1, 2)).masked_fill(~self.past, float("-inf")).softmax(-1)
        return x + self.out(scores @ v), scores


class InPlace(nn.Module):
    """Changes a tensor through views of it, and reads the whole afterwards."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        y[:, 1:].mul_(2)
        y.relu_()
        return y.flip(1), torch.einsum("ij,kj->ik", x, y)


def file_of(make: Callable[[], nn.Module], inputs: tuple[Tensor, ...], path: Path) -> Path:
    """Has the package extract a model without weights, and write its file."""
    with torch.device("meta"):
        model = make().eval()
    torch_ir.extract_ir(model, tuple(t.to("meta") for t in inputs)).save(str(path))
    return path


def assert_agrees(model: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    state = dict(model.state_dict())
    expected = torch_ir.IRExecutor(torch_ir.IR.load(str(path)), state).execute(inputs)
    results = npusim.load(npusim.compile(path), state or None)(*inputs)
    for got, want in zip(results, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "resnet18", "mobilenet_v2", "vit_b_16", "convnext_tiny"])
def test_a_model_agrees_with_the_packages_executor(name: str, tmp_path: Path) -> None:
    model, inputs = build(name, small=True)
    assert_agrees(model, inputs, file_of(MODELS[name].small, inputs, tmp_path / "model.json"))


@pytest.mark.parametrize(("make", "shape"), [(Attention, (2, 5, 8)), (InPlace, (3, 4))])
def test_a_block_agrees_with_the_packages_executor(
    make: Callable[[], nn.Module], shape: tuple[int, ...], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(shape),)
    assert_agrees(make().eval(), inputs, file_of(make, inputs, tmp_path / "model.json"))


def test_names_keys_and_sources_are_those_of_the_file(tmp_path: Path) -> None:
    path = file_of(Attention, (torch.zeros(2, 5, 8),), tmp_path / "model.json")
    graph, tree = npusim.IR.load(path), json.loads(path.read_text())
    assert graph.name == tree["model_name"] == "Attention"
    assert [v.name for v in graph.inputs] == ["x"]
    assert [o.name for o in graph.outputs] == [o["name"] for o in tree["graph_outputs"]]
    assert {w.key for w in graph.weights} == set(Attention().state_dict())
    assert {n.source.module for n in graph.nodes} <= {n["name"] for n in tree["nodes"]}


def test_constants_that_the_file_holds_travel_with_the_graph(tmp_path: Path) -> None:
    path = file_of(Attention, (torch.zeros(2, 5, 8),), tmp_path / "model.json")
    tree = json.loads(path.read_text())
    past = torch.ones(5, 5).tril().bool()
    tree["constants"] = {"past": {"data": past.tolist(), "dtype": "bool"}}
    path.write_text(json.dumps(tree))
    (constant,) = npusim.IR.load(path).constants
    assert constant.data == past.numpy().tobytes()


# ---- broken files ----


@pytest.fixture
def tree(tmp_path: Path) -> dict[str, Any]:
    path = file_of(MODELS["mlp"].small, (torch.zeros(1, 16),), tmp_path / "good.json")
    return json.loads(path.read_text())


def _set(*keys: Any) -> Callable[[Any], None]:
    """Returns an edit: sets the value (last) at a path of keys."""
    *path, last, value = keys

    def edit(tree: Any) -> None:
        for key in path:
            tree = tree[key]
        tree[last] = value

    return edit


EDITS: dict[str, tuple[Callable[[Any], None], str]] = {
    "an operator that opens files": (
        _set("nodes", 0, "op_type", "aten.from_file.default"), "opens a file",
    ),
    "no operator of ATen": (_set("nodes", 1, "op_type", "os.system"), "no operator of ATen"),
    "an unknown operator": (_set("nodes", 1, "op_type", "aten.nonsense.default"), "nonsense"),
    "a shape that is not given": (_set("nodes", 0, "outputs", 0, "shape", [9, 9]), "declares"),
    "a negative size": (_set("weights", 0, "shape", [-1, 4]), "no shape"),
    "an absurd size": (_set("weights", 0, "shape", [2**40, 2**40]), "no shape"),
    "a dtype that is none": (_set("weights", 0, "dtype", "Tensor"), "no dtype"),
    "a weight that is not listed": (
        _set("weight_name_mapping", "p_x", "nobody"), "no weight 'nobody'",
    ),
    "a weight that is a list": (_set("weight_name_mapping", "p_x", []), "no weight"),
    "a weight at no path": (_set("weights", 0, "name", "a..b"), "no path of a tensor"),
    "a value before it is made": (
        _set("nodes", 0, "inputs", 0, "producer_node", "linear_1"), "read before it is made",
    ),
    "a result that does not exist": (
        _set("nodes", 1, "inputs", 0, "producer_output_idx", 7), "does not exist",
    ),
    "an output that nobody makes": (
        _set("graph_outputs", 0, "name", "nobody"), "nothing is named 'nobody'",
    ),
    "two nodes of one name": (_set("nodes", 1, "name", "linear"), "twice"),
    "nodes that are no list": (_set("nodes", {}), "must be a list"),
    "attributes that are no object": (_set("nodes", 0, "attrs", [1]), "must be an object"),
    "arguments that do not fit": (_set("nodes", 1, "inputs", []), "fit together"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_a_broken_file_is_refused(name: str, tree: dict[str, Any], tmp_path: Path) -> None:
    edit, words = EDITS[name]
    edit(tree)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(GraphError, match=words) as caught:
        npusim.IR.load(path)
    assert str(path) in str(caught.value)


def test_a_truncated_file_is_refused(tree: dict[str, Any], tmp_path: Path) -> None:
    text, path = json.dumps(tree), tmp_path / "part.json"
    for end in range(0, len(text), max(len(text) // 20, 1)):
        path.write_text(text[:end])
        with pytest.raises(Error):
            npusim.IR.load(path)


def test_the_command_line_takes_such_files(tmp_path: Path) -> None:
    path = file_of(MODELS["mlp"].small, (torch.zeros(1, 16),), tmp_path / "model.json")
    assert main(["compile", str(path), "-o", str(tmp_path / "model.npubin")]) == 0
    assert main(["info", str(path)]) == 0

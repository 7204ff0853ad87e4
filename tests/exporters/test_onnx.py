"""Exported models: what other tools read agrees with PyTorch, names stay, refusals are complete."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import npusim
from npusim.errors import Error, UnsupportedOpError, WeightMismatchError
from npusim.ir.graph import Graph, Node, Output, Source, Value, Weight
from npusim.ir.module import Module
from npusim.ir.types import TensorType
from tests.end_to_end.dynamic_models import MODELS
from tests.models import build

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from npusim.exporters.onnx.model import to_onnx  # noqa: E402
from npusim.frontends.onnx import from_onnx  # noqa: E402

X = TensorType("float32", (2, 4))


def run(path: Path, *inputs: object) -> list[np.ndarray]:
    """Runs a file with ONNX Runtime; inputs in order."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return session.run(None, dict(zip(names, map(np.asarray, inputs), strict=True)))


def leaves(result: object) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [leaf for part in parts for leaf in leaves(part)]


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("name", ["mlp", "resnet18", "bert_base", "vit_b_16", "efficientnet_b0"])
def test_a_model_agrees_with_onnx_runtime_and_comes_back(
    name: str, opset: int, tmp_path: Path
) -> None:
    model, inputs = build(name, small=True)
    graph = npusim.extract_ir(model, inputs)
    (path,) = npusim.export_onnx(graph, tmp_path / "model.onnx", model.state_dict(), opset=opset)
    onnx.checker.check_model(str(path), full_check=True)
    with torch.no_grad():
        expected = [leaf.numpy() for leaf in leaves(model(*inputs))]
    imported = from_onnx(path)
    again = npusim.load(npusim.compile(imported.graph), imported.weights)
    for results in (run(path, *inputs), again(*(t.numpy() for t in inputs))):
        for got, want in zip(results, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet18", "bert_base", "mobilenet_v3_large"])
def test_a_lowered_graph_is_written_as_what_its_operators_compute(
    name: str, tmp_path: Path
) -> None:
    model, inputs = build(name, small=True)
    lowered = npusim.compile(npusim.extract_ir(model, inputs)).graph
    assert lowered is not None
    assert any(node.op.startswith("npu.") for node in lowered.nodes)
    (path,) = npusim.export_onnx(lowered, tmp_path / "model.onnx", model.state_dict())
    with torch.no_grad():
        expected = [leaf.numpy() for leaf in leaves(model(*inputs))]
    for got, want in zip(run(path, *inputs), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_names_are_those_of_the_model() -> None:
    model, inputs = build("resnet18", small=True)
    exported = to_onnx(npusim.extract_ir(model, inputs))
    nodes = {node.name: node for node in exported.model.graph.node}
    first = nodes["conv1/conv2d"]
    assert list(first.input)[1] == "conv1.weight"
    assert "resnet.py:" in first.doc_string
    assert first.metadata_props[0].value == "aten.conv2d.default"
    assert len(nodes) == len(exported.model.graph.node)
    assert set(exported.weights) <= {i.name for i in exported.model.graph.input}


# ---- weights ----


@pytest.fixture
def linear() -> Graph:
    """Returns x · wᵀ, its weight under a key of its own."""
    node = Node("mm", "aten.linear.default", ("x", "p_w", None), (Value("y", X),), {})
    weight = Weight("p_w", "head.weight", TensorType("float32", (4, 4)))
    return Graph("net", (Value("x", X),), (Output("y", "y"),), (weight,), (), (node,))


W = np.arange(16, dtype=np.float32).reshape(4, 4)


def test_weights_are_needed_or_become_inputs(linear: Graph, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with pytest.raises(WeightMismatchError, match=r"1 weights.*--graph-only"):
        npusim.export_onnx(linear, path)
    with pytest.raises(WeightMismatchError, match=r"head\.weight"):
        npusim.export_onnx(linear, path, {"other": W})
    assert not path.exists()
    npusim.export_onnx(linear, path, graph_only=True)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(run(path, x, W)[0], x @ W.T)


def test_weights_beside_the_model_are_written_once(linear: Graph, tmp_path: Path) -> None:
    checkpoint = tmp_path / "w.safetensors"
    from safetensors.numpy import save_file

    save_file({"head.weight": W}, checkpoint)
    files = npusim.export_onnx(linear, tmp_path / "net.onnx", checkpoint, external=True)
    assert [f.name for f in files] == ["net.onnx", "net.onnx.data"]
    assert files[1].read_bytes() == W.tobytes()
    assert files[0].stat().st_size < 1000
    onnx.checker.check_model(str(files[0]), full_check=True)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(run(files[0], x)[0], x @ W.T)
    assert from_onnx(files[0]).graph.weights[0].key == "head.weight"


def test_each_method_is_a_model_and_states_are_inputs_and_results(tmp_path: Path) -> None:
    add = Node("add", "aten.add.Tensor", ("x", "total"), (Value("sum", X),), {"alpha": 1})
    graph = Graph(
        "net", (Value("x", X),), (Output("y", "sum"),), (), (), (add,),
        (Value("total", X),), (Output("total", "sum"),),
    )  # fmt: skip
    module = Module("net", {"first": graph, "again": graph})
    files = npusim.export_onnx(module, tmp_path / "net.onnx")
    assert [f.name for f in files] == ["net.first.onnx", "net.again.onnx"]
    x = np.ones((2, 4), np.float32)
    y, total = run(files[1], x, 2 * x)
    np.testing.assert_array_equal(y, 3 * x)
    np.testing.assert_array_equal(total, y)


def test_a_decoder_runs_elsewhere_over_its_cache(tmp_path: Path) -> None:
    """Two methods over one data file; what a call leaves in the cache is given to the next."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, **heads, vocab_size=50)
    model = transformers.LlamaForCausalLM(config).eval()
    module = npusim.extract_llm(model, max_context=16, prefill_chunk=8)
    *_, data = npusim.export_onnx(
        module, tmp_path / "model.onnx", model.state_dict(), external=True
    )
    assert data.name == "model.onnx.data"
    tokens = torch.randint(0, 50, (1, 7))
    with torch.no_grad():
        expected = model(tokens).logits.numpy()
    sessions = {
        name: ort.InferenceSession(str(tmp_path / f"model.{name}.onnx"))
        for name in ("prefill", "decode")
    }
    states = {
        i.name: np.zeros(i.shape, np.int64 if "int64" in i.type else np.float32)
        for i in sessions["decode"].get_inputs()
        if i.name != "tokens"
    }
    prompt = np.zeros((1, 8), np.int64)
    prompt[:, :4] = tokens[:, :4]
    feed = {"tokens": prompt, "length": np.array([4]), **states}
    for at in range(3, 7):
        session = sessions["prefill" if at == 3 else "decode"]
        logits, *rest = session.run(None, feed)
        np.testing.assert_allclose(logits.reshape(-1), expected[0, at], rtol=1e-4, atol=1e-5)
        names = [o.name.removesuffix(".next") for o in session.get_outputs()[1:]]
        feed = dict(zip(names, rest, strict=True))
        feed["tokens"] = tokens[:, at + 1 : at + 2].numpy()


# ---- what outputs may be ----


def test_an_output_may_be_an_input_a_view_or_shown_twice(tmp_path: Path) -> None:
    same = Node("same", "aten.alias.default", ("x",), (Value("a", X),), {})
    relu = Node("relu", "aten.relu.default", ("a",), (Value("r", X),), {})
    shown = (Output("x", "x"), Output("a", "a"), Output("r", "r"), Output("twice", "r"))
    graph = Graph("net", (Value("x", X),), shown, (), (), (same, relu))
    (path,) = npusim.export_onnx(graph, tmp_path / "net.onnx")
    x = np.float32([[1, -2, 3, -4]] * 2)
    results = run(path, x)
    for got, want in zip(results, (x, x, np.maximum(x, 0), np.maximum(x, 0)), strict=True):
        np.testing.assert_array_equal(got, want)


# ---- refusals ----


def test_what_has_no_form_is_listed_at_once_with_its_source(tmp_path: Path) -> None:
    source = Source("encoder.turn", "net.py", 7)
    nodes = (
        Node("twist", "lib.twist.default", ("x",), (Value("a", X),), {}, source),
        Node("relu", "aten.relu.default", ("a",), (Value("r", X),), {}),
        Node("turn", "lib.turn.default", ("r",), (Value("y", X),), {}),
    )
    graph = Graph("net", (Value("x", X),), (Output("y", "y"),), (), (), nodes)
    with pytest.raises(UnsupportedOpError) as caught:
        npusim.export_onnx(graph, tmp_path / "net.onnx")
    assert "twist (lib.twist.default) (encoder.turn, net.py:7)" in str(caught.value)
    assert "turn (lib.turn.default)" in str(caught.value)
    assert caught.value.nodes == ("twist", "turn")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("opset", [9, 17, 1000])
def test_an_opset_out_of_range(linear: Graph, opset: int, tmp_path: Path) -> None:
    with pytest.raises(Error, match=rf"opsets 18 to .*not {opset}"):
        npusim.export_onnx(linear, tmp_path / "net.onnx", {"head.weight": W}, opset=opset)


# Of the models with open sizes, those that ONNX has a form for. `shapes` has every way a size gets
# into a graph; opset 18 writes attention out.
@pytest.mark.parametrize(
    ("name", "opset"),
    [
        *((n, 23) for n in ("perceptron", "bert", "derived", "shapes", "convolutions")),
        *(("decoder", opset) for opset in (18, 23)),
    ],
)
def test_open_sizes_are_named_dimensions(name: str, opset: int, tmp_path: Path) -> None:
    case = MODELS[name]
    model = case.model().eval()
    graph = npusim.extract_ir(model, case.arguments(*case.sizes[0]), dynamic_shapes=case.shapes)
    npusim.export_onnx(graph, tmp_path / "m.onnx", model.state_dict(), opset=opset)
    session = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    declared = {d for i in session.get_inputs() for d in i.shape if isinstance(d, str)}
    assert all(any(symbol.name in name for name in declared) for symbol in graph.symbols)
    for sizes in case.sizes:
        given = case.arguments(*sizes)
        with torch.no_grad():
            expected = leaves(model(*given))
        for got, want in zip(run(tmp_path / "m.onnx", *given), expected, strict=True):
            assert got.shape == tuple(want.shape), sizes
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5, err_msg=str(sizes))


def test_exported_open_sizes_come_back(tmp_path: Path) -> None:
    case = MODELS["bert"]
    model = case.model().eval()
    graph = npusim.extract_ir(model, case.arguments(*case.sizes[0]), dynamic_shapes=case.shapes)
    npusim.export_onnx(graph, tmp_path / "m.onnx", model.state_dict())
    bounds = {symbol.name: (symbol.low, symbol.high) for symbol in graph.symbols}
    imported = from_onnx(tmp_path / "m.onnx", dynamic_shapes=bounds)
    session = npusim.load(npusim.compile(imported.graph), imported.weights)
    for sizes in case.sizes[:3]:
        given = case.arguments(*sizes)
        with torch.no_grad():
            expected = leaves(model(*given))
        for got, want in zip(session(*given), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_sizes_compute_as_they_do_here(tmp_path: Path) -> None:
    """Floor division and remainders of negative numbers, the least and the greatest."""

    class Arithmetic(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            n, m = x.shape[0], y.shape[0]
            numbers = (n * m - 3, (n + 2) // 3, (2 - n) // 2, (n - 9) % 4, torch.sym_max(n, m))
            return torch.stack([torch.full((1,), i) for i in (*numbers, torch.sym_min(n, 2 * m))])

    dims = {"x": {0: torch.export.Dim("n", max=9)}, "y": {0: torch.export.Dim("m", max=7)}}
    model = Arithmetic().eval()
    example = (torch.zeros(3), torch.zeros(2))
    graph = npusim.extract_ir(model, example, dynamic_shapes=dims)
    npusim.export_onnx(graph, tmp_path / "m.onnx")
    for n, m in ((1, 1), (9, 7), (2, 5), (4, 4)):
        given = (torch.zeros(n), torch.zeros(m))
        assert run(tmp_path / "m.onnx", *given)[0].tolist() == model(*given).tolist(), (n, m)


def test_what_needs_a_number_is_refused_with_the_way_to_fixed_ones(tmp_path: Path) -> None:
    class Pooled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.adaptive_avg_pool2d(x, 3)

    shapes = {"x": {2: torch.export.Dim("height", max=8)}}
    graph = npusim.extract_ir(Pooled().eval(), (torch.zeros(1, 2, 7, 6),), dynamic_shapes=shapes)
    told = r"adaptive_avg_pool2d.*sizes that calls choose.*specialize\(ir, \{'height': 8\}\)"
    with pytest.raises(UnsupportedOpError, match=f"(?s){told}"):
        npusim.export_onnx(graph, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
    fixed = npusim.specialize(graph, {"height": 8})
    (path,) = npusim.export_onnx(fixed, tmp_path / "m.onnx")
    (got,) = run(path, np.ones((1, 2, 8, 6), np.float32))
    assert got.shape == (1, 2, 3, 3)

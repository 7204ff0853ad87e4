"""extract_ir: what a graph holds, whatever form the model, its weights and arguments have."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._decomp import decompositions
from torch.nn import functional

import npusim
from npusim.errors import ExportError
from npusim.ir.graph import Graph
from npusim.ir.json import graph_from_text, graph_to_text
from npusim.ops.reference import check_node, run_graph
from npusim.verify import compare, run_model, tensor_leaves

from .modules import Compute, Constants, Named, Pair, Structured, Tied


def x(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def extract(model: nn.Module, *args: Any, **kwargs: Any) -> Graph:
    """Extracts, and checks what holds for every extraction."""
    graph = npusim.extract_ir(model.eval(), args, kwargs)
    assert graph_from_text(graph_to_text(graph)) == graph
    for node in graph.nodes:
        check_node(node, graph.types)
    weights = {**dict(model.named_buffers()), **model.state_dict()}
    if not any(tensor.is_meta for tensor in weights.values()):
        expected = run_model(model, args, kwargs, {})
        actual = run_graph(graph, tensor_leaves(args, kwargs), weights)
        for output, a, e in zip(graph.outputs, actual, expected, strict=True):
            result = compare(output.name, a, e)
            assert result.ok, result
    return graph


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_a_model_is_left_as_it_was() -> None:
    model = nn.LSTM(4, 4).eval()
    before = {name: (id(p), p.requires_grad) for name, p in model.named_parameters()}
    flat = [id(p) for p in model._flat_weights]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extract(model, x(3, 4))
    assert {n: (id(p), p.requires_grad) for n, p in model.named_parameters()} == before
    assert [id(p) for p in model._flat_weights] == flat
    assert not model._forward_hooks
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_model_is_left_as_it_was_when_it_is_refused() -> None:
    model = Compute(lambda t: t[t > 0])
    model.layer = nn.Linear(2, 2)
    weight = model.layer.weight
    with pytest.raises(ExportError):
        extract(model, x(2, 2))
    assert model.layer.weight is weight
    assert not model._forward_hooks


def test_weights_take_no_memory() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(100_000, 100_000) for _ in range(4)))  # 160 GB
        example = torch.empty(1, 100_000)
    graph = extract(model, example)
    assert sum(w.type.nbytes for w in graph.weights) > 160e9
    assert ops(graph) == ["aten.linear.default"] * 4


def test_real_and_meta_models_give_the_same_graph() -> None:
    torch.manual_seed(0)
    real = extract(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), x(1, 3, 8, 8))
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    assert extract(model, x(1, 3, 8, 8)) == real
    assert extract(model, x(1, 3, 8, 8).to("meta")) == real


def test_tied_weights_are_one_weight() -> None:
    graph = extract(Tied(), x(2, 4))
    keys = {w.key: w.aliases for w in graph.weights}
    assert keys == {
        "first.weight": ("second.weight",),
        "first.bias": (),
        "third.weight": ("again.weight",),
        "third.bias": ("again.bias",),
    }
    state = Tied().state_dict()
    state.pop("first.weight")
    run_graph(graph, [x(2, 4)], state)  # one of the keys suffices


def test_constants_travel_with_the_graph() -> None:
    graph = extract(Constants(), x(2, 4))
    assert [w.key for w in graph.weights] == ["mean"]
    data = {
        c.name: torch.frombuffer(bytearray(c.data), dtype=torch.float32) for c in graph.constants
    }
    assert data["table"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert data["scale"].tolist() == [2.0, 3.0, 4.0, 5.0]
    assert data["lifted_tensor_0"].tolist() == [1.0, -1.0, 1.0, -1.0]


def test_constants_without_data_or_too_large_are_asked_for() -> None:
    with torch.device("meta"):
        hollow = Constants()
    asked = [(w.key, w.persistent) for w in extract(hollow, x(2, 4)).weights]
    assert asked == [("mean", True), ("table", False), ("scale", False)]
    large = extract(Constants(size=1 << 19), x(2, 4))
    assert [(w.key, w.persistent) for w in large.weights] == [("mean", True), ("table", False)]


def test_arguments_may_be_nested_named_and_constant() -> None:
    options = {"bias": x(4, seed=1), "more": [x(2, 4, seed=2)], "unused": None}
    graph = extract(Structured(), x(2, 4), options, scale=2.0)
    assert [v.name for v in graph.inputs] == ["x", "options_bias", "options_more_0"]
    assert [o.name for o in graph.outputs] == ["logits", "hidden_0", "hidden_1"]
    masked = extract(Structured(), x(2, 4), options, scale=2.0, mask=x(4, seed=3))
    assert [v.name for v in masked.inputs][-1] == "mask"
    assert {n.attrs["other"] for n in graph.nodes if n.op == "aten.mul.Scalar"} == {2.0}


@pytest.mark.parametrize("batch", [None, torch.export.Dim("batch", max=5)])
def test_whole_numbers_are_arguments(batch: Any) -> None:
    """PyTorch has symbols for them while it takes operators apart."""
    model = Compute(lambda x, n, m: functional.softplus(x[:, :n]) * m)
    shapes = None if batch is None else {"x": {0: batch}, "rest": (None, None)}
    graph = npusim.extract_ir(model.eval(), (x(3, 4), 2, 7), dynamic_shapes=shapes)
    assert [v.name for v in graph.inputs] == ["x"]
    value = npusim.load(npusim.compile(graph), weights={})(x(3, 4))[0]
    torch.testing.assert_close(value, model(x(3, 4), 2, 7))


def test_unused_inputs_stay() -> None:
    graph = extract(Compute(lambda a, b, c: a + c), x(2), x(3), x(2))
    assert [v.type.shape for v in graph.inputs] == [(2,), (3,), (2,)]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda t: t + 1, ["output"]),
        (lambda t: (t + 1, t - 1), ["output_0", "output_1"]),
        (lambda t: [t + 1], ["output_0"]),
        (lambda t: {"b": t + 1, "a": [t, (t * 2,)]}, ["b", "a_0", "a_1_0"]),
        (lambda t: (t + 1, None, {"k": t}), ["output_0", "output_2.k"]),
        (lambda t: Pair(t + 1, t * 2), ["left", "right"]),
        (lambda t: (t, t), ["output_0", "output_1"]),
    ],
)
def test_outputs_are_named_by_the_structure(function: Any, names: list[str]) -> None:
    assert [o.name for o in extract(Compute(function), x(2)).outputs] == names


def test_weights_and_inputs_may_be_outputs() -> None:
    class Returns(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x, self.weight

    graph = extract(Returns(2, 2), x(2))
    assert [o.value for o in graph.outputs] == ["x", "weight"]
    assert not graph.nodes


def test_every_node_knows_where_it_comes_from() -> None:
    graph = extract(Named(), x(2, 4))
    sources = {n.op: n.source for n in graph.nodes}
    gelu, add = sources["aten.gelu.default"], sources["aten.add.Scalar"]
    assert gelu is not None
    assert gelu.module == "blocks.0.1"
    assert add is not None
    assert add.file.endswith("modules.py")
    with open(add.file) as lines:  # noqa: PTH123
        assert "line of the addition" in lines.readlines()[add.line - 1]


def test_names_default_to_the_class() -> None:
    assert extract(Named(), x(2, 4)).name == "Named"
    assert npusim.extract_ir(Named().eval(), (x(2, 4),), model_name="mine").name == "mine"
    assert npusim.extract_ir(Named().eval(), x(2, 4)).name == "Named"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes_are_those_of_the_model(dtype: str) -> None:
    torch_dtype = getattr(torch, dtype)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).to(torch_dtype)
    graph = extract(model, x(2, 4).to(torch_dtype))
    assert {t.dtype for t in graph.types.values()} == {dtype}


def test_numbers_keep_their_promotion() -> None:
    def function(half: Tensor, whole: Tensor) -> tuple[Tensor, ...]:
        return half + 1, 2 - half, whole * 1.5, whole / 2, torch.maximum(half, half * 2), whole // 2

    graph = extract(Compute(function), x(3).half(), torch.arange(3))
    dtypes = [graph.types[o.value].dtype for o in graph.outputs]
    assert dtypes == ["float16", "float16", "float32", "float32", "float16", "int64"]


def test_copies_and_dropout_leave_no_trace() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Identity(), nn.ReLU(), nn.AlphaDropout(0.1))
    assert ops(extract(model, x(2, 4))) == ["aten.relu.default"]
    copies = Compute(lambda t: t.clone().contiguous().detach().to(torch.float32) * 2)
    assert ops(extract(copies, x(2, 4))) == ["aten.mul.Scalar"]


def test_views_of_what_lies_otherwise_in_memory_become_reshapes() -> None:
    turned = ["aten.permute.default", "aten.view.default"]
    flat = extract(Compute(lambda t: t.transpose(0, 1).reshape(-1)), x(2, 3))
    assert ops(flat) == turned
    copied = Compute(lambda t: t.permute(0, 2, 1).contiguous().view(2, -1))
    assert ops(extract(copied, x(2, 3, 4))) == turned
    images = x(1, 4, 6, 6).to(memory_format=torch.channels_last)
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Flatten())
    assert ops(extract(model, images)) == ["aten.conv2d.default", "aten.view.default"]


def test_in_place_operations_on_intermediates_are_fine() -> None:
    def function(t: Tensor) -> Tensor:
        y = t * 2
        y += 1
        y[0] = 0.0
        return y.relu_()

    graph = extract(Compute(function), x(3, 4))
    assert [op for op in ops(graph) if op.split(".")[1].endswith("_")] == []
    assert ops(graph)[-1] == "aten.relu.default"
    assert not graph.updates


def test_threads_may_extract_models_of_their_own() -> None:
    graphs: list[Graph] = []

    def work() -> None:
        graphs.append(npusim.extract_ir(nn.Linear(4, 4).eval(), (x(2, 4),)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert graphs[0].nodes[0].op == "aten.linear.default"


WHOLE: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "conv1d": (nn.Conv1d(4, 6, 3), (1, 4, 9), "aten.conv1d.default"),
    "conv2d": (nn.Conv2d(4, 6, 3, 2, 1), (1, 4, 9, 9), "aten.conv2d.default"),
    "conv2d, unbatched": (nn.Conv2d(4, 6, 3), (4, 9, 9), "aten.conv2d.default"),
    "conv3d": (nn.Conv3d(2, 3, 3), (1, 2, 5, 5, 5), "aten.conv3d.default"),
    "transposed 1d": (nn.ConvTranspose1d(4, 6, 3), (1, 4, 9), "aten.conv_transpose1d.default"),
    "transposed 2d": (nn.ConvTranspose2d(4, 6, 3), (1, 4, 9, 9), "aten.conv_transpose2d.input"),
    "transposed 3d": (nn.ConvTranspose3d(2, 3, 2), (1, 2, 4, 4, 4), "aten.conv_transpose3d.input"),
    "linear": (nn.Linear(4, 6), (2, 4), "aten.linear.default"),
    "matmul": (Compute(lambda t: t @ t.mT), (2, 3, 4), "aten.matmul.default"),
    "layer norm": (nn.LayerNorm(4), (2, 4), "aten.layer_norm.default"),
    "rms norm": (nn.RMSNorm(4), (2, 4), "aten.rms_norm.default"),
    "group norm": (nn.GroupNorm(2, 4), (2, 4, 5), "aten.group_norm.default"),
    "instance norm": (nn.InstanceNorm2d(4, affine=True), (2, 4, 5, 5), "aten.group_norm.default"),
    "tracked instance norm": (
        nn.InstanceNorm2d(4, track_running_stats=True),
        (2, 4, 5, 5),
        "aten.batch_norm.default",
    ),
    "batch norm": (nn.BatchNorm2d(4), (2, 4, 5, 5), "aten.batch_norm.default"),
    "softmax": (nn.Softmax(-1), (2, 4), "aten.softmax.int"),
    "log softmax": (nn.LogSoftmax(-1), (2, 4), "aten.log_softmax.int"),
    "gelu": (nn.GELU("tanh"), (2, 4), "aten.gelu.default"),
    "silu": (nn.SiLU(), (2, 4), "aten.silu.default"),
    "mish": (nn.Mish(), (2, 4), "aten.mish.default"),
    "hardswish": (nn.Hardswish(), (2, 4), "aten.hardswish.default"),
    "hardsigmoid": (nn.Hardsigmoid(), (2, 4), "aten.hardsigmoid.default"),
    "relu6": (nn.ReLU6(), (2, 4), "aten.hardtanh.default"),
    "leaky relu": (nn.LeakyReLU(), (2, 4), "aten.leaky_relu.default"),
    "elu": (nn.ELU(), (2, 4), "aten.elu.default"),
    "softplus": (nn.Softplus(), (2, 4), "aten.softplus.default"),
    "max pool 1d": (nn.MaxPool1d(2), (1, 4, 8), "aten.max_pool1d.default"),
    "max pool 2d": (nn.MaxPool2d(2), (1, 4, 8, 8), "aten.max_pool2d.default"),
    "max pool 3d": (nn.MaxPool3d(2), (1, 4, 4, 4, 4), "aten.max_pool3d.default"),
    "max pool with indices": (
        nn.MaxPool2d(2, return_indices=True),
        (1, 4, 8, 8),
        "aten.max_pool2d_with_indices.default",
    ),
    "average pool": (nn.AvgPool2d(2), (1, 4, 8, 8), "aten.avg_pool2d.default"),
    "global pool": (nn.AdaptiveAvgPool2d(1), (1, 4, 8, 8), "aten.adaptive_avg_pool2d.default"),
    "adaptive pool": (nn.AdaptiveMaxPool2d(3), (1, 4, 8, 8), "aten.adaptive_max_pool2d.default"),
    "nearest": (nn.Upsample(scale_factor=2), (1, 4, 3, 3), "aten.upsample_nearest2d.vec"),
    "bilinear": (
        nn.Upsample(size=(5, 7), mode="bilinear"),
        (1, 4, 3, 3),
        "aten.upsample_bilinear2d.vec",
    ),
    "bicubic": (
        nn.Upsample(scale_factor=1.5, mode="bicubic"),
        (1, 4, 4, 4),
        "aten.upsample_bicubic2d.vec",
    ),
    "pixel shuffle": (nn.PixelShuffle(2), (1, 8, 3, 3), "aten.pixel_shuffle.default"),
    "attention": (
        Compute(lambda t: functional.scaled_dot_product_attention(t, t, t, is_causal=True)),
        (1, 2, 5, 4),
        "aten.scaled_dot_product_attention.default",
    ),
}


@pytest.mark.parametrize("what", WHOLE)
def test_composites_with_kernels_stay_whole(what: str) -> None:
    model, shape, op = WHOLE[what]
    assert ops(extract(model, x(*shape))).count(op) == 1


def test_embedding_stays_whole() -> None:
    graph = extract(nn.Embedding(10, 4), torch.tensor([[1, 9]]))
    assert ops(graph) == ["aten.embedding.default"]


@pytest.mark.parametrize(
    ("kernel", "padding", "count"), [(3, "same", 1), (4, "same", 2), (3, "valid", 1)]
)
def test_padding_by_name_becomes_numbers(kernel: int, padding: str, count: int) -> None:
    graph = extract(nn.Conv2d(3, 4, kernel, padding=padding, dilation=(1, 2)), x(1, 3, 12, 12))
    assert ops(graph) == ["aten.constant_pad_nd.default", "aten.conv2d.default"][-count:]


@pytest.mark.parametrize(
    "model",
    [
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
        nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, activation="gelu"),
    ],
)
def test_transformers_are_not_hidden_in_one_operator(model: nn.Module) -> None:
    graph = extract(model, x(2, 5, 8))
    assert "aten.scaled_dot_product_attention.default" in ops(graph)
    assert not any("_transformer_encoder_layer_fwd" in op for op in ops(graph))


@pytest.mark.parametrize(
    "function",
    [
        lambda t: torch.linalg.norm(t, dim=-1),
        lambda t: functional.normalize(t, dim=1),
        lambda t: t.norm(),
        lambda t: torch.cdist(t, t),
        lambda t: torch.einsum("ij,kj->ik", t, t),
        lambda t: t.std(0, keepdim=True),
        lambda t: functional.pad(t, (1, 2), mode="reflect"),
        lambda t: functional.one_hot(t.argmax(1), 4).float(),
        lambda t: torch.where(t > 0, t, 0.0).masked_fill(t > 1, float("-inf")).clamp(max=0.5),
        lambda t: t.cumsum(0).roll(1, 0).flip(1),
        lambda t: torch.stack([t, t]).unbind(0)[1].chunk(2, dim=1)[0],
        lambda t: t[:, [0, 2]].sort(descending=True).values,
        lambda t: t.topk(2).indices,
        lambda t: t[..., None, :].expand(3, 2, 4).repeat(1, 2, 1),
        lambda t: torch.tril(t) + torch.arange(4) + torch.eye(3, 4),
        lambda t: t.index_add(0, torch.tensor([0, 2]), t[:2]),
        lambda t: t.as_strided((2, 3), (1, 2)) + t.unfold(1, 3, 1)[:2, 0],
    ],
)
def test_what_has_no_kernel_of_its_own_decomposes_and_runs(function: Any) -> None:
    report = npusim.check(extract(Compute(function), x(3, 4)), "cpu")
    assert [node.op for node in report.others] == []


@pytest.mark.parametrize("bounds", [(0, 0), (-1.5, 0.5), (0, 3)])
def test_histograms_are_counted(bounds: tuple[float, float]) -> None:
    values = torch.tensor([-2.0, -1.5, -0.1, 0.0, 0.5, 0.5, 1.0, 2.9, 3.0, float("inf")])
    values = values if bounds != (0, 0) else values[:-1]
    for part in (values, values[:1], values[:0], values.view(-1, values.numel())):
        graph = extract(Compute(lambda x: torch.histc(x, 6, *bounds)), part)
        assert "aten.histc.default" not in ops(graph)


def test_writing_where_a_mask_is_true_keeps_the_shape() -> None:
    def function(t: Tensor) -> tuple[Tensor, ...]:
        some, all_ = t.clone(), t.clone()
        some[torch.where(t.sum(-1) > 0)] = 0.5
        all_[(t > 0).nonzero(as_tuple=True)] = 1.0
        return some, all_

    graph = extract(Compute(function), x(2, 3, 4))
    assert "aten.nonzero.default" not in ops(graph)
    assert npusim.check(graph).coverage == 1.0
    with pytest.raises(ExportError, match=r"aten\.nonzero"):  # another order is another matter
        extract(Compute(_turned), x(3, 3))


def _turned(t: Tensor) -> Tensor:
    rows, columns = torch.where(t > 0)
    return t.index_put((columns, rows), torch.tensor(0.5))


@pytest.mark.parametrize("batch", [1, 3])
def test_states_of_recurrences_keep_their_shapes(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where PyTorch's trace of an LSTM squeezes the batch, as 2.11 does."""
    layer = decompositions.one_layer_lstm

    def squeezing(*args: Any, **kwargs: Any) -> Any:
        y, states = layer(*args, **kwargs)
        return y, tuple(state.unsqueeze(0).squeeze(1) for state in states)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True)

        def forward(self, t: Tensor) -> Any:
            y, (h, c) = self.lstm(t)
            return y, h, c, h.transpose(0, 1).reshape(h.shape[1], -1)

    monkeypatch.setattr(decompositions, "one_layer_lstm", squeezing)
    graph = extract(Last(), x(batch, 3, 4))
    shapes = [graph.types[output.value].shape for output in graph.outputs]
    assert shapes == [(batch, 3, 10), (4, batch, 5), (4, batch, 5), (batch, 20)]
    assert decompositions.one_layer_lstm is squeezing

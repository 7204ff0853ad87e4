"""A decoder and a ResNet written in tinygrad: imported, compiled, run, and nothing unrecognised."""

from __future__ import annotations

import gc

import numpy as np
import pytest

pytest.importorskip("tinygrad")

import torch
from tinygrad import Tensor, nn

import npusim
from npusim.frontends.tinygrad import from_tinygrad
from npusim.runtime import Device, Executor, Session, load_weights
from tests.frontends.tinygrad import HAS_COMPILER
from tests.frontends.tinygrad.models import (
    LENGTH,
    Attention,
    CatAttention,
    Decoder,
    PositionDecoder,
    ResNet,
    TorchResNet,
    settle,
)
from tests.frontends.tinygrad.running import assert_same, check, compiled_ops, integers, tensor

needs_compiler = pytest.mark.skipif(
    not HAS_COMPILER, reason="tinygrad's interpreter takes minutes for a model"
)
PROMPT, CONTINUATION = [3, 1, 4, 1, 5], [9]


@pytest.fixture(scope="module")
def resnet() -> ResNet:
    return settle(ResNet())


def test_every_operation_of_a_resnet_is_recovered(resnet):
    report = from_tinygrad(resnet, tensor(1, 3, 64, 64)).report
    wanted = {"conv2d": 20, "batch_norm": 20, "linear": 1, "max_pool2d": 1, "mean": 1}
    assert report.recovered == wanted
    assert report.unrecovered == ()


def test_a_resnet_compiles_to_what_its_twin_in_pytorch_does(resnet):
    ours = compiled_ops(from_tinygrad(resnet, tensor(1, 3, 64, 64)).graph)
    twin = TorchResNet().eval()
    theirs = compiled_ops(npusim.extract_ir(twin, (torch.zeros(1, 3, 64, 64),)))
    del ours["aten.view.default"], theirs["aten.view.default"]  # they cost nothing
    assert ours == theirs


@needs_compiler
def test_a_resnet_gives_what_tinygrad_gives(resnet):
    check(resnet, tensor(1, 3, 64, 64))


def _positions() -> list[tuple[list[int], int]]:
    """Returns (tokens, position) of a prompt and the single tokens behind it."""
    start = len(PROMPT)
    return [(PROMPT, 0)] + [([t], start + i) for i, t in enumerate(CONTINUATION)]


@needs_compiler
@pytest.mark.parametrize("attention", [Attention, CatAttention])
def test_a_decoder_with_a_cache(attention):
    model = settle(Decoder(attention))
    steps = {}
    weights = {}
    for tokens, position in _positions():
        imported = from_tinygrad(model, (integers([tokens]), position), name=f"at_{position}")
        recovered = imported.report.recovered
        assert (recovered["linear"], recovered["matmul"], recovered["embedding"]) == (15, 4, 1)
        assert imported.report.unrecovered == ()
        steps[f"at_{position}"] = imported.graph
        weights.update(imported.weights)
    program = npusim.compile(npusim.Module("decoder", steps))
    device = Device("cpu")
    executor = Executor(program, device)
    loaded = load_weights(weights, program, device)
    for tokens, position in _positions():
        method = f"at_{position}"
        session = Session(executor, loaded, method)  # with the executor's own state
        (got,) = session(np.array([tokens], np.int32))
        assert_same(got, model(integers([tokens]), position).numpy(), 1e-5)


@pytest.mark.parametrize(("tokens", "position"), [(PROMPT, 0), ([9], 5)])
def test_a_decoder_is_fused_as_one_in_pytorch_is(tokens, position):
    graph = from_tinygrad(settle(Decoder()), (integers([tokens]), position)).graph
    ops = compiled_ops(graph)
    fused = {
        "aten.scaled_dot_product_attention.default": 2,
        "aten.rms_norm.default": 5,
        "npu.rope": 4,
    }
    assert {op: ops[op] for op in fused} == fused
    assert not {"aten.matmul.default", "aten.softmax.int", "npu.pointwise"} & ops.keys()


@needs_compiler
def test_a_decoder_at_a_position_that_is_a_tensor():
    model = settle(PositionDecoder())
    imported = from_tinygrad(model, (integers([[0]]), integers([0])))
    recovered = imported.report.recovered
    assert (recovered["linear"], recovered["matmul"], recovered["embedding"]) == (15, 4, 3)
    assert len(imported.graph.states) == len(imported.graph.updates) == 4
    session = npusim.load(npusim.compile(imported.graph), imported.weights)
    for position, token in enumerate(PROMPT):
        (got,) = session(np.array([[token]], np.int32), np.array([position], np.int32))
        want = model(integers([[token]]), integers([position])).numpy()
        assert_same(got, want, 1e-5)


def test_importing_leaves_the_model_as_it_was():
    model = settle(Decoder())
    before = {k: (t.uop, t.numpy()) for k, t in nn.state.get_state_dict(model).items()}
    from_tinygrad(model, (integers([PROMPT]), 0))
    for key, tensor_after in nn.state.get_state_dict(model).items():
        assert tensor_after.uop is before[key][0]
        np.testing.assert_array_equal(tensor_after.numpy(), before[key][1])


def test_weights_are_not_computed_until_they_are_asked_for():
    weight = Tensor.arange(12).reshape(3, 4) * 0.5
    imported = from_tinygrad(lambda x: x.linear(weight.T), tensor(2, 4), weights={"w": weight})
    assert weight.uop.op.name == "MUL"
    np.testing.assert_array_equal(imported.weights["w"], np.arange(12).reshape(3, 4) * 0.5)


def test_a_file_of_tinygrad_is_a_checkpoint(tmp_path):
    layer = settle(nn.Linear(4, 3))
    imported = from_tinygrad(layer, tensor(2, 4))
    imported.graph.save(tmp_path / "model.json")
    nn.state.safe_save(nn.state.get_state_dict(layer), str(tmp_path / "model.safetensors"))
    program = npusim.compile(tmp_path / "model.json")
    session = npusim.load(program, tmp_path / "model.safetensors")
    (got,) = session(tensor(2, 4).numpy())
    assert_same(got, layer(tensor(2, 4)).numpy(), 1e-6)
    assert not npusim.check(imported.graph).others


def test_states_are_whole_caches():
    graph = from_tinygrad(settle(Decoder()), (integers([[9]]), 5)).graph
    assert {s.type.shape for s in graph.states} == {(1, 2, LENGTH, 8)}


def test_weights_stay_what_they_are_while_tinygrad_goes_on():
    layer = nn.Linear(256, 256)  # not computed yet
    imported = from_tinygrad(layer, tensor(1, 256), weights=nn.state.get_state_dict(layer))
    arrays = {key: imported.weights[key] for key in imported.weights}
    session = npusim.load(npusim.compile(imported.graph), imported.weights)
    x = np.ones((1, 256), np.float32)
    before, (y,) = {key: array.copy() for key, array in arrays.items()}, session(x)
    del layer
    gc.collect()
    for fill in range(20):
        Tensor.full((256, 256), float(fill)).contiguous().realize()
        Tensor.full((256,), float(fill)).contiguous().realize()
    for key, array in arrays.items():
        np.testing.assert_array_equal(array, before[key])
    np.testing.assert_array_equal(session(x)[0], y)

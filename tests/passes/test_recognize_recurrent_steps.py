"""recognize_recurrent_steps: a command a step, unless somebody looks in between."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import npusim
from npusim.passes.recognize_recurrent_steps import recognize_recurrent_steps
from npusim.targets import TargetConfig

CUDA = TargetConfig.named("cuda:sm_90a")
NO_EPILOGUE = {"act": "copy", "act_lo": 0.0, "act_hi": 0.0}


def build(draft, change=""):
    """Returns (y, c', the product, a gate)."""
    m = 300 if change == "many_rows" else 2
    order = (1, 0, 3, 2) if change == "order" else (0, 1, 2, 3)
    x, c, a = draft.x(1, m, 16), draft.x(1, m, 8, name="c"), draft.x(1, m, 32, name="a")
    act = {**NO_EPILOGUE, "act": "relu"} if change == "activation" else NO_EPILOGUE
    s = draft.call("npu.linear", x, draft.w(32, 16), draft.w(32), a, residual=1, **act)
    if change == "slices":
        parts = [
            draft.call("aten.slice.Tensor", s, dim=2, start=8 * i, end=8 * i + 8, step=1)
            for i in range(4)
        ]
    else:
        sizes = (8, 8, 8, 8) if change != "sizes" else (8, 8, 8, 4, 4)
        parts = draft.call("aten.split_with_sizes.default", s, split_sizes=sizes, dim=2)
    enter, forget, candidate, leave = (parts[i] for i in order)
    sigmoids = [draft.call("aten.sigmoid.default", g) for g in (enter, forget, leave)]
    if change == "same_gate":
        sigmoids[1] = draft.call("aten.sigmoid.default", enter)
    kept = draft.call("aten.mul.Tensor", sigmoids[1], c)
    entered = draft.call("aten.mul.Tensor", sigmoids[0], draft.call("aten.tanh.default", candidate))
    new = draft.call("aten.add.Tensor", kept, entered, alpha=2 if change == "alpha" else 1)
    y = draft.call("aten.mul.Tensor", sigmoids[2], draft.call("aten.tanh.default", new))
    return y, new, s, sigmoids[0]


@pytest.mark.parametrize("change", ["", "order", "slices"])
def test_steps(draft, check_pass, change):
    y, new, *_ = build(draft, change)
    result = check_pass(recognize_recurrent_steps, draft.graph(y, new), CUDA)
    assert [n.op for n in result.nodes] == ["npu.recurrent_step"]


@pytest.mark.parametrize("change", ["many_rows", "activation", "alpha", "same_gate"])
def test_what_stays(draft, change):
    y, new, *_ = build(draft, change)
    graph = draft.graph(y, new)
    assert recognize_recurrent_steps(graph, CUDA) is graph


@pytest.mark.parametrize("seen", [2, 3])
def test_what_is_seen_in_between_stays(draft, seen):
    values = build(draft)
    graph = draft.graph(*values[:2], values[seen])
    assert recognize_recurrent_steps(graph, CUDA) is graph


def test_what_is_quantized_or_narrowed_stays(draft):
    y, new, *_ = build(draft)
    graph = draft.graph(y, new)
    for other in ({"weight_quantization": "int8"}, {"precision": "bfloat16"}):
        assert recognize_recurrent_steps(graph, replace(CUDA, **other)) is graph


def gated(draft, change=""):
    """Returns (h', the product, a gate) of a GRU."""
    x, h, a = draft.x(1, 2, 8), draft.x(1, 2, 8, name="h"), draft.x(2, 24, name="a")
    s = draft.call("npu.linear", x, draft.w(24, 8), draft.w(24), None, **NO_EPILOGUE, residual=0)
    sizes = {"split_sizes": (8, 8, 8)}
    r, z, n = draft.call("aten.split_with_sizes.default", s, **sizes, dim=2)
    ar, az, an = draft.call("aten.split_with_sizes.default", a, **sizes, dim=1)
    if change == "crossed":
        ar, az = az, ar
    elif change == "order":
        (r, z, n), (ar, az, an) = (z, r, n), (az, ar, an)
    alpha = 2 if change == "alpha" else 1
    reset, update = (
        draft.call("aten.sigmoid.default", draft.call("aten.add.Tensor", *pair, alpha=by))
        for pair, by in (((r, ar), 1), ((az, z), alpha))
    )
    reset_part = draft.call("aten.mul.Tensor", n, reset)
    inner = draft.call("aten.add.Tensor", an, reset_part, alpha=1)
    new = draft.call("aten.tanh.default", inner)
    pair = (new, h) if change == "turned" else (h, new)
    mixed = draft.call("aten.mul.Tensor", draft.call("aten.sub.Tensor", *pair, alpha=1), update)
    y = draft.call("aten.add.Tensor", new, mixed, alpha=1)
    return y, s, reset, new


@pytest.mark.parametrize("change", ["", "order"])
def test_steps_of_gru(draft, check_pass, change):
    y, *_ = gated(draft, change)
    result = check_pass(recognize_recurrent_steps, draft.graph(y), CUDA)
    assert [n.op for n in result.nodes] == ["aten.view.default", "npu.recurrent_step"]


@pytest.mark.parametrize("change", ["crossed", "alpha", "turned"])
def test_other_formulas_stay(draft, change):
    y, *_ = gated(draft, change)
    graph = draft.graph(y)
    assert recognize_recurrent_steps(graph, CUDA) is graph


@pytest.mark.parametrize("seen", [1, 2, 3])
def test_what_is_seen_of_a_gru_stays(draft, seen):
    values = gated(draft)
    graph = draft.graph(values[0], values[seen])
    assert recognize_recurrent_steps(graph, CUDA) is graph


@pytest.mark.parametrize("act", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("times", [1, 2])
def test_plain_steps_are_of_a_weight_that_is_read_again(draft, act, times):
    y, weight, bias = draft.x(1, 2, 8), draft.w(8, 8), draft.w(8)
    attrs = {**NO_EPILOGUE, "act": act, "residual": 1}
    for i in range(times):
        y = draft.call("npu.linear", y, weight, bias, draft.x(1, 2, 8, name=f"a{i}"), **attrs)
    result = recognize_recurrent_steps(draft.graph(y), CUDA)
    op = "npu.recurrent_step" if times == 2 and act != "silu" else "npu.linear"
    assert [n.op for n in result.nodes] == [op] * times


LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "plain": nn.RNN}


@pytest.mark.parametrize(
    ("both", "batch"),
    [
        *((False, 1), (False, 8), (False, 64), (True, 8)),
        *(pytest.param(True, batch, marks=pytest.mark.long) for batch in (1, 64)),
    ],
)
@pytest.mark.parametrize("cell", LAYERS)
def test_a_command_a_step(cell, batch, both):
    steps, layers = 4, 2
    torch.manual_seed(0)
    kind = LAYERS[cell]
    model = kind(16, 32, layers, batch_first=True, bidirectional=both).eval().half()
    graph = npusim.extract_ir(model, (torch.randn(batch, steps, 16).half(),))
    kernels = tuple(k for k in CUDA.kernels if k != "recurrence")
    program = npusim.compile(graph, target=replace(CUDA, code_format="", kernels=kernels))
    names = [program.kernels[c.kernel].name for c in program.methods[0].commands]
    fused = names.count("recurrent_step")
    assert fused == steps * layers * (1 + both)
    assert len(names) - fused - names.count("copy") <= 5 * layers * (1 + both)
    assert both or names.count("copy") <= 2 * layers + 1  # the last states, which are stacked

"""recognize_lstm_steps: a command a step, unless somebody looks in between or rows are many."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import npusim
from npusim.passes.recognize_lstm_steps import recognize_lstm_steps
from npusim.targets import TargetConfig

CUDA = TargetConfig.named("cuda:sm_90a")
NO_EPILOGUE = {"act": "copy", "act_lo": 0.0, "act_hi": 0.0}


def build(draft, change=""):
    """Returns (y, c', the product, a gate)."""
    m = 200 if change == "many_rows" else 2
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
    result = check_pass(recognize_lstm_steps, draft.graph(y, new), CUDA)
    assert [n.op for n in result.nodes] == ["npu.lstm_step"]


@pytest.mark.parametrize("change", ["many_rows", "activation", "alpha", "same_gate"])
def test_what_stays(draft, change):
    y, new, *_ = build(draft, change)
    graph = draft.graph(y, new)
    assert recognize_lstm_steps(graph, CUDA) is graph


@pytest.mark.parametrize("seen", [2, 3])
def test_what_is_seen_in_between_stays(draft, seen):
    values = build(draft)
    graph = draft.graph(*values[:2], values[seen])
    assert recognize_lstm_steps(graph, CUDA) is graph


def test_what_is_quantized_or_narrowed_stays(draft):
    y, new, *_ = build(draft)
    graph = draft.graph(y, new)
    for other in ({"weight_quantization": "int8"}, {"precision": "bfloat16"}):
        assert recognize_lstm_steps(graph, replace(CUDA, **other)) is graph


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("both", [False, True])
def test_a_command_a_step(batch, both):
    steps, layers = 5, 2
    torch.manual_seed(0)
    model = nn.LSTM(16, 32, layers, batch_first=True, bidirectional=both).eval().half()
    graph = npusim.extract_ir(model, (torch.randn(batch, steps, 16).half(),))
    program = npusim.compile(graph, target=replace(CUDA, code_format=""))
    names = [program.kernels[c.kernel].name for c in program.methods[0].commands]
    assert names.count("lstm_step") == (steps - 1) * layers * (1 + both)
    # A product and three formulas begin each direction of a layer, whose first state is known.
    assert len(names) - names.count("lstm_step") - names.count("copy") <= 5 * layers * (1 + both)
    assert both or names.count("copy") <= 2 * layers + 1  # the last states, which are stacked

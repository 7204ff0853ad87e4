"""recognize_token_mixing: linears between transpositions, where nobody reads what is in between."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import npusim
from npusim.passes.recognize_token_mixing import recognize_token_mixing
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig

CUDA = TargetConfig.named("cuda:sm_90a")
PLAIN = {"act": "copy", "act_lo": 0.0, "act_hi": 0.0, "residual": 0}


def turn(draft, x, *dims):
    return draft.call("aten.permute.default", x, dims=dims)


def mixed(draft, change=""):
    """Returns (y, the hidden value) of tokens that two linears mix, with a residual."""
    columns = 24 if change == "few_columns" else 36
    x = draft.x(2, 7, columns)
    w, v = draft.w(5, 7), draft.w(7, 5, name="v")
    t = turn(draft, x, 0, 2, 1)
    gelu = {**PLAIN, "act": "gelu"}
    hidden = draft.call("npu.linear", t, w, draft.w(5, name="b"), None, **gelu)
    if change == "formula":
        hidden = draft.call("aten.tanh.default", hidden)
    if change == "softmax":
        hidden = draft.call("aten.softmax.int", hidden, dim=-1)
    y = draft.call("npu.linear", hidden, v, None, t, **{**PLAIN, "residual": 2})
    return turn(draft, y, 0, 2, 1), hidden


@pytest.mark.parametrize("change", ["", "formula"])
def test_products_between_transpositions(draft, check_pass, change):
    y, _ = mixed(draft, change)
    result = check_pass(recognize_token_mixing, draft.graph(y), CUDA)
    assert [n.op for n in result.nodes].count("npu.token_mixing") == 2


def test_one_dimension_of_an_image(draft, check_pass):
    """Rows of an image, of [n, h, w, c], before and behind which all else is one extent."""
    x = draft.x(2, 6, 5, 8)
    y = draft.call("npu.linear", turn(draft, x, 0, 2, 3, 1), draft.w(4, 6), None, None, **PLAIN)
    result = check_pass(recognize_token_mixing, draft.graph(turn(draft, y, 0, 3, 1, 2)), CUDA)
    (product,) = (n for n in result.nodes if n.op == "npu.token_mixing")
    assert product.type.shape == (2, 4, 40)


def test_what_has_few_columns_stays(draft):
    graph = draft.graph(mixed(draft, "few_columns")[0])
    assert recognize_token_mixing(graph, CUDA) is graph


def test_a_product_that_a_softmax_reads_as_it_is_stays(draft):
    y, _ = mixed(draft, "softmax")
    result = recognize_token_mixing(draft.graph(y), CUDA)
    first, second = (n.op for n in result.nodes if "npu" in n.op)
    assert (first, second) == ("npu.linear", "npu.linear")


def test_what_is_seen_in_between_stays(draft):
    y, hidden = mixed(draft)
    result = recognize_token_mixing(draft.graph(y, hidden), CUDA)
    assert [n.op for n in result.nodes].count("npu.linear") == 2


def test_what_is_quantized_or_narrowed_stays(draft):
    graph = draft.graph(mixed(draft)[0])
    for other in ({"weight_quantization": "int8"}, {"precision": "bfloat16"}):
        assert recognize_token_mixing(graph, replace(CUDA, **other)) is graph


class OverTime(nn.Module):
    """A forecast from the steps of a series, and a gate of tokens by others (gMLP)."""

    def __init__(self):
        super().__init__()
        self.norm, self.gate, self.steps = nn.LayerNorm(40), nn.Linear(24, 24), nn.Linear(24, 12)

    def forward(self, x):
        kept, gating = x.chunk(2, -1)
        gated = kept * self.gate(self.norm(gating).transpose(1, 2)).transpose(1, 2)
        return self.steps(gated.permute(0, 2, 1)).permute(0, 2, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_no_copy_is_left(dtype):
    graph = npusim.extract_ir(OverTime().to(dtype).eval(), (torch.zeros(3, 24, 80, dtype=dtype),))
    result = run_passes(graph, CUDA)
    program = npusim.compile(graph, replace(CUDA, code_format=""))
    assert [n.op for n in result.nodes].count("npu.token_mixing") == 2
    stems = [program.kernels[c.kernel].name for c in program.methods[0].commands]
    assert sorted(stems) == ["norm", "pointwise", "token_mixing", "token_mixing"]

"""Passes at sizes that calls choose: the fusions of fixed sizes, wherever they can be proved."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.export import Dim

import npusim
from npusim.errors import SymbolicSizeError
from npusim.ir.rewriter import become, rewrite
from npusim.ir.symbolic import symbol
from npusim.passes import PIPELINE
from npusim.passes.recognize_attention import ATTENTION
from npusim.passes.run import run_passes
from tests.end_to_end.dynamic_models import MODELS

BATCH, SEQ = Dim("batch", max=4), Dim("seq", max=32)
LOWEST = torch.finfo(torch.float32).min


def of_tensors(q, lengths, rows, columns):
    """As transformers does: whether positions of one sequence are compared, and which are seen."""
    batch = torch.arange(q.shape[0])[:, None, None, None]
    positions = torch.arange(lengths).unsqueeze(0).expand(q.shape[0], -1)
    steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
    sequence = (steps != 1).cumsum(-1)
    rows, columns = rows[None, None], columns[None, None]
    same = sequence[batch, rows] == sequence[batch, columns]
    return same & (positions[batch, columns] <= positions[batch, rows])


MASKS = {
    "compared": lambda q, n, rows, columns: columns <= rows,
    "negated": lambda q, n, rows, columns: ~(columns > rows),
    "tensors": of_tensors,
    "triangle": lambda q, n, *_: torch.ones(n, n, dtype=torch.bool).tril(),
    "ones": lambda q, n, *_: torch.ones(n, n).tril().bool(),
    "zeros": lambda q, n, *_: torch.ones(n, n).triu(1) == 0,
    "hidden": lambda q, n, *_: torch.full((n, n), float("-inf")).triu(1),
    "scaled": lambda q, n, *_: (1.0 - torch.ones(n, n).tril()) * LOWEST,
    "filled": lambda q, n, rows, columns: torch.zeros(n, n).masked_fill(columns > rows, LOWEST),
    "batched": lambda q, n, rows, columns: (columns <= rows).expand(q.shape[0], 1, n, n),
    "window": lambda q, n, rows, columns: (columns <= rows) & (columns > rows - 32),
}
OTHERS = {
    "strict": lambda q, n, rows, columns: columns < rows + 2,
    "reverse": lambda q, n, rows, columns: columns >= rows,
    "narrow": lambda q, n, rows, columns: (columns <= rows) & (columns > rows - 31),
    "weak": lambda q, n, *_: torch.ones(n, n).triu(1) * -100.0,
    "filled": lambda q, n, rows, columns: torch.zeros(n, n).masked_fill(columns > rows, -1e9),
    "padded": lambda q, n, rows, columns: (columns <= rows) & (q[:, :1, None, :, 0] > 0),
    "parts": lambda q, n, rows, columns: (columns <= rows) & (columns // 4 == rows // 4),
}


class Masked(nn.Module):
    """Attention of a tensor to itself under a mask."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, x):
        n = x.shape[2]
        mask = self.mask(x, n, torch.arange(n)[:, None], torch.arange(n)[None, :])
        return nn.functional.scaled_dot_product_attention(x, x, x, mask)


def extracted(mask):
    model = Masked(mask).eval()
    example = (torch.randn(2, 3, 9, 4),)
    return model, npusim.extract_ir(model, example, dynamic_shapes=({0: BATCH, 2: SEQ},))


def attention_of(graph, cpu):
    """Returns (is_causal, whether there is a mask) of the attention that passes leave."""
    (node,) = (n for n in run_passes(graph, cpu).nodes if n.op == ATTENTION)
    return node.attrs["is_causal"], node.inputs[3] is not None


def check_agreement(model, graph):
    session = npusim.load(npusim.compile(graph))
    for batch, seq in ((4, 32), (3, 5), (1, 1)):
        x = torch.randn(batch, 3, seq, 4)
        torch.testing.assert_close(session(x)[0], model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MASKS)
def test_causal_masks(cpu, name):
    model, graph = extracted(MASKS[name])
    assert attention_of(graph, cpu) == (True, False)
    assert attention_of(npusim.specialize(graph, {"batch": 2, "seq": 9}), cpu) == (True, False)
    check_agreement(model, graph)


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_stay(cpu, name):
    model, graph = extracted(OTHERS[name])
    assert attention_of(graph, cpu) == (False, True)
    check_agreement(model, graph)


def test_masks_that_hide_nothing_go(cpu):
    model, graph = extracted(lambda q, n, rows, columns: (rows >= 0) & (columns < n))
    assert attention_of(graph, cpu) == (False, False)
    check_agreement(model, graph)


def test_a_node_that_calls_decide_about_stays_alone(draft):
    size = symbol("size", 1, 8)

    def visit(node, rewriter):
        small = size < (4 if node.type.rank == 2 else 100)
        return become(node, "aten.tanh.default", node.inputs) if small else None

    rank2, rank1 = draft.x(2, 3), draft.x(2, name="y")
    values = [draft.call("aten.relu.default", x) for x in (rank1, rank2, rank1)]
    graph = rewrite(draft.graph(*values), visit)
    assert [n.op.split(".")[1] for n in graph.nodes] == ["tanh", "relu", "tanh"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n == "windows")) for n in MODELS]
)
def test_fusions_are_those_of_fixed_sizes(cpu, name):
    case = MODELS[name]
    model, example = case.model().eval(), case.arguments(*case.sizes[0])
    graph = npusim.extract_ir(model, example, dynamic_shapes=case.shapes)
    fixed = npusim.specialize(graph, {s.name: min(s.low + 6, s.high) for s in graph.symbols})

    def fused(graph):
        for run in PIPELINE:
            graph = _not_skipped(run, graph, cpu)
        names = ("npu.linear", "npu.conv", "npu.rope", ATTENTION, "norm", "softmax")
        return Counter(n.op for n in graph.nodes if any(part in n.op for part in names))

    assert fused(graph) == fused(fixed)


def _not_skipped(run, graph, target):
    try:
        return run(graph, target)
    except SymbolicSizeError as error:
        pytest.fail(f"{run.__name__} gave up the whole graph: {error}")

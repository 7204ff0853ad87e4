"""The whole pipeline on extracted models: same results, legal graphs, nothing left to do."""

import re

import pytest
import torch

from npusim.frontends.torch_export import extract_ir
from npusim.ir.verify import verify_graph
from npusim.ops.reference import check_node, run_graph
from npusim.passes import PIPELINE
from npusim.passes.run import run_passes
from tests.models import MODELS, build

# Of what others have as well.
LONG = {"densenet121", "efficientnet_b0", "mobilenet_v2", "resnet101"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in sorted(MODELS)],
)
def case(request):
    model, inputs = build(request.param, small=True)
    graph = extract_ir(model, inputs, model_name=request.param)
    return graph, model.state_dict(), inputs


def test_results_stay(case, cpu):
    graph, weights, inputs = case
    after = run_passes(graph, cpu)
    for node in after.nodes:
        check_node(node, after.types)
    expected = run_graph(graph, inputs, weights)
    for a, b in zip(run_graph(after, inputs, weights), expected, strict=True):
        scale = b.abs().max().item() or 1.0
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5 * scale)


def test_every_pass_is_idempotent(case, cpu):
    graph = case[0]
    for run in PIPELINE:
        graph = verify_graph(run(graph, cpu))
        assert run(graph, cpu) == graph, run.__name__


def test_patterns_leave_nothing_behind(case, cpu):
    after = run_passes(case[0], cpu)
    static = after.static_values
    ops = {n.op for n in after.nodes if n.outputs[0].name not in static}
    assert not {op for op in ops if re.match(r"aten\.(batch_norm|linear|conv|clone|dropout)", op)}

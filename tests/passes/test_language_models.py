"""The whole pipeline on language models: the same results, and few commands a layer."""

import collections

import pytest
import torch

from npusim.analysis.shapes import VIEWS
from npusim.frontends.language_model import extract_llm
from npusim.ops.reference import GraphRun, check_node
from npusim.passes import PIPELINE
from npusim.passes.run import run_passes
from tests.passes.conftest import random_tensor, weights_of

architectures = pytest.importorskip("tests.end_to_end.architectures")

CONTEXT, CHUNK = 64, 16
COMMANDS = 8  # a layer: norm, qkv, rope and append, attention, output, norm, gate and up, down
NAMES = ("llama3", "gemma2")
LONG = ("qwen2-sliding", "qwen3", "phi3", "smollm3")
IN_FLOAT32 = ("llama3", "smollm3")
# Norms of queries and keys; norms and additions after both halves; gate, up and product apart.
MORE = {"qwen3": 2, "gemma2": 4, **dict.fromkeys(IN_FLOAT32, 2)}
ONCE = 9  # embedding, angles, last norm, logits, position; or a layer's two appends without rope


# Of each kind one.
@pytest.fixture(
    scope="module",
    params=[*NAMES, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)],
)
def methods(request):
    dtype = torch.float32 if request.param in IN_FLOAT32 else torch.bfloat16
    model = architectures.small_model(request.param, dtype)
    module = extract_llm(model, max_context=CONTEXT, prefill_chunk=CHUNK)
    return request.param, dict(module.methods)


def run(graph, seed):
    """Runs a graph on seeded weights, inputs and caches, at a position in the middle."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [random_tensor(v.type, generator) for v in graph.inputs]
    weights = {k: w * 0.2 if w.dim() > 1 else w for k, w in weights_of(graph, generator).items()}
    states = {v.name: random_tensor(v.type, generator) for v in graph.states}
    states["position"] = torch.tensor([CONTEXT // 2 + 3])
    run = GraphRun(graph, inputs, weights, states)
    collections.deque(run, maxlen=0)
    return [*run.outputs(), *run.updates().values()]


def test_results_stay(methods, cpu):
    for graph in methods[1].values():
        after = run_passes(graph, cpu)
        for node in after.nodes:
            check_node(node, after.types)
        for a, b in zip(run(after, 1), run(graph, 1), strict=True):
            scale = max(b.abs().max().item(), 1.0)
            tolerance = 4e-2 if a.dtype == torch.bfloat16 else 2e-5
            torch.testing.assert_close(a, b, rtol=0, atol=tolerance * scale)


def test_every_pass_is_idempotent(methods, cpu):
    for graph in methods[1].values():
        for step in PIPELINE:
            graph = step(graph, cpu)
            assert step(graph, cpu) == graph, step.__name__


def test_a_token_takes_few_commands(methods, cpu):
    name, graphs = methods
    graph = run_passes(graphs["decode"], cpu)
    work = [n for n in graph.nodes
            if n.op not in VIEWS and n.outputs[0].name not in graph.static_values]  # fmt: skip
    ops = collections.Counter(n.op for n in work)
    layers = ops["npu.cached_attention"]
    assert layers == 2 and ops["npu.gated_linear"] == (0 if name in IN_FLOAT32 else layers)
    assert len(work) <= layers * (COMMANDS + MORE.get(name, 0)) + ONCE + (name == "gemma2"), ops
    assert not ops["aten.scaled_dot_product_attention.default"] + ops["aten.cat.default"]

"""run_passes: dumps, progress, refusal of broken passes, and time that grows with the graph."""

from dataclasses import replace

import pytest

from npusim.errors import GraphError
from npusim.ir.graph import Node, Output, Value
from npusim.passes import PIPELINE
from npusim.passes.remove_noops import remove_noops
from npusim.passes.run import run_passes
from npusim.passes.simplify_views import simplify_views


def small(draft):
    return draft.graph(draft.call("aten.clone.default", draft.x(2)))


def test_dump(draft, cpu, tmp_path):
    folder = tmp_path / "dump"
    run_passes(small(draft), cpu, pipeline=(remove_noops, simplify_views), dump_dir=folder)
    texts = {p.name: p.read_text() for p in sorted(folder.iterdir())}
    assert list(texts) == ["00_input.txt", "01_remove_noops.txt", "02_simplify_views.txt"]
    assert "aten.clone" in texts["00_input.txt"]
    assert "return output=%x" in texts["01_remove_noops.txt"]
    assert texts["02_simplify_views.txt"] == "unchanged\n"


def test_progress(draft, cpu):
    seen = []
    run_passes(small(draft), cpu, progress=lambda *step: seen.append(step))
    assert [name for name, _, _ in seen] == [run.__name__ for run in PIPELINE]
    assert [(i, n) for _, i, n in seen] == [(i, len(PIPELINE)) for i in range(len(PIPELINE))]


def test_an_illegal_graph_names_the_pass(draft, cpu):
    def forget_operand(graph, target):
        node = Node("y", "aten.relu.default", ("nobody",), (Value("y", graph.inputs[0].type),))
        return replace(graph, nodes=(node,), outputs=(Output("output", "y"),))

    with pytest.raises(GraphError, match=r"Pass forget_operand broke the graph: .*'nobody'"):
        run_passes(small(draft), cpu, pipeline=(forget_operand,))


def test_a_changed_signature_names_the_pass(draft, cpu):
    def rename_output(graph, target):
        return replace(graph, outputs=(Output("other", graph.outputs[0].value),))

    with pytest.raises(GraphError, match="Pass rename_output broke the graph"):
        run_passes(small(draft), cpu, pipeline=(rename_output,))


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "words"),
    [
        ("aten.permute.default", ("x",), {}, "the attribute 'dims' is missing"),
        ("aten.permute.default", ("x",), {"dims": "all"}, "expected a list of int"),
        ("aten.relu.default", (), {}, "the operand 'self' is missing"),
        ("aten.add.Tensor", ("x",), {}, "the operand 'other' is missing"),
        ("aten.conv2d.default", ("x",), {}, "the operand 'weight' is missing"),
        ("aten.batch_norm.default", ("x", None), {}, "the attribute 'training' is missing"),
        ("aten.view.default", (None,), {"size": (2,)}, "the operand 'self' is missing"),
        ("npu.linear", ("x",), {}, "missing 3 required positional arguments"),
        ("npu.pointwise", ("x",), {"program": ()}, "missing 1 required keyword-only argument"),
        ("npu.conv", ("x", "x", None, None), {"algorithm": "auto"}, "missing 7 required"),
    ],
)
def test_malformed_nodes_are_refused_by_name(draft, cpu, op, operands, attrs, words):
    graph = small(draft)
    node = Node("y", op, operands, (Value("y", graph.inputs[0].type),), attrs)
    broken = replace(graph, nodes=(node,), outputs=(Output("output", "y"),))
    with pytest.raises(GraphError, match=rf"[Nn]ode 'y' \({op}\).*{words}"):
        run_passes(broken, cpu)


def test_work_grows_with_the_graph_not_its_square(draft, cpu, monkeypatch):
    """Counts formulas read, the unit of work of the pattern passes, on a graph twice as long."""
    from npusim.analysis import compose

    calls = []
    original = compose.find
    monkeypatch.setattr(compose, "find", lambda name: calls.append(name) or original(name))

    def formulas(length):
        fresh = type(draft)()
        y = fresh.x(4, 8)
        for _ in range(length):
            z = fresh.call("aten.linear.default", y, fresh.w(8, 8), None)
            z = fresh.call("aten.tanh.default", fresh.call("aten.sigmoid.default", z))
            y = fresh.call("aten.add.Tensor", z, y, alpha=1)
        graph = fresh.graph(y)
        calls.clear()
        run_passes(graph, cpu)
        return len(calls)

    assert formulas(200) < 2.2 * formulas(100)

"""A graph whose nodes declare what their operators do not give is refused wherever it comes in."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import npusim
from npusim.errors import GraphError
from npusim.ir.graph import Graph, Node, Output, Value
from npusim.ir.json import graph_from_json, graph_to_json
from npusim.ir.symbolic import symbol
from npusim.ir.types import TensorType
from npusim.ops.check_types import _some, check_types, inferred

X = Value("x", TensorType("float32", (2, 3)))


def graph_of(op: str, declared: TensorType, x: Value = X, **attrs: object) -> Graph:
    node = Node("y", op, ("x",), (Value("y", declared),), attrs)  # type: ignore[arg-type]
    return Graph("g", (x,), (Output("output", "y"),), (), (), (node,))


def linear_tree() -> dict:
    return {
        "format": "npusim.ir",
        "version": [1, 2],
        "name": "g",
        "inputs": [{"name": "x", "dtype": "float32", "shape": [2, 3]}],
        "outputs": [{"name": "output", "value": "y"}],
        "weights": [{"name": "w", "key": "w", "dtype": "float32", "shape": [5, 3]}],
        "constants": [],
        "nodes": [
            {
                "name": "fc",
                "op": "aten.linear.default",
                "inputs": ["x", "w", None],
                "outputs": [{"name": "y", "dtype": "float32", "shape": [2, 5]}],
                "attrs": {},
            }
        ],
    }


def test_the_honest_graph_is_taken(tmp_path):
    path = tmp_path / "g.json"
    path.write_text(json.dumps(linear_tree()))
    assert npusim.compile(path).output_specs[0].shape == (2, 5)


@pytest.mark.parametrize(
    "key, value",
    [
        ("shape", [2, 5, 5]),
        ("shape", [2, 6]),
        ("shape", [2]),
        ("shape", [0, 5]),
        ("dtype", "int32"),
        ("dtype", "float16"),
    ],
)
def test_a_file_that_declares_another_result_is_refused(tmp_path, key, value):
    tree = linear_tree()
    tree["nodes"][0]["outputs"][0][key] = value
    path = tmp_path / "g.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(GraphError, match=r"node 'fc' \(aten.linear.default\) declares"):
        npusim.IR.load(path)
    module = {"format": "npusim.module", "version": [1, 0], "name": "m", "facts": {}}
    path.write_text(json.dumps({**module, "methods": {"forward": tree}}))
    with pytest.raises(GraphError, match="node 'fc'"):
        npusim.Module.load(path)


IMAGE = TensorType("float32", (1, 4, 6, 6))
KERNEL = TensorType("float32", (4, 4, 3, 3))


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "problem"),
    [
        ("avg_pool2d", [IMAGE], {"kernel_size": (2, 2), "divisor_override": 0}, "the divisor is 0"),
        ("avg_pool2d", [IMAGE], {"kernel_size": (2, 0)}, "kernel_size"),
        ("avg_pool2d", [IMAGE], {"kernel_size": (2, 2), "stride": (0, 1)}, "stride"),
        ("avg_pool2d", [IMAGE], {"kernel_size": (2, 2), "padding": (2, 2)}, "half of the kernel"),
        ("avg_pool2d", [IMAGE], {"kernel_size": (7, 2)}, "does not fit into 6"),
        ("conv2d", [IMAGE, KERNEL, None], {"groups": 0}, "groups is 0"),
        ("conv2d", [IMAGE, KERNEL, None], {"stride": (0, 1)}, "stride"),
        ("conv2d", [IMAGE, KERNEL, None], {"padding": (-1, 0)}, "padding"),
        ("pixel_shuffle", [IMAGE], {"upscale_factor": 0}, "cannot be shuffled by 0"),
        ("pixel_shuffle", [IMAGE], {"upscale_factor": 3}, "no multiple of 9"),
        ("channel_shuffle", [IMAGE], {"groups": 0}, "in 0 groups"),
    ],
)
def test_what_pytorch_refuses_has_no_type(op, operands, attrs, problem):
    with pytest.raises(npusim.Error, match=problem):
        inferred(f"aten.{op}.default", operands, attrs)


def test_a_graph_made_in_memory_is_refused_by_compile():
    with pytest.raises(GraphError, match="node 'y'"):
        npusim.compile(graph_of("aten.relu.default", TensorType("float32", (2, 4))))
    with pytest.raises(GraphError, match="node 'y'"):
        npusim.partition(graph_of("aten.relu.default", TensorType("float32", (2, 4))))


def test_the_order_of_storage_is_not_the_ops_business():
    declared = TensorType("float32", (2, 3), (1, 0))
    check_types(graph_of("aten.relu.default", declared))


@pytest.mark.parametrize(
    "attrs",
    [{}, {"dim": 3}, {"dim": -4}, {"dim": "1"}, {"dim": None}, {"dim": 1.0}, {"dim": 0, "a": 1}],
)
def test_attributes_are_held_to_the_schema(attrs):
    with pytest.raises(GraphError, match="node 'y'"):
        check_types(graph_of("aten.unsqueeze.default", TensorType("float32", (2, 3, 1)), **attrs))


def test_operators_without_a_rule_are_left_to_who_runs_them():
    check_types(graph_of("mylib.anything.default", TensorType("float32", (7,)), whatever=1))


def test_symbolic_results_are_proved():
    n = symbol("n", 1, 8)
    x = Value("x", TensorType("float32", (n, 3)))
    good = graph_of("aten.view.default", TensorType("float32", (3 * n,)), x, size=(3 * n,))
    assert check_types(good) is good
    assert graph_from_json(graph_to_json(good)) == good
    for shape in ((3 * n + 1,), (2 * n,), (24,)):
        bad = graph_of("aten.view.default", TensorType("float32", shape), x, size=(3 * n,))
        with pytest.raises(GraphError, match="node 'y'"):
            check_types(bad)


def test_undecided_expressions_are_tried_at_every_value():
    n = symbol("n", 1, 8)
    x = Value("x", TensorType("float32", (1, 1, n)))
    rest = {"kernel_size": (2,), "stride": (3,), "padding": (1,), "dilation": (1,)}
    right = TensorType("float32", (1, 1, (n + 1) // 3 + 1 - (n + 3) // 3 + (n + 2) // 3))
    for declared in (right, TensorType("float32", (1, 1, n))):
        graph = graph_of("aten.max_pool1d.default", declared, x, ceil_mode=True, **rest)
        with pytest.raises(GraphError, match="for n="):
            check_types(replace(graph, name="other"))


@pytest.mark.parametrize(
    ("count", "tried"),
    [(1, [0]), (2, [0, 1]), (4, [0, 1, 2, 3]), (9, [0, 1, 4, 5, 7, 8]), (10, [0, 1, 4, 5, 8, 9])],
)
def test_of_many_sizes_the_ends_and_the_middle_are_tried(count, tried):
    sizes = [3 + 2 * n for n in range(count)]
    assert _some(sizes) == [sizes[n] for n in tried]

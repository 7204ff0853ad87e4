"""Graphs with symbolic sizes: their invariants, their file, and giving the sizes values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from npusim.errors import GraphError, ShapeError
from npusim.ir.graph import Graph, Node, Output, Value
from npusim.ir.json import graph_from_text, graph_to_json, graph_to_text
from npusim.ir.printer import format_graph
from npusim.ir.specialize import at_shapes, bind_sizes, specialize
from npusim.ir.symbolic import symbol
from npusim.ir.types import TensorType
from npusim.ir.verify import verify_graph

B, S = symbol("batch", 1, 8), symbol("seq", 2, 64)


def graph(shape: tuple[int, ...] = (B, 4 * S)) -> Graph:
    """Returns x[batch, 4*seq] as [batch*seq, 4], scaled by seq."""
    x = Value("x", TensorType("float32", shape))
    y = Value("y", TensorType("float32", (B * S, 4)))
    z = Value("z", y.type)
    return Graph(
        name="g",
        inputs=(x,),
        outputs=(Output("z", "z"),),
        weights=(),
        constants=(),
        nodes=(
            Node("y", "aten.view.default", ("x",), (y,), {"size": (B * S, 4)}),
            Node("z", "aten.mul.Scalar", ("y",), (z,), {"other": S}),
        ),
    )


def test_the_file_has_the_sizes() -> None:
    text = graph_to_text(verify_graph(graph()))
    assert graph_from_text(text) == graph()
    tree = json.loads(text)
    assert tree["version"] == [1, 3]
    assert tree["symbols"] == [
        {"name": "batch", "min": 1, "max": 8},
        {"name": "seq", "min": 2, "max": 64},
    ]
    assert tree["inputs"][0]["shape"] == ["batch", "4*seq"]
    assert tree["nodes"][0]["attrs"]["size"] == [{"size": "batch*seq"}, 4]


def test_a_static_graph_is_written_as_before() -> None:
    tree = graph_to_json(specialize(graph(), {"batch": 2, "seq": 3}))
    assert tree["version"] == [1, 2] and "symbols" not in tree
    assert tree["nodes"][1]["attrs"] == {"other": 3}


def test_text_shows_the_sizes() -> None:
    assert "x: float32[batch, 4*seq]" in format_graph(graph())


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t["symbols"].pop(), "there is no symbol seq"),
        (lambda t: t["symbols"].append(t["symbols"][0]), "'batch' twice"),
        (lambda t: t["symbols"][0].update(max=0), "ranges from 1 to 0"),
        (lambda t: t["symbols"][0].update(name="a b"), "cannot name a size"),
        (lambda t: t["inputs"][0].update(shape=["batch", "seq*seq"]), "tells the size seq"),
        (lambda t: t["inputs"][0].update(shape=["batch", "batch + seq"]), "tells the size seq"),
        (lambda t: t["inputs"][0].update(shape=["batch", "seq - 3"]), "0 or more"),
        (lambda t: t["inputs"][0].update(shape=["batch", "seq //"]), "is not a size"),
        (lambda t: t["nodes"][1]["attrs"].update(other={"size": 3}), "must be a string"),
        (lambda t: t["nodes"][1]["attrs"].update(other={"size": "seq", "x": 1}), "only objects"),
    ],
)
def test_files_that_are_refused(change: Change, words: str) -> None:
    tree = graph_to_json(graph())
    change(tree)
    with pytest.raises(GraphError, match=words):
        graph_from_text(json.dumps(tree))


def test_sizes_of_states_are_fixed() -> None:
    broken = Graph(
        **{
            **{n: getattr(graph(), n) for n in ("name", "inputs", "outputs", "nodes")},
            "weights": (),
            "constants": (),
            "states": (Value("cache", TensorType("float32", (S,))),),
        }
    )
    with pytest.raises(GraphError, match="'cache' has shape"):
        verify_graph(broken)


def test_some_sizes_can_be_fixed() -> None:
    part = specialize(graph(), {"batch": 3})
    assert [s.name for s in part.symbols] == ["seq"]
    assert part.types["y"].shape == (3 * S, 4)
    whole = specialize(part, {"seq": 5})
    assert whole.types["y"].shape == (15, 4) and not whole.symbols
    assert at_shapes(graph(), [(3, 20)]) == whole


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"length": 2}, "no symbolic size 'length'; it has: batch 1 … 8, seq 2 … 64"),
        ({"seq": 1}, "seq is 1; 2 … 64 is possible"),
    ],
)
def test_sizes_that_are_none(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        specialize(graph(), sizes)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((9, 8), (9,)), r"input x: dimension 0 is 9; batch is 1 … 8"),
        (((2, 10), (2,)), r"dimension 1 is 10, which is not of the form 4\*seq"),
        (((2, 260), (2,)), r"dimension 1 is 260; 4\*seq is 8 … 256 \(seq 2 … 64\)"),
        (((2, 8), (3,)), r"input y: dimension 0 is 3, expected batch = 2"),
        (((2, 8, 1), (2,)), r"input x has 3 dimensions"),
    ],
)
def test_shapes_that_do_not_fit(shapes: tuple[tuple[int, ...], ...], words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        bind_sizes([("x", (B, 4 * S)), ("y", (B,))], shapes)

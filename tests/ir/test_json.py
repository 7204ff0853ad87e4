"""The JSON form: exact round trips, and refusals that say where the file is wrong."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import Error, GraphError
from npusim.ir.graph import Graph, Source
from npusim.ir.json import graph_from_json, graph_from_text, graph_to_json, graph_to_text
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.ir.verify import verify_graph

F32 = TensorType("float32", (2, 3))


def sample() -> Graph:
    builder = GraphBuilder("sample")
    x = builder.input("x", F32)
    w = builder.weight("fc.weight", TensorType("float32", (4, 3)), aliases=("tied.weight",))
    table = builder.weight("table", TensorType("int64", (5,)), key="a.table", persistent=False)
    c = builder.constant("c", TensorType("float32", ()), b"\0\0\0\x40")
    y = builder.node(
        "aten.linear.default",
        [x, w, None],
        TensorType("float32", (2, 4)),
        source=Source("fc", "model.py", 12),
    )
    parts = builder.nodes(
        "aten.split.Tensor", [y], [TensorType("float32", (2, 2))] * 2, {"split_size": 2, "dim": 1}
    )
    z = builder.node(
        "mylib.join.default",
        [*parts, c],
        TensorType("bfloat16", (2, 3, 4, 5)).with_order((0, 2, 3, 1)),
        {
            "tensors": 3,
            "floats": (1.0, -0.0, 1e300, math.inf, -math.inf),
            "mixed": (1, True, None, "text", ((), (2,))),
        },
    )
    builder.output("first", z)
    builder.output("again", z)
    builder.output("weight", table)
    return builder.build()


def test_a_file_loads_as_the_graph_that_was_saved(tmp_path: Path) -> None:
    sample().save(tmp_path / "g.json")
    assert Graph.load(tmp_path / "g.json") == sample()
    assert graph_from_json(graph_to_json(sample())) == sample()


def test_floats_stay_floats_and_integers_integers() -> None:
    attrs = graph_from_text(graph_to_text(sample())).nodes[-1].attrs
    assert [type(v) for v in attrs["mixed"][:3]] == [int, bool, type(None)]  # type: ignore[index]
    assert all(type(v) is float for v in attrs["floats"])  # type: ignore[union-attr]
    assert math.copysign(1.0, attrs["floats"][1]) == -1.0  # type: ignore[arg-type,index]


def test_nan_survives() -> None:
    builder = GraphBuilder()
    x = builder.input("x", F32)
    builder.output("o", builder.node("aten.add.Scalar", [x], F32, {"other": math.nan}))
    loaded = graph_from_text(graph_to_text(builder.build()))
    assert math.isnan(loaded.nodes[0].attrs["other"])  # type: ignore[arg-type]


def test_one_node_stands_on_one_line() -> None:
    lines = graph_to_text(sample()).splitlines()
    assert sum('"op":' in line for line in lines) == len(sample().nodes)


attrs = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)


@given(attr=attrs, data=st.binary(max_size=40))
def test_any_attribute_and_constant_survives(attr: Any, data: bytes) -> None:
    builder = GraphBuilder()
    c = builder.constant("c", TensorType("uint8", (len(data),)), data)
    builder.output("o", builder.node("my.op", [c], F32, {"a": attr}))
    assert graph_from_text(graph_to_text(builder.build())) == builder.build()


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(tree: dict[str, Any]) -> None:
        *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        target: Any = tree
        for step in parents:
            target = target[step]
        if value is ...:
            del target[last]
        else:
            target[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("format", "onnx"), '"format" must be'),
        (_set("version", [2, 0]), "version 2.0; this npusim reads version 1.x"),
        (_set("version", "1.0"), r"\$.version must be"),
        (_set("version", [True, 0]), r"\$.version must be"),
        (_set("name", 3), r"\$.name must be a string, not an integer"),
        (_set("nodes", ...), r"\$.nodes is missing"),
        (_set("nodes", {}), r"\$.nodes must be a list, not an object"),
        (_set("nodes.0", 1), r"\$.nodes\[0\] must be an object"),
        (_set("nodes.0.extra", 1), r"\$.nodes\[0\] has an unknown key 'extra'"),
        (_set("nodes.0.inputs.0", 1), r"\$.nodes\[0\].inputs\[0\] must be a string"),
        (_set("nodes.0.inputs.0", "nowhere"), "'nowhere', is not defined"),
        (_set("nodes.0.source.line", "1"), r"\$.nodes\[0\].source.line must be an integer"),
        (_set("nodes.1.attrs.dim", {"x": 1}), r"\$.nodes\[1\].attrs.dim: the only object"),
        (_set("nodes.1.attrs.dim", {"float": "1"}), "the only object"),
        (_set("nodes.1.attrs.dim", 2**63), "beyond 64 bits"),
        (_set("inputs.0.shape", [2, -3]), "dimensions are ints, 0 or more"),
        (_set("inputs.0.shape", [2.0]), r"\$.inputs\[0\].shape\[0\] must be an integer"),
        (_set("inputs.0.shape", [True]), "not true or false"),
        (_set("inputs.0.shape", [2**40, 2**40]), "beyond what 64 bits"),
        (_set("inputs.0.shape", [0, 2**80]), "beyond what 64 bits"),
        (_set("inputs.0.dtype", "complex32"), "has dtype 'complex32'; known are float32"),
        (_set("inputs.0.order", [0, 0]), "not a permutation"),
        (_set("inputs.0.name", ""), "1 to 4096 characters"),
        (_set("inputs.0.name", "a\nb"), "cannot be printed"),
        (_set("inputs.0.name", "\ud800"), "not valid Unicode"),
        (_set("weights.0.persistent", 0), "must be true or false"),
        (_set("weights.1.aliases", ["fc.weight"]), "Two weights have the key 'fc.weight'"),
        (_set("constants.0.data", "!"), r"\$.constants\[0\].data is not base64"),
        (_set("constants.0.data", "AAAA"), "4 bytes, but holds 3"),
        (_set("outputs.0.value", "nowhere"), "not defined"),
        (_set("outputs", []), "has no outputs"),
    ],
)
def test_a_wrong_file_is_refused(change: Callable[[dict[str, Any]], None], message: str) -> None:
    tree = json.loads(graph_to_text(sample()))
    change(tree)
    with pytest.raises(GraphError, match=message):
        graph_from_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[1, 2", "not JSON"),
        (b"\xff\xfe\xfa", "not JSON"),
        ("[]", '"format" must be'),
        ("null", '"format" must be'),
        ('{"format": "npusim.ir", "format": "npusim.ir"}', "the key 'format' twice"),
        ('{"format": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("1" * 10_000, "not JSON"),
    ],
)
def test_what_is_not_a_graph_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        graph_from_text(text)


def test_an_infinite_number_is_refused() -> None:
    text = graph_to_text(sample()).replace("1e+300", "1e+999")
    with pytest.raises(GraphError, match="beyond float64"):
        graph_from_text(text)


def test_a_newer_minor_version_may_add_keys() -> None:
    tree = json.loads(graph_to_text(sample()))
    tree["version"], tree["later"] = [1, 7], {"anything": 1}
    tree["nodes"][0]["later"] = True
    assert graph_from_json(tree) == sample()


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"none\.json cannot be read: No such file"):
        Graph.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(GraphError, match=r"bad\.json: This is not an npusim graph"):
        Graph.load(tmp_path / "bad.json")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_files_are_refused_or_sound(data: st.DataObject) -> None:
    text = bytearray(graph_to_text(sample()).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place] = data.draw(st.integers(32, 126))
    try:
        graph = graph_from_text(bytes(text))
    except Error as error:
        assert str(error)
    else:  # a name or a number that may as well be another one
        verify_graph(graph)
        assert graph_from_text(graph_to_text(graph)) == graph

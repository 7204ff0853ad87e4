"""Pictures: complete, well-formed, safe to open, and quick for large graphs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

from npusim.ir.graph import Graph, Source
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.ir.visualize import to_html, to_mermaid, to_svg

F32 = TensorType("float32", (2, 3))
SVG = "{http://www.w3.org/2000/svg}"


def residual(count: int, modules: int = 4) -> Graph:
    builder = GraphBuilder("net")
    values = [builder.input("x", F32)]
    for i in range(count):
        source = Source(f"layers.{i * modules // count}.add", "m.py", i)
        earlier = values[max(0, len(values) - 3)]
        values.append(builder.node("aten.add.Tensor", [values[-1], earlier], F32, source=source))
    builder.output("result", values[-1])
    return builder.build()


def test_mermaid_shows_every_node_and_arrow() -> None:
    text = to_mermaid(residual(5))
    assert text.startswith("flowchart TD\n")
    assert text.count("add.Tensor") == 5
    # The first two nodes read x twice; every later one reads two values. One arrow to the output.
    assert text.count("-->") == 1 + 2 * 4 + 1
    assert "float32#91;2x3#93;" in text


def test_mermaid_draws_modules_as_one_when_there_are_many_nodes() -> None:
    text = to_mermaid(residual(400), max_nodes=10)
    assert text.count("[[") == 4
    assert "layers.0.add<br/>100 nodes" in text
    assert text.count("-->") == 5, "what crosses a border is one arrow"


def test_graphs_without_modules_are_cut_into_runs() -> None:
    builder = GraphBuilder()
    value = builder.input("x", F32)
    for _ in range(100):
        value = builder.node("aten.relu.default", [value], F32)
    builder.output("o", value)
    text = to_mermaid(builder.build(), max_nodes=7)
    assert text.count("[[") == 7


def test_svg_is_well_formed_and_complete() -> None:
    root = ET.fromstring(to_svg(residual(30)))
    groups = root.findall(f"{SVG}g")
    assert len(groups) == 32
    assert len(root.findall(f"{SVG}path")) == 1 + 2 * 29 + 1
    boxes = {(g.find(f"{SVG}rect").get("x"), g.find(f"{SVG}rect").get("y")) for g in groups}  # type: ignore[union-attr]
    assert len(boxes) == 32, "no two boxes at one place"
    assert "aten.add.Tensor(%x, %x)" in groups[1].find(f"{SVG}title").text  # type: ignore[union-attr,operator]


def test_names_cannot_inject_markup() -> None:
    evil = '</title><script>alert("1")</script>`|]\'&'
    builder = GraphBuilder(evil)
    x = builder.input(evil, F32)
    builder.output(evil, builder.node(f"aten.{evil}.default", [x], F32))
    graph = builder.build()
    ET.fromstring(to_svg(graph))
    assert "<script>alert" not in to_html(graph)
    labels = re.findall(r'"(.*)"', to_mermaid(graph))
    assert len(labels) == 3
    assert all(re.fullmatch(r"(<br/>|#\d+;|[\w ._\-,:()])*", label) for label in labels)


def test_the_page_needs_no_network() -> None:
    page = to_html(residual(3))
    HTMLParser().feed(page)
    assert not re.search(r"(src|href)\s*=", page)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_large_graphs_are_drawn() -> None:
    graph = residual(5000)
    assert to_svg(graph).count("<g ") == 5002
    assert to_mermaid(graph).count("\n") < 1000

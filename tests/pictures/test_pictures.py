"""Pictures: complete, well-formed, safe to open, true to the graph, and quick for large graphs."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from html import unescape
from html.parser import HTMLParser

import pytest

from npusim.errors import Error
from npusim.ir.graph import Graph, Source
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.pictures import Marks, to_html, to_mermaid, to_png, to_svg
from npusim.pictures.layers import arrange
from npusim.pictures.outline import GROUP, NODE, Box, outline

F32 = TensorType("float32", (2, 3))
SVG = "{http://www.w3.org/2000/svg}"


def residual(count: int, modules: int = 4) -> Graph:
    """A chain of additions, each of the last value and the one two before."""
    builder = GraphBuilder("net")
    values = [builder.input("x", F32)]
    for i in range(count):
        source = Source(f"layers.{i * modules // count}.add", "m.py", i)
        earlier = values[max(0, len(values) - 3)]
        values.append(builder.node("aten.add.Tensor", [values[-1], earlier], F32, source=source))
    builder.output("result", values[-1])
    return builder.build()


def weighted() -> Graph:
    """A product whose weight is transposed at load."""
    builder = GraphBuilder("net")
    x = builder.input("x", F32)
    weight = builder.weight("fc.weight", TensorType("float32", (4, 3)))
    turned = builder.node("aten.t.default", [weight], TensorType("float32", (3, 4)))
    y = builder.node("aten.mm.default", [x, turned], TensorType("float32", (2, 4)))
    builder.output("y", y)
    return builder.build()


def visited_twice() -> Graph:
    """Nodes of module `a`, then one of `b` that reads them, then one of `a` that reads `b`."""
    builder = GraphBuilder("net")
    value = builder.input("x", F32)
    for module in ("a.first", "a.second", "b.only", "a.third"):
        value = builder.node("aten.relu.default", [value], F32, source=Source(module, "m.py", 1))
    builder.output("y", value)
    return builder.build()


def test_every_node_is_in_one_box() -> None:
    drawn = outline(residual(30))
    titles = [box.details.split(" ")[0] for box in drawn.root.walk() if box.kind == NODE]
    assert len(titles) == len(set(titles)) == 30
    assert [box.title for box in drawn.root.inside if box.kind == GROUP] == ["layers"]
    (layers,) = (box for box in drawn.root.inside if box.kind == GROUP)
    assert [box.title for box in layers.inside] == ["0.add", "1.add", "2.add", "3.add"]


def test_a_module_that_others_stand_between_is_drawn_twice() -> None:
    drawn = outline(visited_twice())
    assert [box.title.split(" ")[0] for box in drawn.root.inside] == [
        *("x", "a", "b.only", "a.third", "y")
    ]
    assert_rows_follow_the_values(drawn.root)


def test_interleaved_branches_are_one_group_each() -> None:
    builder = GraphBuilder("net")
    left = right = builder.input("x", F32)
    for _ in range(3):  # in turns, as exporters write parallel branches
        left = builder.node("aten.relu.default", [left], F32, source=Source("left.act", "m.py", 1))
        right = builder.node(
            "aten.abs.default", [right], F32, source=Source("right.act", "m.py", 2)
        )
    builder.output("y", builder.node("aten.add.Tensor", [left, right], F32))
    groups = [b for b in outline(builder.build()).root.inside if b.kind == GROUP]
    assert [(box.title, len(box.inside)) for box in groups] == [("left.act", 3), ("right.act", 3)]


def test_what_runs_at_load_is_folded_into_who_reads_it() -> None:
    drawn = outline(weighted())
    assert drawn.folded == 1
    (product,) = (box for box in drawn.root.walk() if box.kind == NODE)
    assert product.lines == ["w 4×3"]
    assert "weight fc.weight: float32[4, 3]" in product.details
    assert outline(weighted(), load_time=True).folded == 0


def test_lines_say_what_they_carry() -> None:
    text = to_svg(weighted())
    assert ">2×3<" in text
    assert ">2×4<" in text
    builder = GraphBuilder("net")
    x = builder.input("x", TensorType("int64", ()))
    y = builder.node("aten.to.dtype", [x], F32, {"dtype": "float32"})
    builder.output("y", y)
    assert ">int64 scalar<" in to_svg(builder.build()), "a dtype unlike most is written"


def assert_rows_follow_the_values(group: Box) -> None:
    """Every link goes to the very next row, and each read value arrives along links."""
    arrangement = arrange(group)
    row_of = {id(c): i for i, row in enumerate(arrangement.rows) for c in row.cells}
    arrived = set()
    for link in arrangement.links:
        assert row_of[id(link.target)] == row_of[id(link.source)] + 1
        if link.target.box is not None:
            arrived.add((id(link.target.box), link.value))
    made = {name for box in group.inside for name in box.makes} | set(group.reads)
    for box in group.inside:
        assert {(id(box), name) for name in box.reads if name in made} <= arrived
        if box.kind == GROUP:
            assert_rows_follow_the_values(box)


@pytest.mark.parametrize("graph", [residual(40), weighted(), visited_twice()], ids=str)
def test_no_line_runs_behind_a_box(graph: Graph) -> None:
    assert_rows_follow_the_values(outline(graph).root)
    root = ET.fromstring(to_svg(graph))
    boxes = []
    for element in root.iter(f"{SVG}g"):
        if "open" not in element.get("class", ""):
            rect = element.find(f"{SVG}rect")
            assert rect is not None
            x, y, w, h = (float(rect.get(key, "")) for key in ("x", "y", "width", "height"))
            boxes.append((x, y, x + w, y + h))
    for i, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[i + 1 :]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, "boxes overlap"
    lines = [e.get("d", "") for e in root.iter(f"{SVG}path") if e.get("class") == "line"]
    assert lines
    for line in lines:
        x, start, end = map(float, re.match(r"M(\S+) (\S+)V([\d.]+)", line).groups())  # type: ignore[union-attr]
        for left, top, right, bottom in boxes:
            behind = left < x < right and start < bottom - 0.5 and end > top + 0.5
            assert not behind, f"{line} runs behind a box"


def test_groups_open_from_the_outside_in() -> None:
    few, many = to_svg(residual(40), max_boxes=3), to_svg(residual(40), max_boxes=100)
    assert few.count("<g ") == 4  # everything, x, layers, result
    assert many.count("<g ") == 1 + 1 + 1 + 4 + 40 + 1


def test_partitions_and_times_are_coloured() -> None:
    graph = residual(4, modules=1)
    names = [node.name for node in graph.nodes]
    sides = {name: "pytorch" if i == 2 else "native" for i, name in enumerate(names)}
    marked = Marks(sides, {names[0]: 3e-3, names[1]: 1e-3})
    drawn = outline(graph, marked)
    assert drawn.seconds == pytest.approx(4e-3)
    (group,) = (box for box in drawn.root.inside if box.kind == GROUP)
    assert group.executors == ["native", "pytorch"]
    text = to_svg(graph, {"net": marked})
    assert "3 ms · 75.0 %" in text
    assert "#e07b1a" in text
    page = to_html(graph, {"net": marked})
    assert "share of the time" in page
    assert 'class="key"' not in to_html(graph), "no legend where nothing is marked"


def test_methods_stand_side_by_side_and_as_tabs() -> None:
    methods = {"prefill": residual(3), "decode": weighted()}
    assert ">prefill<" in to_svg(methods)
    assert ">decode<" in to_svg(methods)
    page = to_html(methods)
    assert page.count("data-tab=") == 2
    assert page.count('class="method"') == 2


def test_mermaid_shows_every_node_and_arrow() -> None:
    text = to_mermaid(residual(5))
    assert text.startswith("flowchart TD\n")
    assert text.count("add.Tensor") == 5
    # The first node reads x twice; every later one reads two values. One arrow to the output.
    assert text.count("-->") == 1 + 2 * 4 + 1
    assert "2×3" in text


def test_mermaid_draws_modules_as_one_when_there_are_many_nodes() -> None:
    text = to_mermaid(residual(400), max_nodes=10)
    assert text.count("[[") == 4
    assert "0.add<br/>100 nodes" in text


def test_svg_is_well_formed_and_complete() -> None:
    root = ET.fromstring(to_svg(residual(30)))
    titles = [t.text or "" for t in root.iter(f"{SVG}title")]
    assert sum("aten.add.Tensor(%x, %x)" in title for title in titles) >= 1
    assert sum(g.get("class") == NODE for g in root.iter(f"{SVG}g")) == 30


class _Ids(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[list[str]] = []
        self.depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.depth += tag == "div"
        for key, value in attrs:
            if key == "id":
                self.ids.append(value or "")
            if key == "data-links":
                self.links += json.loads(value or "[]")

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "div"


def test_the_page_links_boxes_that_exist() -> None:
    parser = _Ids()
    parser.feed(to_html({"a": residual(30), "b": visited_twice()}))
    assert parser.depth == 0
    assert len(parser.ids) == len(set(parser.ids))
    assert parser.links
    assert {end for link in parser.links for end in link[:2]} <= set(parser.ids)


def test_names_cannot_inject_markup() -> None:
    evil = '</title><script>alert("1")</script>`|]\'&{{methods}}'
    builder = GraphBuilder(evil)
    x = builder.input(evil, F32)
    builder.output(evil, builder.node(f"aten.{evil}.default", [x], F32))
    graph = builder.build()
    ET.fromstring(to_svg(graph))
    page = to_html(graph)
    assert "<script>alert" not in page
    assert page.count('class="method"') == 1, "a name is no placeholder of the page"
    labels = re.findall(r'"(.*?)"', to_mermaid(graph))
    assert len(labels) == 5
    assert all(re.fullmatch(r"(<br/>|#\d+;|[\w ._\-,:()×·])*", label) for label in labels)


def test_the_page_needs_no_network() -> None:
    page = to_html(residual(3))
    assert not re.search(r"(src|href)\s*=", page)
    assert "http" not in unescape(page).replace("http://www.w3.org/2000/svg", "")


def test_png_is_an_image() -> None:
    pytest.importorskip("resvg_py", reason="PNG needs the extra `plot`")
    image = to_png(weighted())
    assert image.startswith(b"\x89PNG\r\n")
    plain = to_png(weighted(), zoom=1)
    assert len(plain) < len(image)


def test_png_without_its_libraries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    with pytest.raises(Error, match="resvg_py"):
        to_png(weighted())


def test_large_graphs_are_drawn() -> None:
    graph = residual(5000)
    assert to_svg(graph, max_boxes=6000).count("<g ") == 5000 + 3 + 1 + 4
    assert to_mermaid(graph).count("\n") < 1000
    assert len(to_html(graph)) < 12_000_000

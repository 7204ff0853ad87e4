"""A Graph as a picture: mermaid text, SVG, or one HTML page that needs no network.

Owns the reduction of a graph to boxes and arrows, and a layered layout that takes time linear in
both. Names come from files: everything is escaped for the language it is written into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby

from npusim.ir.graph import Graph, Node
from npusim.ir.printer import format_node

_INPUT, _NODE, _GROUP, _OUTPUT = "input", "node", "group", "output"


@dataclass
class _Box:
    """A box of the picture: an input, an output, a node, or a run of nodes drawn as one."""

    kind: str
    title: str
    subtitle: str
    details: str
    sources: list[int] = field(default_factory=list)  # boxes that point here


def to_mermaid(graph: Graph, max_nodes: int = 150) -> str:
    """Returns a mermaid flowchart.

    Args:
        graph: what to draw.
        max_nodes: neighbouring nodes of a module are drawn as one until no more than this remain.
    """
    shapes = {_INPUT: ("([", "])"), _OUTPUT: ("([", "])"), _NODE: ("[", "]"), _GROUP: ("[[", "]]")}
    lines = ["flowchart TD"]
    boxes = _boxes(graph, max_nodes)
    for index, box in enumerate(boxes):
        left, right = shapes[box.kind]
        label = "<br/>".join(_mermaid(text) for text in (box.title, box.subtitle) if text)
        lines.append(f'  b{index}{left}"{label}"{right}')
    for index, box in enumerate(boxes):
        lines += [f"  b{source} --> b{index}" for source in box.sources]
    return "\n".join(lines) + "\n"


def to_svg(graph: Graph, max_nodes: int = 5000) -> str:
    """Returns an SVG image; a box's tooltip is the node as text. `max_nodes` as in mermaid."""
    boxes = _boxes(graph, max_nodes)
    places, width, height = _layout(boxes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(graph.name)}</title><style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    parts += _arrows(boxes, places)
    parts += (_draw(box, x, y) for box, (x, y) in zip(boxes, places, strict=True))
    return "\n".join([*parts, "</svg>\n"])


def to_html(graph: Graph, max_nodes: int = 5000) -> str:
    """Returns a page with the SVG: drag to move, scroll to zoom, click a box to read it."""
    facts = f"{len(graph.nodes)} nodes, {len(graph.weights)} weights"
    return _PAGE.format(name=escape(graph.name), facts=facts, svg=to_svg(graph, max_nodes))


# ---- what to draw ----


def _boxes(graph: Graph, max_nodes: int) -> list[_Box]:
    boxes: list[_Box] = []
    place: dict[str, int] = {}
    for kind, values in (("input", graph.inputs), ("state", graph.states)):
        for value in values:
            place[value.name] = len(boxes)
            details = f"{kind} {value.name}: {value.type}"
            boxes.append(_Box(_INPUT, value.name, str(value.type), details))
    static = {w.name for w in graph.weights} | {c.name for c in graph.constants}
    for title, nodes in _runs(graph, max(1, max_nodes)):
        box = _box_of(title, nodes, static)
        inside = {v.name for n in nodes for v in n.outputs}
        read = (i for n in nodes for i in n.inputs if i is not None and i not in inside)
        box.sources = list(dict.fromkeys(place[i] for i in read if i in place))
        place.update(dict.fromkeys(inside, len(boxes)))
        boxes.append(box)
    results = [("output", o) for o in graph.outputs] + [("update", u) for u in graph.updates]
    for kind, output in results:
        type = graph.types[output.value]
        details = f"{kind} {output.name} = {output.value}: {type}"
        sources = [place[output.value]] if output.value in place else []
        boxes.append(_Box(_OUTPUT, output.name, str(type), details, sources))
    return boxes


def _runs(graph: Graph, limit: int) -> Iterator[tuple[str, list[Node]]]:
    """Yields runs of consecutive nodes, each drawn as one box, at most `limit` of them.

    Nodes of one module go together, from the innermost modules outward; consecutive runs of a
    sorted graph cannot depend on each other in a circle.
    """
    if len(graph.nodes) <= limit:
        yield from ((node.op, [node]) for node in graph.nodes)
        return
    paths = [node.source.module.split(".") if node.source else [] for node in graph.nodes]
    for depth in range(max(map(len, paths)), 0, -1):
        keys = [".".join(path[:depth]) for path in paths]
        named = groupby(zip(keys, graph.nodes, strict=True), key=lambda pair: pair[0])
        runs = [(key, [node for _, node in group]) for key, group in named]
        if len(runs) <= limit:
            yield from runs
            return
    size = -(-len(graph.nodes) // limit)
    for start in range(0, len(graph.nodes), size):
        nodes = list(graph.nodes[start : start + size])
        yield f"nodes {start} to {start + len(nodes) - 1}", nodes


def _box_of(title: str, nodes: Sequence[Node], static: set[str]) -> _Box:
    if len(nodes) == 1:
        (node,) = nodes
        title = node.op.removeprefix("aten.").removesuffix(".default")
        types = ", ".join(str(v.type) for v in node.outputs)
        return _Box(_NODE, title, types, format_node(node, static=static))
    details = "\n".join(format_node(node, static=static) for node in nodes[:40])
    if len(nodes) > 40:
        details += f"\n… and {len(nodes) - 40} more"
    return _Box(_GROUP, title or "forward", f"{len(nodes)} nodes", details)


# ---- where to draw it ----

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 40, 30, 34, 24


def _layout(boxes: Sequence[_Box]) -> tuple[list[tuple[int, int]], int, int]:
    """Returns the left upper corner of every box, and the size of the picture.

    A box stands one row below the lowest box that points to it; within a row, boxes are ordered by
    the mean column of those.
    """
    rows: list[list[int]] = []
    row_of: list[int] = []
    for index, box in enumerate(boxes):
        row = 1 + max((row_of[s] for s in box.sources), default=-1)
        row_of.append(row)
        rows.extend([] for _ in range(row + 1 - len(rows)))
        rows[row].append(index)
    widest = max(map(len, rows), default=1)
    step = _WIDTH + _GAP_X
    places = [(0, 0)] * len(boxes)
    for row, members in enumerate(rows):
        members.sort(key=lambda i: _mean([places[s][0] for s in boxes[i].sources]))
        start = _MARGIN + (widest - len(members)) * step // 2
        for column, index in enumerate(members):
            places[index] = (start + column * step, _MARGIN + row * (_HEIGHT + _GAP_Y))
    width = 2 * _MARGIN + widest * step + _GAP_X
    return places, width, 2 * _MARGIN + len(rows) * (_HEIGHT + _GAP_Y)


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _arrows(boxes: Sequence[_Box], places: Sequence[tuple[int, int]]) -> Iterator[str]:
    for index, box in enumerate(boxes):
        x2, y2 = places[index][0] + _WIDTH // 2, places[index][1]
        for source in box.sources:
            x1, y1 = places[source][0] + _WIDTH // 2, places[source][1] + _HEIGHT
            # An arrow over several rows bows to the right, around the boxes between.
            bow = 0 if y2 - y1 <= _GAP_Y else _WIDTH // 2 + _GAP_X
            yield (
                f'<path class="arrow" d="M{x1} {y1} C{x1 + bow} {y1 + _GAP_Y}, '
                f'{x2 + bow} {y2 - _GAP_Y}, {x2} {y2}"/>'
            )


def _draw(box: _Box, x: int, y: int) -> str:
    lines = [(box.title, 17, "title"), (box.subtitle, 32, "subtitle")]
    texts = "".join(
        f'<text class="{style}" x="{x + _WIDTH // 2}" y="{y + down}">{escape(_cut(text))}</text>'
        for text, down, style in lines
    )
    return (
        f'<g class="{box.kind}"><title>{escape(box.details)}</title>'
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>{texts}</g>'
    )


def _cut(text: str, limit: int = 30) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _mermaid(text: str) -> str:
    """Escapes what mermaid or Markdown could read as markup: all but plain characters."""
    plain = " ._-,:()"
    return "".join(
        c if (c.isascii() and c.isalnum()) or c in plain else f"#{ord(c)};" for c in _cut(text, 60)
    )


_STYLE = (
    "text{text-anchor:middle}.title{font-weight:600}.subtitle{font-size:10px;fill:#555}"
    "rect{stroke:#888;fill:#f4f6fa}.input rect,.output rect{fill:#e3f2e6}.group rect{fill:#fff3dc}"
    ".arrow{fill:none;stroke:#9aa4b2}"
)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{name}</title>
<style>
body {{ margin: 0; font: 14px sans-serif; display: flex; flex-direction: column; height: 100vh; }}
header {{ padding: 6px 12px; border-bottom: 1px solid #ccc; }}
#view {{ flex: 1; overflow: hidden; cursor: grab; }}
#view svg {{ transform-origin: 0 0; }}
#text {{ margin: 0; padding: 6px 12px; border-top: 1px solid #ccc; max-height: 25vh;
  overflow: auto; white-space: pre-wrap; }}
</style>
</head>
<body>
<header><strong>{name}</strong>, {facts}. Drag to move, scroll to zoom, click a box.</header>
<div id="view">
{svg}</div>
<pre id="text"></pre>
<script>
const view = document.getElementById("view"), image = view.querySelector("svg");
let x = 0, y = 0, scale = 1;
const show = () => image.style.transform = `translate(${{x}}px, ${{y}}px) scale(${{scale}})`;
view.onwheel = event => {{
  event.preventDefault();
  const factor = Math.exp(-event.deltaY / 500), box = view.getBoundingClientRect();
  const px = event.clientX - box.left, py = event.clientY - box.top;
  x = px - (px - x) * factor; y = py - (py - y) * factor; scale *= factor; show();
}};
view.onpointermove = event => {{
  if (event.buttons & 1) {{ x += event.movementX; y += event.movementY; show(); }}
}};
view.onclick = event => {{
  const box = event.target.closest("g");
  document.getElementById("text").textContent = box ? box.firstChild.textContent : "";
}};
</script>
</body>
</html>
"""

"""A graph as one HTML page that needs no network: drag, zoom, search, open and close modules.

The rows of `layers.py` become rows of the browser's own layout, so a group that opens or closes
needs no computation of places: `page.js` only draws the lines anew between where boxes came to
stand. Names come from files: all are escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from html import escape
from importlib import resources

from npusim.ir.graph import Graph
from npusim.pictures.layers import Cell, arrange
from npusim.pictures.outline import GROUP, Box, Marks, Outline, outline
from npusim.pictures.style import EXECUTORS, facts, fill, opened, stripe, texts


def to_html(
    graph: Graph | Mapping[str, Graph],
    marks: Mapping[str, Marks] | None = None,
    *,
    max_boxes: int = 60,
    load_time: bool = False,
) -> str:
    """Returns a page; several methods are tabs.

    Args:
        graph: one graph, or those of several methods by name.
        marks: by method (the graph's name where there is one): who runs its nodes, their times.
        max_boxes: groups stand open, from the outside in, while no more boxes are seen.
        load_time: also draw nodes that depend on weights alone.
    """
    graphs = {graph.name: graph} if isinstance(graph, Graph) else graph
    tabs, views, counts = [], [], []
    for number, (name, method) in enumerate(graphs.items()):
        drawn = outline(method, (marks or {}).get(name), load_time=load_time)
        page = _Page(drawn, opened(drawn, max_boxes), f"m{number}-")
        body = "".join(page.group(drawn.root))
        links = json.dumps(page.links, separators=(",", ":")).replace("<", "\\u003c")
        hidden = " hidden" if number else ""
        views.append(
            f'<div class="method" id="method{number}" data-links="{escape(links)}"{hidden}>'
            f'<svg class="lines"></svg>{body}</div>'
        )
        counts.append(facts(drawn))
        tabs.append(
            f'<button data-tab="{number}" title="{escape(facts(drawn))}">{escape(name)}</button>'
        )
    parts = {
        "style": _asset("page.css"),
        "script": _asset("page.js"),
        "legend": "".join(_legend(list((marks or {}).values()))),
        "facts": escape(" / ".join(counts)),
        "tabs": "".join(tabs) if len(graphs) > 1 else "",
        "title": escape(", ".join(graphs)),
        "methods": "".join(views),
    }
    # In one sweep: a name that looks like a placeholder stays a name.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return resources.files("npusim.pictures").joinpath(name).read_text("utf-8")


def _legend(marks: Collection[Marks]) -> Iterator[str]:
    used = {e for mark in marks for e in mark.executors.values()}
    for name, color in EXECUTORS.items():
        if name in used:
            yield f'<span class="key" style="border-color:{color}">{name}</span>'
    if any(mark.seconds for mark in marks):
        yield '<span class="key heat">share of the time</span>'


class _Page:
    """The elements of one method; `links` says which cells the script joins, and by what."""

    def __init__(self, drawn: Outline, open_groups: set[int], prefix: str) -> None:
        self.drawn = drawn
        self.open_groups = open_groups
        self.prefix = prefix
        self.count = 0
        self.links: list[tuple[str, str, str, str]] = []  # from, to, value, label

    def group(self, group: Box) -> Iterator[str]:
        """Yields the rows of a group, and remembers its links."""
        arrangement = arrange(group)
        names: dict[int, str] = {}
        last = len(arrangement.rows) - 1
        for row in arrangement.rows:
            for cell in row.cells:
                names[id(cell)] = f"{self.prefix}{self.count}"
                self.count += 1
        yield '<div class="rows">'
        for index, row in enumerate(arrangement.rows):
            ends = " enters" if index == 0 else ""
            ends += " leaves" if index == last else ""
            for part, cells in zip(("left", "middle", "right"), row.parts, strict=True):
                yield f'<div class="{part}">'
                for cell in cells:
                    yield from self._cell(cell, names[id(cell)], ends)
                yield "</div>"
        yield "</div>"
        for link in arrangement.links:
            label = self.drawn.labels.get(link.value, "") if link.source.box is not None else ""
            ends_of = (names[id(link.source)], names[id(link.target)])
            self.links.append((*ends_of, link.value, label))

    def _cell(self, cell: Cell, name: str, ends: str) -> Iterator[str]:
        box = cell.box
        if box is None:
            value = f' data-value="{escape(cell.value)}"' if cell.value else ""
            yield f'<div class="wire{ends if cell.value else ""}" id="{name}"{value}></div>'
            return
        is_open = id(box) in self.open_groups
        color = stripe(box)
        style = f"background:{fill(box, self.drawn)}" + (
            f";border-left:5px solid {color}" if color else ""
        )
        kind = f"box {box.kind}" + (" open" if is_open else "")
        yield (
            f'<div class="{kind}" id="{name}" style="{style}" data-details="{escape(box.details)}">'
            f'<div class="head"><b>{escape(box.title)}</b>'
        )
        yield from (f"<span>{escape(line)}</span>" for line in texts(box, self.drawn))
        yield "</div>"
        if box.kind == GROUP:
            yield from self.group(box)
        yield "</div>"

"""What notebooks show of graphs and of what is made of them: a table, and a picture.

Owns the HTML. A picture is an image of its own, so that its styles are not the page's; names come
from files and are escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module

from npusim.ir.graph import Graph

_BOXES = 60  # of a picture: more than that nobody reads beside a text


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table with a title above it, as HTML."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<b>{escape(title)}</b><table><thead><tr>{names}</tr></thead>{body}</table>"


def picture(graph: Graph | None) -> str:
    """Returns a graph as an image that opens by a click; nothing without one."""
    if graph is None:
        return ""
    pictures = import_module("npusim.pictures")  # by name: it draws graphs, which draw nothing
    image = base64.b64encode(pictures.to_svg(graph, max_boxes=_BOXES).encode()).decode()
    shown = f'<img alt="{escape(graph.name)}" src="data:image/svg+xml;base64,{image}"/>'
    return f"<details><summary>picture</summary>{shown}</details>"


def tensors(values: Iterable[tuple[str, object]]) -> str:
    """Returns `name: type` of each, one after another."""
    return ", ".join(f"{name}: {type}" for name, type in values)


def cut(text: str, limit: int = 120) -> str:
    """Returns a text of at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"

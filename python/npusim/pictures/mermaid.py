"""A graph as mermaid text, for Markdown: the outermost groups that fit stand open."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.ir.graph import Graph
from npusim.pictures.outline import GROUP, INPUT, NODE, OUTPUT, Box, Outline, outline
from npusim.pictures.style import opened
from npusim.pictures.svg import cut

_SHAPES = {INPUT: ("([", "])"), OUTPUT: ("([", "])"), NODE: ("[", "]"), GROUP: ("[[", "]]")}


def to_mermaid(graph: Graph, max_nodes: int = 150) -> str:
    """Returns a mermaid flowchart.

    Args:
        graph: what to draw.
        max_nodes: groups are opened from the outside in while no more boxes than this are seen.
    """
    drawn = outline(graph)
    boxes = list(_visible(drawn.root, opened(drawn, max_nodes)))
    number = {id(box): index for index, box in enumerate(boxes)}
    makers = {value: number[id(box)] for box in boxes for value in box.makes}
    lines = ["flowchart TD"]
    for index, box in enumerate(boxes):
        left, right = _SHAPES[box.kind]
        label = "<br/>".join(map(_escaped, (box.title, *box.lines)))
        lines.append(f'  b{index}{left}"{label}"{right}')
    for index, box in enumerate(boxes):
        lines += _arrows(index, box, makers, drawn)
    return "\n".join(lines) + "\n"


def _visible(group: Box, open_groups: set[int]) -> Iterator[Box]:
    for box in group.inside:
        if id(box) in open_groups:
            yield from _visible(box, open_groups)
        else:
            yield box


def _arrows(index: int, box: Box, makers: dict[str, int], drawn: Outline) -> Iterator[str]:
    labels: dict[int, list[str]] = {}
    for value in box.reads:
        if value in makers:
            labels.setdefault(makers[value], []).append(drawn.labels.get(value, ""))
    for source, carried in labels.items():
        yield f'  b{source} -->|"{_escaped(", ".join(dict.fromkeys(carried)))}"| b{index}'


def _escaped(text: str) -> str:
    """Escapes what mermaid or Markdown could read as markup: all but plain characters."""
    plain = " ._-,:()×·"
    return "".join(
        c if (c.isascii() and c.isalnum()) or c in plain else f"#{ord(c)};" for c in cut(text, 60)
    )

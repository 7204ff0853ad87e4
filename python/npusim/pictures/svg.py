"""A graph as an SVG image: groups up to a number of boxes stand open, tooltips hold the details.

Text is monospaced, so its width is known without a font. Names come from files: all are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape

from npusim.ir.graph import Graph
from npusim.pictures.layers import Cell, Row, Rows, arrange
from npusim.pictures.outline import INPUT, OUTPUT, Box, Marks, Outline, outline
from npusim.pictures.style import DIM, LINE, TEXT, facts, fill, opened, stripe, texts

_TITLE, _SMALL = 12, 10  # sizes of letters; one is 0.6 of it wide
_PAD, _GAP, _DROP, _WIRE, _HEAD = 12, 18, 36, 14, 24
_LONGEST = 44  # letters of a line


@dataclass
class _Place:
    """A box with its size, where it stands, and of an open group what stands inside."""

    box: Box
    lines: list[str]
    width: float
    height: float
    rows: Rows | None = None
    columns: tuple[float, float, float] = (0.0, 0.0, 0.0)
    inside: dict[int, _Place] = field(default_factory=dict)  # by identity of the cell
    x: float = 0.0
    y: float = 0.0


def to_svg(
    graph: Graph | Mapping[str, Graph],
    marks: Mapping[str, Marks] | None = None,
    *,
    max_boxes: int = 150,
    load_time: bool = False,
) -> str:
    """Returns an SVG image.

    Args:
        graph: one graph, or those of several methods by name, which stand side by side.
        marks: by method (the graph's name where there is one): who runs its nodes, their times.
        max_boxes: groups are opened from the outside in while no more boxes are seen.
        load_time: also draw nodes that depend on weights alone.
    """
    graphs = {graph.name: graph} if isinstance(graph, Graph) else graph
    parts: list[str] = []
    x, height = float(_PAD), 0.0
    for name, method in graphs.items():
        drawn = outline(method, (marks or {}).get(name), load_time=load_time)
        drawn.root.title = name
        drawn.root.lines = [facts(drawn)]
        place = _measure(drawn.root, drawn, opened(drawn, max_boxes))
        _stand(place, x, _PAD)
        parts += _draw(place, drawn)
        x += place.width + _PAD
        height = max(height, place.height)
    size = f"{x:.0f} {height + 2 * _PAD:.0f}"
    width, tall = size.split()
    title = escape(", ".join(graphs))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{width}" '
            f'height="{tall}" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace">',
            f"<title>{title}</title><style>{_STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" '
            f'markerHeight="6" orient="auto"><path d="M0 0L6 3L0 6z" fill="{LINE}"/></marker>'
            "</defs>",
            f'<rect width="{width}" height="{tall}" fill="#fff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _measure(box: Box, drawn: Outline, open_groups: set[int]) -> _Place:
    lines = [cut(line) for line in texts(box, drawn)]
    letters = max([0.6 * _TITLE * len(cut(box.title)), *(0.6 * _SMALL * len(t) for t in lines)])
    place = _Place(box, lines, letters + 2 * _PAD, _HEAD + 13 * len(lines))
    if id(box) not in open_groups:
        return place
    place.rows = arrange(box)
    for row in place.rows.rows:
        for cell in row.cells:
            if cell.box is not None:
                place.inside[id(cell)] = _measure(cell.box, drawn, open_groups)
        place.height += _row_height(place, row) + _DROP
    widths = [[_width(place, part) for part in row.parts] for row in place.rows.rows]
    left, middle, right = (max(column) for column in zip(*widths, strict=True))
    place.columns = (left, middle, right)
    place.width = max(place.width, left + middle + right + 2 * _PAD + 2 * _GAP)
    place.height += _PAD
    return place


def _width(place: _Place, cells: list[Cell]) -> float:
    return sum(_cell_width(place, cell) for cell in cells) + _GAP * max(0, len(cells) - 1)


def _cell_width(place: _Place, cell: Cell) -> float:
    inner = place.inside.get(id(cell))
    return inner.width if inner else _WIRE


def _row_height(place: _Place, row: Row) -> float:
    return max(
        (place.inside[id(c)].height for c in row.middle if id(c) in place.inside), default=0.0
    )


def _lefts(place: _Place, row: Row) -> Iterator[tuple[Cell, float]]:
    """Yields the cells of a row with their left edges; the middle part stands in the middle."""
    left, middle, right = place.columns
    start = place.x + (place.width - left - middle - right - 2 * _GAP) / 2
    begins = (
        start + left - _width(place, row.left),
        start + left + _GAP + (middle - _width(place, row.middle)) / 2,
        start + left + middle + 2 * _GAP,
    )
    for x, cells in zip(begins, row.parts, strict=True):
        for cell in cells:
            yield cell, x
            x += _cell_width(place, cell) + _GAP


def _stand(place: _Place, x: float, y: float) -> None:
    place.x, place.y = x, y
    if place.rows is None:
        return
    top = y + _HEAD + 13 * len(place.lines)
    for row in place.rows.rows:
        top += _DROP / 2
        for cell, left in _lefts(place, row):
            inner = place.inside.get(id(cell))
            if inner:
                _stand(inner, left, top)
        top += _row_height(place, row) + _DROP / 2


def _draw(place: _Place, drawn: Outline) -> Iterator[str]:
    box, color = place.box, stripe(place.box)
    middle = place.x + place.width / 2
    kind = f"{box.kind} open" if place.rows else box.kind
    background = "#fff" if place.rows else fill(box, drawn)  # what is open shows what is in it
    yield (
        f'<g class="{kind}"><title>{escape(box.details)}</title>'
        f'<rect x="{place.x:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" '
        f'height="{place.height:.1f}" rx="{12 if box.kind in (INPUT, OUTPUT) else 5}" '
        f'fill="{background}"/>'
    )
    if color:
        yield (
            f'<rect x="{place.x:.1f}" y="{place.y:.1f}" width="4" height="{place.height:.1f}" '
            f'class="stripe" fill="{color}"/>'
        )
    x = place.x + 8 if place.rows else middle
    yield f'<text class="title" x="{x:.1f}" y="{place.y + 16:.1f}">{_text(box.title)}</text>'
    for i, line in enumerate(place.lines):
        y = place.y + 29 + 13 * i
        yield f'<text x="{x:.1f}" y="{y:.1f}">{_text(line)}</text>'
    yield "</g>"
    if place.rows is not None:
        yield from _lines(place, place.rows, drawn)
        for inner in place.inside.values():
            yield from _draw(inner, drawn)


def _lines(place: _Place, rows: Rows, drawn: Outline) -> Iterator[str]:
    """Draws the lines of an open group, and beside where each leaves a box what it carries."""
    spans = _wire_places(place, rows)
    labelled: set[tuple[int, str]] = set()
    for link in rows.links:
        x1, y1 = _exit(place, link.source, link.value, spans)
        x2, y2 = _entry(place, link.target, link.value, spans)
        bottom = spans[id(link.source)][2]
        tip = ' marker-end="url(#tip)"' if link.target.box is not None else ""
        yield (
            f'<path class="line" d="M{x1:.1f} {y1:.1f}V{bottom:.1f}C{x1:.1f} '
            f'{bottom + _DROP / 2:.1f} {x2:.1f} {y2 - _DROP / 2:.1f} {x2:.1f} {y2:.1f}"{tip}/>'
        )
        key = (id(link.source), link.value)
        if link.source.box is not None and key not in labelled:
            labelled.add(key)
            label = _text(drawn.labels.get(link.value, ""))
            yield f'<text class="label" x="{x1 + 4:.1f}" y="{y1 + 11:.1f}">{label}</text>'


def _wire_places(place: _Place, rows: Rows) -> dict[int, tuple[float, float, float]]:
    """Returns by cell its middle, and the top and the bottom of its row."""
    found = {}
    top = place.y + _HEAD + 13 * len(place.lines)
    last = len(rows.rows) - 1
    for index, row in enumerate(rows.rows):
        top += _DROP / 2
        bottom = top + _row_height(place, row)
        upper = place.y if index == 0 else top
        lower = place.y + place.height if index == last else bottom
        for cell, left in _lefts(place, row):
            middle = left + _cell_width(place, cell) / 2
            is_box = cell.box is not None
            found[id(cell)] = (middle, top if is_box else upper, bottom if is_box else lower)
        top = bottom + _DROP / 2
    return found


def _exit(
    place: _Place, cell: Cell, value: str, spans: Mapping[int, tuple[float, float, float]]
) -> tuple[float, float]:
    inner = place.inside.get(id(cell))
    if inner is None:
        x, top, _ = spans[id(cell)]
        return x, top
    if inner.rows is not None:
        ends = [c for c in inner.rows.rows[-1].cells if c.box is None and c.value == value]
        if ends:
            return _wire_places(inner, inner.rows)[id(ends[0])][0], inner.y + inner.height
    return inner.x + inner.width / 2, inner.y + inner.height


def _entry(
    place: _Place, cell: Cell, value: str, spans: Mapping[int, tuple[float, float, float]]
) -> tuple[float, float]:
    inner = place.inside.get(id(cell))
    if inner is None:
        x, top, bottom = spans[id(cell)]
        return x, bottom if bottom > place.y + place.height - 1 else top
    if inner.rows is not None:
        starts = [c for c in inner.rows.rows[0].cells if c.box is None and c.value == value]
        if starts:
            return _wire_places(inner, inner.rows)[id(starts[0])][0], inner.y
    return inner.x + inner.width / 2, inner.y


def cut(text: str, limit: int = _LONGEST) -> str:
    """Returns a text of at most `limit` letters; an ellipsis stands for the rest."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _text(text: str) -> str:
    return escape(cut(text))


_STYLE = (
    f"text{{text-anchor:middle;font-size:{_SMALL}px;fill:{DIM}}}"
    f".title{{font-weight:600;font-size:{_TITLE}px;fill:{TEXT}}}"
    ".label,.open text{text-anchor:start}.label{font-size:9px}"
    f"rect{{stroke:{LINE}}}.stripe{{stroke:none}}"
    f".line{{fill:none;stroke:{LINE};stroke-width:1.2}}"
)

"""Where the boxes of one group stand: in which row, and in which order within the row.

The layered drawing of Sugiyama, Tagawa and Toda (1981, "Methods for visual understanding of
hierarchical system structures"): rows by the longest path, a place held in every row that a line
passes (so that no line runs behind a box), and an order that brings each next to the mean of its
neighbours. Both say nothing of sizes: an image and a page in which groups open and close place the
same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npusim.pictures.outline import INPUT, OUTPUT, Box

_SWEEPS = 4


@dataclass(eq=False)
class Cell:
    """A place in a row: a box, or a line of one value on its way down.

    A line in the first row comes from outside of the group, one in the last row leaves it.
    """

    value: str = ""
    box: Box | None = None


@dataclass(frozen=True)
class Link:
    """A line from a cell to one of the next row, or a later one's, that carries a value."""

    value: str
    source: Cell
    target: Cell


@dataclass(frozen=True)
class Row:
    """The cells of one row: its boxes with what stands between them, and the lines beside them.

    What stands beside boxes has columns of its own in the whole group, so that a chain of boxes
    and the lines that pass it are straight.
    """

    left: list[Cell]
    middle: list[Cell]
    right: list[Cell]

    @property
    def parts(self) -> tuple[list[Cell], list[Cell], list[Cell]]:
        """The three, from left to right."""
        return self.left, self.middle, self.right

    @property
    def cells(self) -> list[Cell]:
        """All of them, from left to right."""
        return [*self.left, *self.middle, *self.right]


@dataclass(frozen=True)
class Rows:
    """The cells of a group, row by row, and the links between neighbouring rows."""

    rows: list[Row]
    links: list[Link]


def arrange(group: Box) -> Rows:
    """Returns rows of cells for the boxes of a group."""
    row_of = _rows(group)
    bottom = max(row_of.values(), default=0)
    rows: list[list[Cell]] = [[] for _ in range(bottom + 2)]
    links: list[Link] = []
    cells = {id(box): Cell(box=box) for box in group.inside}
    for box in group.inside:
        rows[row_of[id(box)]].append(cells[id(box)])
    makers = {name: box for box in group.inside for name in box.makes}
    readers: dict[str, list[Cell]] = {}
    for box in group.inside:
        for name in box.reads:
            readers.setdefault(name, []).append(cells[id(box)])
    for name in dict.fromkeys((*group.reads, *makers)):
        targets = readers.get(name, [])
        maker = makers.get(name)
        if maker is None:
            start, row = Cell(name), 0
            rows[0].append(start)
        else:
            start, row = cells[id(maker)], row_of[id(maker)]
        ends = {row_of[id(cell.box)]: cell for cell in targets}
        last = bottom + 1 if name in group.makes else max(ends, default=row) - 1
        line = {row: start}
        for below in range(row + 1, last + 1):
            line[below] = Cell(name)
            rows[below].append(line[below])
            links.append(Link(name, line[below - 1], line[below]))
        for target in targets:
            links.append(Link(name, line[row_of[id(target.box)] - 1], target))
    rows = [row for row in rows if row]
    _order(rows, links)
    return Rows([_parted(row) for row in rows], links)


def _rows(group: Box) -> dict[int, int]:
    """Returns the row of each box by identity: below all it reads from, row 0 is for entries."""
    makers = {name: box for box in group.inside for name in box.makes}
    first = 1 if group.reads else 0
    rows: dict[int, int] = {}
    for box in _in_order(group.inside, makers):
        above = [rows[id(makers[name])] for name in box.reads if name in makers]
        rows[id(box)] = max((row + 1 for row in above), default=first)
    for box in group.inside:  # inputs stand right above who reads them first
        if box.kind == INPUT:
            below = [rows[id(b)] for b in group.inside if set(box.makes) & set(b.reads)]
            rows[id(box)] = max(first, min(below, default=first + 1) - 1)
    bottom = max(rows.values(), default=0)
    for box in group.inside:
        if box.kind == OUTPUT and not box.reads:
            rows[id(box)] = bottom
    return rows


def _in_order(boxes: Sequence[Box], makers: Mapping[str, Box]) -> list[Box]:
    """Returns boxes such that each follows those it reads from (groups may have grown late)."""
    done: set[int] = set()
    order: list[Box] = []
    for first in boxes:
        stack = [first]
        while stack:
            box = stack[-1]
            waits = [makers[n] for n in box.reads if n in makers and makers[n] is not box]
            missing = [b for b in waits if id(b) not in done]
            if missing and id(box) not in done:
                stack.extend(missing)
                continue
            stack.pop()
            if id(box) not in done:
                done.add(id(box))
                order.append(box)
    return order


def _order(rows: list[list[Cell]], links: Sequence[Link]) -> None:
    """Sorts every row by the mean place of its neighbours: above while sweeping down, then below.

    Lines of one row keep to the right of boxes at equal means, so that a chain stays straight.
    """
    above: dict[int, list[Cell]] = {}
    below: dict[int, list[Cell]] = {}
    for link in links:
        above.setdefault(id(link.target), []).append(link.source)
        below.setdefault(id(link.source), []).append(link.target)
    place: dict[int, float] = {}

    def spread(row: list[Cell]) -> None:
        place.update((id(cell), i - (len(row) - 1) / 2) for i, cell in enumerate(row))

    def mean(cell: Cell, neighbours: Mapping[int, list[Cell]]) -> tuple[float, bool]:
        near = neighbours.get(id(cell), ())
        found = sum(place[id(n)] for n in near) / len(near) if near else place[id(cell)]
        return found, cell.box is None

    for row in rows:
        spread(row)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for row in rows if down else reversed(rows):
            row.sort(key=lambda cell: mean(cell, neighbours))
            spread(row)


def _parted(row: list[Cell]) -> Row:
    boxes = [i for i, cell in enumerate(row) if cell.box is not None]
    if not boxes:
        return Row([], row, [])
    first, last = boxes[0], boxes[-1] + 1
    return Row(row[:first], row[first:last], row[last:])

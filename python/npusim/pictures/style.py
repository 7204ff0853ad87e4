"""What an image and a page share: colours, the heat of measured times, which groups stand open."""

from __future__ import annotations

from npusim.pictures.outline import GROUP, INPUT, NODE, OUTPUT, Box, Outline

FILLS = {INPUT: "#e6f4ea", OUTPUT: "#e6f4ea", NODE: "#f5f7fb", GROUP: "#ffffff"}
EXECUTORS = {
    "native": "#2f6fde",
    "pytorch": "#e07b1a",
    "mxu": "#2f6fde",
    "vpu": "#2a9d68",
    "dma": "#8a5cd1",
    "host": "#e07b1a",
}
LINE, TEXT, DIM = "#8a94a6", "#1c2330", "#5d6778"


def heat(share: float) -> str:
    """Returns a colour from white to red for a share of the time, 0 to 1; the scale is a root."""
    level = min(max(share, 0.0), 1.0) ** 0.5
    return f"hsl(12, 90%, {97 - 40 * level:.0f}%)"


def fill(box: Box, outline: Outline) -> str:
    """Returns a box's colour: its heat where times are known, else that of its kind."""
    if outline.seconds > 0 and box.kind in (NODE, GROUP):
        return heat(box.seconds / outline.seconds)
    return FILLS[box.kind]


def stripe(box: Box) -> str:
    """Returns the colour of who runs most of a box, or "" where only one could."""
    return EXECUTORS.get(box.executors[0], "") if box.executors else ""


def texts(box: Box, outline: Outline) -> list[str]:
    """Returns the smaller lines of a box: weights or a count, who runs it, its time."""
    lines = list(box.lines)
    if len(box.executors) > 1 or "pytorch" in box.executors:
        lines.append(" and ".join(box.executors))
    if outline.seconds > 0 and box.seconds > 0:
        lines.append(f"{_duration(box.seconds)} · {100 * box.seconds / outline.seconds:.1f} %")
    return lines


def facts(outline: Outline) -> str:
    """Returns how many nodes are drawn, and how many are folded because they run at load."""
    nodes = sum(box.kind == NODE for box in outline.root.walk())
    return f"{nodes} nodes" + (f", {outline.folded} more at load" if outline.folded else "")


def _duration(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def opened(outline: Outline, most: int) -> set[int]:
    """Returns the groups (by identity) to open: outer ones first, up to `most` visible boxes."""
    found = {id(outline.root)}
    visible = len(outline.root.inside)
    level = [outline.root]
    while level:
        inner = [box for group in level for box in group.inside if box.kind == GROUP]
        for box in inner:
            if visible + len(box.inside) - 1 <= most:
                visible += len(box.inside) - 1
                found.add(id(box))
        level = [box for box in inner if id(box) in found]
    return found

"""A simulation as a Gantt chart of characters, for terminals: who works when, and what takes time.

A column is a part of the run of equal length. Letters come from `LETTERS` and the marks of `_LOADS`
alone, and names of lanes are cleaned: a report may come from a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from npusim.simulate.saved import busy_share

LETTERS = {
    "compute": "C",
    "vector": "V",
    "dma": "A",
    "dram": "D",
    "bank": "B",
    "noc": "N",
    "dispatch": "H",
    "dependency": "W",
}
_LOADS = " .:-=+*#"  # shares of a column in which a unit works, from none to all of it
_NARROWEST, _LONGEST = 20, 12  # columns of the chart, letters of a lane's name


def to_gantt(report: Mapping[str, Any], width: int = 100) -> str:
    """Returns the lines of a report's chart, as `Simulation.report` gives it.

    Args:
        width: of all of it, in characters.
    """
    whole = report["seconds"]
    if not report["layers"] or whole <= 0:
        return "nothing runs"
    lanes = list(dict.fromkeys(event["lane"] for event in report["timeline"]))
    named = {lane: _name(lane) for lane in lanes}
    room = max(map(len, (*named.values(), "due to")))
    columns = max(_NARROWEST, width - room - 3)
    rows = [("due to", _causes(report, columns))]
    for lane in lanes:
        events = (event for event in report["timeline"] if event["lane"] == lane)
        busy = ((e["start_s"], e["seconds"], busy_share(e)) for e in events)
        rows.append((named[lane], "".join(map(_mark, _shares(busy, whole, columns)))))
    lines = [f"{name.rjust(room)} |{text}|" for name, text in rows]
    return "\n".join([_scale(whole, room, columns), *lines, *_legend(report, rows[0][1])])


def _shares(spans: Iterable[tuple[float, float, float]], whole: float, columns: int) -> list[float]:
    """Returns which share of each column is covered by spans of (start, seconds, weight)."""
    found = [0.0] * columns
    for start, seconds, weight in spans:
        first, last = start / whole * columns, (start + seconds) / whole * columns
        for column in range(max(0, int(first)), min(columns, int(last) + 1)):
            found[column] += weight * max(0.0, min(last, column + 1) - max(first, column))
    return found


def _mark(share: float) -> str:
    """Returns the mark of a share; what works at all is seen."""
    most = len(_LOADS) - 1
    level = round(min(share, 1.0) * most)
    return _LOADS[max(1, level) if share > 1e-9 else 0]


def _causes(report: Mapping[str, Any], columns: int) -> str:
    """Returns the letter of the cause that most of each column is due to."""
    whole = report["seconds"]
    begun = report["layers"][0]["start_s"]
    parts = {cause: [0.0] * columns for cause in LETTERS}
    parts["dispatch"] = _shares([(0.0, begun, 1.0)], whole, columns)
    for layer in report["layers"]:
        if layer["seconds"] <= 0:
            continue
        covered = _shares([(layer["start_s"], layer["seconds"], 1.0)], whole, columns)
        for cause, part in layer["stalls"].items():
            for column, share in enumerate(covered):
                if share:
                    parts[cause][column] += share * part / layer["seconds"]
    best = (max(LETTERS, key=lambda cause: parts[cause][c]) for c in range(columns))
    return "".join(LETTERS[cause] for cause in best)


def _scale(whole: float, room: int, columns: int) -> str:
    """Returns the line of times above: the begin, the middle and the end."""
    begin, middle, end = "0", _time(whole / 2), _time(whole)
    half = columns // 2
    text = begin + middle.rjust(half + len(middle) // 2 - len(begin))
    return " " * (room + 2) + text + end.rjust(columns - len(text))


def _legend(report: Mapping[str, Any], causes: str) -> list[str]:
    used = [f"{letter} {cause}" for cause, letter in LETTERS.items() if letter in causes]
    lines = [f"due to: {', '.join(used)}; a unit works from '.' rarely to '#' always"]
    if dropped := report.get("timeline_dropped", 0):
        lines.append(f"{dropped:,} more spans of units are joined with others")
    return lines


def _name(lane: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in lane)[:_LONGEST]


def _time(seconds: float) -> str:
    for factor, unit in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"

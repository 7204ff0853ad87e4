"""A simulation as SVG: its timeline, and its commands on a roofline; without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from npusim.pictures.chart import Axis, Chart, bar, label, number, picture, rule
from npusim.simulate.saved import busy_share

CAUSES = {
    "compute": "#2f6fde",
    "vector": "#35a38a",
    "dma": "#e0a21b",
    "dram": "#d4572c",
    "bank": "#9a5fc7",
    "noc": "#c04f8b",
    "dispatch": "#7b8796",
    "dependency": "#c5ccd8",
}
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 1000, 90, 10, 22, 44


def to_timeline_svg(report: Mapping[str, Any]) -> str:
    """Returns the lanes of a report's units over time, under what the time is due to."""
    whole = report["seconds"] or 1.0
    lanes = list(dict.fromkeys(event["lane"] for event in report["timeline"]))
    height = _TOP + _ROW * (len(lanes) + 1) + 40
    parts = [label(_LEFT, 18, _title(report), bold=True)]
    across = _WIDTH - _LEFT - _RIGHT
    for tick in Axis("", 0.0, whole).ticks():
        x = _LEFT + across * tick / whole
        parts.append(rule(x, _TOP - 6, x, height - 34))
        parts.append(label(x, _TOP - 10, f"{number(tick)}s", anchor="middle"))
    parts += _causes(report, whole, across)
    for row, lane in enumerate(lanes, 1):
        top = _TOP + _ROW * row
        parts.append(label(4, top + 14, lane))
        for span in _joined(report, lane, whole / across / 4):
            x, length = _LEFT + across * span.start / whole, span.end - span.start
            width, share = max(across * length / whole, 0.3), span.busy / length if length else 1.0
            shade = 0.25 + 0.75 * min(1.0, share)
            parts.append(bar(x, top + 2, width, _ROW - 4, _color(lane), span.name, shade))
    x = float(_LEFT)
    for cause, color in CAUSES.items():
        if report["stalls"][cause] > 0:
            words = f"{cause} {100 * report['stalls'][cause] / whole:.1f} %"
            parts += [bar(x, height - 20, 10, 10, color), label(x + 14, height - 11, words)]
            x += 30 + 6.6 * len(words)
    return picture(_WIDTH, height, parts)


def to_roofline_svg(report: Mapping[str, Any]) -> str:
    """Returns operations a second over operations a byte of DRAM, under the machine's peaks.

    Commands that compute nothing, or move nothing, have no place on it.
    """
    ops, rate = (report["peaks"][key] for key in ("ops_per_second", "bytes_per_second"))
    points = [
        (layer, layer["operations"] / layer["dram_bytes"], layer["operations"] / layer["seconds"])
        for layer in report["layers"]
        if layer["operations"] > 0 and layer["dram_bytes"] > 0 and layer["seconds"] > 0
    ]
    ridge = [ops / rate] if ops > 0 and rate > 0 else []
    x = Axis.over("operations a byte of DRAM", [*(p[1] for p in points), *ridge], log=True)
    y = Axis.over("operations a second", [*(p[2] for p in points), ops], log=True)
    chart = Chart(_title(report), x, y, width=760, height=420, low_legend=True)
    if ridge:
        foot = max(x.low, y.low / rate)
        corners = [(foot, foot * rate), (ridge[0], ops), (x.high, ops)]
        chart.line([c for c in corners if x.low <= c[0] <= x.high], "#1c2330")
    longest = max((layer["seconds"] for layer, _, _ in points), default=1.0)
    for layer, intensity, reached in points:
        note = (
            f"{layer['index']} {layer['node']}: bound by {layer['bound']}, {layer['seconds']:.3g} s"
        )
        radius = 2.5 + 8 * math.sqrt(layer["seconds"] / longest)
        chart.point(intensity, reached, CAUSES.get(layer["bound"], "#7b8796"), note, radius)
    for cause in dict.fromkeys(layer["bound"] for layer, _, _ in points):
        chart.line([], CAUSES.get(cause, "#7b8796"), cause)
    return chart.svg()


def _title(report: Mapping[str, Any]) -> str:
    names = ", ".join(filter(None, (report["model"], report["method"])))
    return f"{names} on {report['target']}, {report['mode']}: {number(report['seconds'])}s"


def _causes(report: Mapping[str, Any], whole: float, across: float) -> Iterator[str]:
    """Yields the row of commands, each divided by what its time is due to."""
    yield label(4, _TOP + 14, "due to")
    for layer in report["layers"]:
        x = _LEFT + across * layer["start_s"] / whole
        for cause, color in CAUSES.items():
            width = across * layer["stalls"][cause] / whole
            if width > 0.05:
                note = f"{layer['index']} {layer['node']}: {cause}"
                yield bar(x, _TOP + 2, width, _ROW - 4, color, note)
            x += width


@dataclass
class _Span:
    """What a lane does for one command, from a second to another, working `busy` of them."""

    start: float
    end: float
    busy: float
    layer: int
    name: str


def _joined(report: Mapping[str, Any], lane: str, gap: float) -> Iterator[_Span]:
    """Yields a lane's spans in order; those of a command that are a hair apart are one."""
    events = (event for event in report["timeline"] if event["lane"] == lane)
    held: _Span | None = None
    for event in sorted(events, key=lambda one: (one["start_s"], one["seconds"])):
        start, end = event["start_s"], event["start_s"] + event["seconds"]
        busy = event["seconds"] * busy_share(event)
        if held is not None and start - held.end <= gap and event["layer"] == held.layer:
            held.end, held.busy = max(end, held.end), held.busy + busy
            continue
        if held is not None:
            yield held
        held = _Span(start, end, busy, event["layer"], event["name"])
    if held is not None:
        yield held


def _color(lane: str) -> str:
    unit = lane.rpartition(" ")[2].rstrip("0123456789")
    known = {"mxu": "compute", "vpu": "vector", "host": "dispatch", "dram": "dram", "noc": "noc"}
    return CAUSES[known.get(unit, "dma")]

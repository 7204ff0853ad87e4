"""Charts as SVG without a plotting library: axes with ticks, lines, points, bars, a legend.

Sizes are in pixels. All text is escaped, and characters that XML has not are replaced: names come
from files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

COLORS = ("#2f6fde", "#d4572c", "#35a38a", "#9a5fc7", "#e0a21b", "#c04f8b", "#7b8796")
GRID, INK, DIM = "#e6eaf1", "#1c2330", "#5d6778"
_LETTER = 0.6  # width of a letter, of its height
_SIZE = 11
_STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Axis:
    """A scale from values to pixels.

    Attributes:
        title: with the unit.
        low, high: values at its ends.
        log: whether equal lengths are equal factors; low is then above 0.
    """

    title: str
    low: float
    high: float
    log: bool = False

    @classmethod
    def over(cls, title: str, values: Iterable[float], *, log: bool = False) -> Axis:
        """Returns one that holds values, from 0 on, or between whole powers of ten."""
        held = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
        if not log:
            return cls(title, 0.0, _above(max(held, default=1.0)))
        low, high = min(held, default=1.0), max(held, default=10.0)
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return cls(title, 10.0**first, 10.0 ** max(last, first + 1), log)

    def at(self, value: float) -> float:
        """Returns where a value stands, 0 … 1 between the ends."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(value) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Returns round values within."""
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            powers = range(first, last + 1, max(1, math.ceil((last - first) / 8)))
            return [10.0**power for power in powers]
        step = _step((self.high - self.low) / 5)
        count = math.floor((self.high - self.low) / step + 1e-9)
        return [self.low + step * i for i in range(count + 1)]


@dataclass
class Chart:
    """A picture of one pair of axes; parts are drawn in the order they are added."""

    title: str
    x: Axis
    y: Axis
    width: int = 640
    height: int = 360
    left: int = 64
    right: int = 16
    top: int = 32
    bottom: int = 44
    low_legend: bool = False  # at the bottom, where the lines leave room
    parts: list[str] = field(default_factory=list)
    names: list[tuple[str, str]] = field(default_factory=list)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Returns the pixels of a point."""
        across = self.width - self.left - self.right
        down = self.height - self.top - self.bottom
        return self.left + across * self.x.at(x), self.height - self.bottom - down * self.y.at(y)

    def line(
        self, points: Sequence[tuple[float, float]], color: str, name: str = "", dash: str = ""
    ) -> None:
        """Adds a line through points, named in the legend."""
        if points:
            path = "L".join("{:.2f} {:.2f}".format(*self.place(x, y)) for x, y in points)
            dashed = f' stroke-dasharray="{dash}"' if dash else ""
            self.parts.append(
                f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.6"{dashed}/>'
            )
        if name:
            self.names.append((name, color))

    def point(
        self, x: float, y: float, color: str, note: str, radius: float = 3.5, hollow: bool = False
    ) -> None:
        """Adds a point, with what a pointer over it shows."""
        px, py = self.place(x, y)
        fill = f'fill="#fff" stroke="{color}"' if hollow else f'fill="{color}" stroke="#fff"'
        self.parts.append(
            f'<circle cx="{px:.2f}" cy="{py:.2f}" r="{radius:.2f}" {fill}>'
            f"<title>{text(note)}</title></circle>"
        )

    def svg(self) -> str:
        """Returns the whole image."""
        return picture(self.width, self.height, [*self._frame(), *self.parts, *self._legend()])

    def inside(self) -> list[str]:
        """Returns its parts, for an image of several."""
        return [*self._frame(), *self.parts, *self._legend()]

    def _frame(self) -> list[str]:
        right, low = self.width - self.right, self.height - self.bottom
        found = [label(self.left, self.top - 14, self.title, bold=True)]
        for tick in self.x.ticks():
            x, _ = self.place(tick, self.y.low)
            found.append(rule(x, self.top, x, low))
            found.append(label(x, low + 15, number(tick), anchor="middle"))
        for tick in self.y.ticks():
            _, y = self.place(self.x.low, tick)
            found.append(rule(self.left, y, right, y))
            found.append(label(self.left - 6, y + 4, number(tick), anchor="end"))
        found.append(label((self.left + right) / 2, low + 33, self.x.title, anchor="middle"))
        middle = (self.top + low) / 2
        turn = f' transform="rotate(-90 14 {middle:.2f})"'
        found.append(label(14, middle, self.y.title, anchor="middle", more=turn))
        return found

    def _legend(self) -> list[str]:
        below = self.height - self.bottom - 15 * len(self.names)
        found, y = [], below if self.low_legend else self.top + 12
        for name, color in self.names:
            x = self.width - self.right - 8 - _LETTER * _SIZE * len(name)
            found.append(bar(x - 14, y - 8, 10, 8, color))
            found.append(label(x, y, name))
            y += 15
        return found


def picture(width: float, height: float, parts: Iterable[str]) -> str:
    """Returns an image of parts on white."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-family="sans-serif" font-size="{_SIZE}">'
    )
    white = f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>'
    return "\n".join([head, white, *parts, "</svg>"]) + "\n"


def side_by_side(charts: Sequence[Chart]) -> str:
    """Returns an image of charts of one size, each right of the one before."""
    parts, x = [], 0
    for chart in charts:
        parts += [f'<g transform="translate({x} 0)">', *chart.inside(), "</g>"]
        x += chart.width
    return picture(x, max(chart.height for chart in charts), parts)


def label(
    x: float, y: float, words: str, anchor: str = "start", bold: bool = False, more: str = ""
) -> str:
    """Returns a line of text."""
    weight, ink = (' font-weight="bold"', INK) if bold else ("", DIM)
    return (
        f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" fill="{ink}"{weight}{more}>'
        f"{text(words)}</text>"
    )


def rule(x1: float, y1: float, x2: float, y2: float) -> str:
    """Returns a line of the grid."""
    return f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{GRID}"/>'


def bar(
    x: float, y: float, width: float, height: float, color: str, note: str = "", shade: float = 1.0
) -> str:
    """Returns a filled rectangle, with what a pointer over it shows; a shade of 1 is opaque."""
    box = f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{color}"'
    if shade < 1:
        box += f' fill-opacity="{shade:.2f}"'
    return f"{box}><title>{text(note)}</title></rect>" if note else f"{box}/>"


def text(words: str) -> str:
    """Returns words as XML has them."""
    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words))


def number(value: float) -> str:
    """Returns a tick's value: 1500 is 1.5k, and 2e-6 is 2u."""
    if value == 0:
        return "0"
    power = min(max(math.floor(math.log10(abs(value)) / 3 + 1e-9), -4), 6)
    return f"{value / 1000.0**power:.4g}{'pnum kMGTPE'[power + 4].strip()}"


def _above(value: float) -> float:
    """Returns a round number that is no less."""
    if value <= 0:
        return 1.0
    step = _step(value / 5)
    return step * math.ceil(value / step - 1e-9)


def _step(rough: float) -> float:
    """Returns the round step next above a number."""
    unit = 10.0 ** math.floor(math.log10(rough))
    return next((unit * step for step in _STEPS if unit * step >= rough * (1 - 1e-9)), 10 * unit)

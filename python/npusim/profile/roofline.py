"""A profile under the roofs of its machine: what each command could reach, and how far it comes.

The model is that of S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual
performance model for multicore architectures", Communications of the ACM 52(4), 2009: a command
takes at least the time of its operations at the machine's best rate for their dtype, and that of
its bytes at the rate at which memory is read. Bytes that caches hold come faster, so that small
commands may lie above that roof.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from npusim.errors import Error
from npusim.files import printable_path, write_atomic
from npusim.ir.types import DTYPE_NAMES
from npusim.pictures.chart import COLORS, INK, Axis, Chart, label, number
from npusim.pictures.png import svg_to_png
from npusim.profile.profile import CommandProfile, Profile

READ = "read"  # among the limits of a profile: bytes a second
_FLOAT32 = "float32"
_BYTES = {"int8", "uint8"}
_BOUND_COLORS = {"compute": COLORS[0], "memory": COLORS[1]}


@dataclass(frozen=True, slots=True)
class Roof:
    """What bounds a command.

    Attributes:
        seconds: the least that it takes by the limits.
        bound: "compute" or "memory", whichever takes longer.
        dtype: of its factors, which chooses the rate of its operations.
    """

    seconds: float
    bound: str
    dtype: str


def roof_of(command: CommandProfile, limits: dict[str, float]) -> Roof:
    """Returns what bounds a command.

    Args:
        limits: as `Profile.limits` has them; "read" and "float32" at least.
    """
    dtype = _factors(command)
    dtype = dtype if dtype in limits else _FLOAT32
    compute = command.operations / limits[dtype]
    memory = (command.bytes_read + command.bytes_written) / limits[READ]
    return Roof(max(compute, memory), "compute" if compute > memory else "memory", dtype)


def share_of(commands: Sequence[CommandProfile], limits: dict[str, float]) -> float:
    """Returns how much of their limits commands reach together, 1 for all; 0 where no time is."""
    seconds = sum(command.seconds for command in commands)
    least = sum(roof_of(command, limits).seconds for command in commands)
    return least / seconds if seconds > 0 else 0.0


def _factors(command: CommandProfile) -> str:
    """Returns the dtype that a command multiplies in."""
    read = ("x_dtype", "w_dtype", "b_dtype", "k_dtype", "v_dtype", "dtype")
    dtypes = {
        DTYPE_NAMES.get(code, "") for k in read if isinstance(code := command.params.get(k), int)
    }
    if dtypes and dtypes <= _BYTES:
        return "int8"
    return dtypes.pop() if len(dtypes) == 1 else _FLOAT32


def to_roofline_svg(profile: Profile) -> str:
    """Returns operations a second over operations a byte, under the machine's roofs, as SVG.

    Commands that compute nothing, or move nothing, have no place on it.

    Raises:
        Error: the profile has no limits.
    """
    limits = _limits(profile)
    points = list(_points(profile, limits))
    rates = {dtype: rate for dtype, rate in limits.items() if dtype != READ}
    ridges = [rate / limits[READ] for rate in rates.values()]
    x = Axis.over("operations a byte", [*(p.intensity for p in points), *ridges], log=True)
    y = Axis.over("operations a second", [*(p.rate for p in points), *rates.values()], log=True)
    chart = Chart(_title(profile), x, y, width=860, height=480, low_legend=True)
    for (dtype, rate), ridge in zip(rates.items(), ridges, strict=True):
        foot = max(x.low, y.low / limits[READ])
        corners = [(foot, foot * limits[READ]), (ridge, rate), (x.high, rate)]
        chart.line([c for c in corners if x.low <= c[0] <= x.high], INK)
        across, up = chart.place(x.high, rate)
        words = f"{dtype} {number(rate)}/s"
        chart.parts.append(label(across - 4, up - 5, words, anchor="end", bold=True))
    longest = max((p.command.seconds for p in points), default=1.0)
    for point in points:
        color = _BOUND_COLORS[point.roof.bound]
        radius = 2.5 + 8 * math.sqrt(point.command.seconds / longest)
        chart.point(point.intensity, point.rate, color, point.note, radius)
    for bound in dict.fromkeys(point.roof.bound for point in points):
        chart.line([], _BOUND_COLORS[bound], f"bound by {bound}")
    return chart.svg()


def to_roofline_html(profile: Profile) -> str:
    """Returns one self-contained page: the picture, the limits, and the commands that lose most.

    Raises:
        Error: the profile has no limits.
    """
    limits = _limits(profile)
    rows = "\n".join(_rows(profile, limits))
    heads = ("command", "kernel", "source", "time", "least", "lost", "of limit", "bound by")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return _PAGE.format(
        title=escape(_title(profile)),
        picture=to_roofline_svg(profile),
        limits=escape(limits_text(limits)),
        head=head,
        rows=rows,
    )


def save_roofline(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Writes a profile's roofline in the form of the path's ending; as `Profile.save_roofline`."""
    suffix = Path(path).suffix.lower()
    if suffix == ".html":
        data = to_roofline_html(profile).encode()
    elif suffix == ".svg":
        data = to_roofline_svg(profile).encode()
    elif suffix == ".png":
        data = svg_to_png(to_roofline_svg(profile))
    else:
        raise Error(
            f"{printable_path(path)}: a roofline has no form of that ending.",
            hint="Let it end in .svg, .png or .html.",
        )
    write_atomic(path, data)


def limits_text(limits: dict[str, float]) -> str:
    """Returns limits as a line for people."""
    rates = ", ".join(
        f"{dtype} {1e-9 * rate:.0f}" for dtype, rate in limits.items() if dtype != READ
    )
    return f"measured limits: {1e-9 * limits[READ]:.1f} GB/s read; GFLOP/s or GOP/s: {rates}"


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 2em; color: #1c2330; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: 3px 12px 3px 0; text-align: right; white-space: nowrap; }}
td:nth-child(-n+3), th:nth-child(-n+3) {{ text-align: left; }}
tr:nth-child(even) {{ background: #f4f6fa; }}
svg {{ max-width: 100%; height: auto; }}
</style>
<h1>{title}</h1>
{picture}
<p>{limits}. A share above 100 % means that operands came from caches.</p>
<table><thead><tr>{head}</tr></thead><tbody>
{rows}
</tbody></table>
</html>
"""


@dataclass(frozen=True, slots=True)
class _Point:
    """A command's place under the roofs."""

    command: CommandProfile
    roof: Roof
    intensity: float
    rate: float

    @property
    def note(self) -> str:
        share = self.roof.seconds / self.command.seconds
        return (
            f"{self.command.index} {self.command.node} ({self.command.kernel}): "
            f"{self.command.seconds:.3g} s, {100 * share:.0f} % of what its "
            f"{self.roof.dtype} {self.roof.bound} bound allows"
        )


def _points(profile: Profile, limits: dict[str, float]) -> Iterator[_Point]:
    for command in profile.commands:
        moved = command.bytes_read + command.bytes_written
        if command.operations > 0 and moved > 0 and command.seconds > 0:
            rate = command.operations / command.seconds
            yield _Point(command, roof_of(command, limits), command.operations / moved, rate)


def _rows(profile: Profile, limits: dict[str, float]) -> Iterator[str]:
    """Yields rows of the table, those that lose most against their limits first."""
    roofs = [(command, roof_of(command, limits)) for command in profile.commands]
    for command, roof in sorted(roofs, key=lambda row: row[1].seconds - row[0].seconds):
        share = f"{100 * roof.seconds / command.seconds:.0f} %" if command.seconds > 0 else ""
        cells = (
            f"{command.index} {command.node}",
            command.library or command.kernel,
            command.source or command.module,
            f"{number(command.seconds)}s",
            f"{number(roof.seconds)}s",
            f"{number(max(0.0, command.seconds - roof.seconds))}s",
            share,
            f"{roof.bound}, {roof.dtype}",
        )
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _limits(profile: Profile) -> dict[str, float]:
    limits = dict(profile.limits)
    if not {READ, _FLOAT32} <= limits.keys():
        raise Error(
            f"The limits of {profile.device} were not measured.",
            hint="Profile on a CPU, with `limits=True` or --roofline.",
        )
    return limits


def _title(profile: Profile) -> str:
    names = ", ".join(filter(None, (profile.model, profile.method)))
    return f"{names} on {profile.device}: {number(profile.run_seconds)}s"

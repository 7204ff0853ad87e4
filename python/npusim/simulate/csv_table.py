"""Tables as CSV: the commands of a simulation, with the columns of Vela's per-layer file.

Columns that mean the same have Vela's names (ethos-u-vela, npu_performance.py); what this model
does not know, or counts otherwise, has no column: cycles of the array, of SRAM and of flash alone,
and multiply-accumulates apart from other arithmetic. `COLUMNS` says what each is.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from npusim.simulate.saved import REPORT_CAUSES

Cell = str | int | float | None
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # how a cell begins that spreadsheets compute


def to_layers_csv(report: Mapping[str, Any]) -> str:
    """Returns a table with a row for each command of a report, as `Simulation.report` gives it."""
    facts = _Facts(report)
    rows = ([cell(facts, layer) for cell in COLUMNS.values()] for layer in report["layers"])
    return to_csv(COLUMNS, rows)


def to_csv(header: Iterable[str], rows: Iterable[Iterable[Cell]]) -> str:
    """Returns CSV (RFC 4180, lines end with LF).

    Text that a spreadsheet would take for a formula gets an apostrophe before it, as names come
    from files; None is an empty cell.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_inert(name) for name in header])
    writer.writerows([_inert(cell) for cell in row] for row in rows)
    return out.getvalue()


def _inert(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


class _Facts:
    """What rows need of the whole report."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self.cycles = report["cycles"]
        self.clock = self.cycles / report["seconds"] if self.cycles else None
        self.dram_rate = report["peaks"]["bytes_per_second"]
        on_chip = [m for m in report["memories"] if m["name"] != "dram"]
        self.sram = on_chip[0] if on_chip else None
        self.starts = [step[0] for step in self.sram["occupancy"]] if self.sram else []

    def held(self, layer: Mapping[str, Any]) -> Cell:
        """Returns the bytes of the nearest memory that are in use when a command begins."""
        at = bisect_right(self.starts, layer["start_s"])
        return self.sram["occupancy"][at - 1][1] if self.sram and at else None

    def peak(self, layer: Mapping[str, Any]) -> Cell:
        """Returns that as percentage of the most that are."""
        held = self.held(layer)
        most = self.sram["peak_bytes"] if self.sram else 0
        return 100 * held / most if isinstance(held, (int, float)) and most else None

    def network(self, layer: Mapping[str, Any]) -> Cell:
        """Returns the percentage of the run's cycles."""
        return 100 * layer["cycles"] / self.cycles if self.cycles else None

    def dram_cycles(self, layer: Mapping[str, Any]) -> Cell:
        """Returns the cycles that DRAM alone would take."""
        if self.clock is None or not self.dram_rate:
            return None
        return layer["dram_bytes"] / self.dram_rate * self.clock


def _of(key: str) -> Callable[[_Facts, Mapping[str, Any]], Cell]:
    return lambda _, layer: layer[key]


def _stall(cause: str) -> Callable[[_Facts, Mapping[str, Any]], Cell]:
    return lambda _, layer: layer["stalls"][cause]


# Vela's first: its column, and what it is of a layer. Empty where the machine has no clock or no
# memory on the chip.
COLUMNS: dict[str, Callable[[_Facts, Mapping[str, Any]], Cell]] = {
    "Original Operator": _of("op"),  # of the graph
    "NNG Operator": _of("kernel"),  # what the compiler made of it
    "SRAM Usage": _Facts.held,  # bytes
    "Peak%": _Facts.peak,
    "Op Cycles": _of("cycles"),
    "Network%": _Facts.network,
    "DRAM AC": _Facts.dram_cycles,
    "Util%": lambda _, layer: 100 * layer["utilization"],
    "Name": _of("node"),
    # npusim's own.
    "Command": _of("index"),
    "Module": _of("module"),
    "Source": _of("source"),
    "Start s": _of("start_s"),
    "Seconds": _of("seconds"),
    "Bound": _of("bound"),
    **{f"Due to {cause} s": _stall(cause) for cause in REPORT_CAUSES},
    "Operations": _of("operations"),
    "DRAM bytes": _of("dram_bytes"),
    "SRAM bytes": _of("sram_bytes"),
    "Energy J": _of("energy_j"),
    "What would help": _of("advice"),
}

"""A simulated run: its times by command and by cause, and the report that all pictures are of."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from npusim.files import make_folder, transaction, write_atomic
from npusim.profile.commands import CommandFacts
from npusim.simulate.csv_table import to_layers_csv
from npusim.simulate.page import to_html
from npusim.simulate.perfetto import to_trace
from npusim.simulate.saved import REPORT_CAUSES, SCHEMA
from npusim.simulate.svg import to_roofline_svg, to_timeline_svg
from npusim.simulate.timed import CAUSES, Timed, Walked

assert set(REPORT_CAUSES) == set(CAUSES)

# What `Simulation.save` writes: names of files, and what makes their text of a report.
FILES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "report.json": lambda report: json.dumps(report, indent=1, allow_nan=False) + "\n",
    "report.html": to_html,
    "timeline.json": to_trace,
    "layers.csv": to_layers_csv,
    "timeline.svg": to_timeline_svg,
    "roofline.svg": to_roofline_svg,
}


@dataclass(frozen=True, slots=True)
class Layer:
    """A command of a run.

    Attributes:
        index: of the command in its method.
        facts: what it is, and of which node, module and line.
        timed: its times in ticks, of which `rate` are a second and `cycle` a cycle (0: no clock).
        peak: operations a second that the machine reaches at most of its dtype.
        static_w: watts that pass whatever is done.
    """

    index: int
    facts: CommandFacts
    timed: Timed
    rate: float
    cycle: int
    peak: float
    static_w: float

    @property
    def start(self) -> float:
        """The second of the run at which its dispatch begins."""
        return self.timed.start / self.rate

    @property
    def seconds(self) -> float:
        """Until the next command may begin."""
        return self.timed.ticks / self.rate

    @property
    def cycles(self) -> float | None:
        """Of the core's clock; None of a machine of which none is known."""
        return self.timed.ticks / self.cycle if self.cycle else None

    @property
    def stalls(self) -> dict[str, float]:
        """Seconds by cause; they sum to `seconds`."""
        return {cause: self.timed.causes.get(cause, 0) / self.rate for cause in REPORT_CAUSES}

    @property
    def bound(self) -> str:
        """The cause that most of its time is due to."""
        return max(REPORT_CAUSES, key=lambda cause: self.timed.causes.get(cause, 0))

    @property
    def utilization(self) -> float:
        """Operations, as a share of those that the machine could have done meanwhile."""
        possible = self.peak * self.seconds
        return self.facts.operations / possible if possible else 0.0

    @property
    def energy(self) -> float:
        """Joules, with what passes at rest meanwhile."""
        return sum(self.timed.energy.values()) + self.static_w * self.seconds


@dataclass(frozen=True)
class Simulation:
    """A run of a method on a machine.

    Attributes:
        model, method, target: names.
        mode: "loose" or "tight".
        walked: all times in ticks.
        layers: the commands in order.
        peaks: operations and bytes a second that the machine reaches at most.
        static_w: watts at rest; None: the machine's energy is not known.
        explained: by command, the formula with its operands and what would help, and what would
            help the whole run; asked when a report is made.
        memories: how full they are, as the report has it.
    """

    model: str
    method: str
    target: str
    mode: str
    walked: Walked = field(repr=False)
    layers: tuple[Layer, ...] = field(repr=False)
    peaks: Mapping[str, float] = field(repr=False)
    static_w: float | None = field(repr=False)
    explained: Callable[[], Explained] = field(repr=False, compare=False)
    memories: list[dict[str, Any]] = field(repr=False)

    @property
    def seconds(self) -> float:
        """Of the run."""
        return self.walked.ticks / self.walked.rate

    @property
    def cycles(self) -> float | None:
        """Of the core's clock; None of a machine of which none is known."""
        cycle = self.layers[0].cycle if self.layers else 0
        return self.walked.ticks / cycle if cycle else None

    @property
    def stalls(self) -> dict[str, float]:
        """Seconds of the run by cause; they sum to `seconds`."""
        causes = self.walked.causes
        return {cause: causes[cause] / self.walked.rate for cause in REPORT_CAUSES}

    @property
    def energy(self) -> dict[str, float] | None:
        """Joules by part, "static" and "total" among them; None where they are not known."""
        if self.static_w is None:
            return None
        parts = dict.fromkeys(("mac", "vector", "sram", "dram", "noc"), 0.0)
        for layer in self.layers:
            for name, joules in layer.timed.energy.items():
                parts[name] += joules
        parts["static"] = self.static_w * self.seconds
        return {**parts, "total": sum(parts.values())}

    @property
    def timeline(self) -> list[dict[str, Any]]:
        """What each unit does when, as the report has it."""
        return [event for layer in self.layers for event in _events(layer)]

    @cached_property
    def report(self) -> dict[str, Any]:
        """Everything as JSON types: what files and pages are made from."""
        explained = self.explained()
        texts = zip(self.layers, explained.formulas, explained.advice, strict=True)
        return {
            "schema": SCHEMA,
            "model": self.model,
            "method": self.method,
            "target": self.target,
            "mode": self.mode,
            "seconds": self.seconds,
            "cycles": self.cycles,
            "stalls": self.stalls,
            "energy": self.energy,
            "peaks": dict(self.peaks),
            "memories": self.memories,
            "advice": list(explained.changes),
            "layers": [
                _layer(layer, formula, advice, self.static_w is not None)
                for layer, formula, advice in texts
            ],
            "timeline": self.timeline,
            "timeline_dropped": sum(
                layer.timed.units - len(layer.timed.events) for layer in self.layers
            ),
        }

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Writes the report and all that is made from it into a folder; whole or not at all.

        Raises:
            Error: the folder cannot be made, or a file not be written.
        """
        texts = {name: make(self.report) for name, make in FILES.items()}
        with transaction():
            place = make_folder(folder)
            for name, text in texts.items():
                write_atomic(place / name, text.encode())
        return [place / name for name in texts]


@dataclass(frozen=True, slots=True)
class Explained:
    """Formulas and what would help.

    Attributes:
        formulas, advice: by command.
        changes: of the machine, with the seconds of the whole run, the fastest first.
    """

    formulas: Iterable[str]
    advice: Iterable[str]
    changes: Iterable[dict[str, Any]]


def _layer(layer: Layer, formula: str, advice: str, knows_energy: bool) -> dict[str, Any]:
    facts = layer.facts
    return {
        "index": layer.index,
        "node": facts.node,
        "op": facts.op,
        "kernel": facts.kernel,
        "module": facts.module,
        "source": facts.source,
        "start_s": layer.start,
        "seconds": layer.seconds,
        "cycles": layer.cycles,
        "stalls": layer.stalls,
        "operations": facts.operations,
        "dram_bytes": layer.timed.dram_bytes,
        "sram_bytes": layer.timed.sram_bytes,
        "utilization": layer.utilization,
        "bound": layer.bound,
        "energy_j": layer.energy if knows_energy else None,
        "formula": formula,
        "advice": advice,
    }


def _events(layer: Layer) -> Iterable[dict[str, Any]]:
    for event in layer.timed.events:
        yield {
            "lane": event.lane,
            "layer": layer.index,
            "name": layer.facts.node,
            "start_s": (layer.timed.start + event.start) / layer.rate,
            "seconds": (event.end - event.start) / layer.rate,
            "busy_s": event.busy / layer.rate,
            "count": event.count,
        }

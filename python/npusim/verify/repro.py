"""A failing graph that travels: the graph, how to make its data, the target; never weights.

A repro folder holds `graph.json` (the graph), `repro.json` (target, seed, tolerance and the
measures of every input and weight) and `command.txt` (what to type).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npusim.compile import compile
from npusim.errors import Error, first_line
from npusim.files import make_folder, write_atomic
from npusim.ir.graph import Graph
from npusim.ir.types import TensorType
from npusim.ops.reference import run_graph
from npusim.targets import TargetConfig
from npusim.verify.comparison import compare_all
from npusim.verify.native_run import NativeRun
from npusim.verify.synthetic import TensorData
from npusim.version import __version__

FORMAT = 1


@dataclass(frozen=True)
class Failure:
    """How a graph fails.

    Attributes:
        kind: `differs`, or the stage that raised and what: `compile UnsupportedOpError`,
            `run Error`; `crash` and `hang` when the process did not come back.
        message: for people.
        outputs: names of the outputs that differ; empty for other kinds.
    """

    kind: str
    message: str
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repro:
    """A graph, where to run it, and how to make its data.

    Attributes:
        data: by name of an input, weight or state of the graph.
        tolerance: replaces `TOLERANCE` for floating-point values.
    """

    graph: Graph
    target: str
    data: Mapping[str, TensorData]
    seed: int = 0
    tolerance: float | None = None

    def run(self) -> Failure | None:
        """Compiles and runs the graph and compares its outputs with PyTorch's.

        Returns:
            How it fails; None when it does not, or when PyTorch itself cannot run it.

        Raises:
            TargetConstraintError: there is no such target here.
        """
        from npusim.runtime import Device

        TargetConfig.named(self.target)
        inputs = [self._make(value.name) for value in self.graph.inputs]
        weights = {weight.key: self._make(weight.name) for weight in self.graph.weights}
        try:
            expected = run_graph(self.graph, inputs, weights)
        except Error:
            return None
        try:
            program = compile(self.graph, target=self.target)
        except Exception as error:  # what is no Error is a defect, which has to be reduced as well
            return Failure(f"compile {type(error).__name__}", _told(error))
        names = [output.name for output in self.graph.outputs]
        try:
            actual = NativeRun(program, Device(program.target), inputs, weights).run()
            compared = compare_all(names, actual, expected, self.tolerance)
        except Exception as error:
            return Failure(f"run {type(error).__name__}", _told(error))
        wrong = [c for c in compared if not c.ok]
        if not wrong:
            return None
        return Failure("differs", "\n".join(map(str, wrong)), tuple(c.name for c in wrong))

    def of(self, graph: Graph) -> Repro:
        """Returns the same for another graph over the same values."""
        return replace(self, graph=graph)

    def save(self, folder: str | Path) -> None:
        """Writes the folder, each file whole or not at all.

        Raises:
            Error: the folder cannot be written to.
        """
        path = make_folder(folder)
        facts = {
            "format": FORMAT,
            "npusim": __version__,
            "target": self.target,
            "seed": self.seed,
            "tolerance": self.tolerance,
            "data": {name: self.data[name].to_json() for name in _given(self.graph)},
        }
        self.graph.save(path / "graph.json")
        write_atomic(path / "repro.json", json.dumps(facts, indent=1).encode())
        write_atomic(path / "command.txt", b"npusim reproduce .\n")

    @classmethod
    def load(cls, folder: str | Path) -> Repro:
        """Reads a folder that `save` wrote.

        Raises:
            Error: a file is missing or malformed, or of another version of the format.
        """
        path = Path(folder)
        graph = Graph.load(path / "graph.json")
        try:
            facts: Any = json.loads((path / "repro.json").read_text("utf-8"))
            if facts["format"] != FORMAT:
                raise Error(f"{path} is of format {facts['format']}; this npusim reads {FORMAT}.")
            data = {str(k): TensorData.from_json(v) for k, v in facts["data"].items()}
            tolerance = None if facts["tolerance"] is None else float(facts["tolerance"])
            repro = cls(graph, str(facts["target"]), data, int(facts["seed"]), tolerance)
        except OSError as error:
            raise Error(f"Cannot read {path / 'repro.json'}: {error.strerror}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Error(f"{path / 'repro.json'} is malformed: {error!r}.") from error
        for name, type in _given(graph).items():
            if name not in data or data[name].type != type.with_order(None):
                raise Error(f"{path / 'repro.json'} does not describe {name}, {type}.")
        return repro

    def _make(self, name: str) -> Any:
        return self.data[name].make(name, self.seed)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, Error) else first_line(error)


def _given(graph: Graph) -> dict[str, TensorType]:
    """Returns what a run of the graph needs: its inputs and weights, by name."""
    inputs = {value.name: value.type for value in graph.inputs}
    return inputs | {weight.name: weight.type for weight in graph.weights}

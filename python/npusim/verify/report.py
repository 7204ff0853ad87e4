"""What a comparison found: outputs, and the first command that diverges, for people and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from torch import Tensor

from npusim.ir.types import TensorType
from npusim.ops.reference import type_of
from npusim.verify.comparison import Comparison, without_infinities

Progress: TypeAlias = "Callable[[str, int, int], object]"


@dataclass(frozen=True)
class InputStatistics:
    """What a command was given, by the reference.

    Attributes:
        lowest, highest, mean: of the finite elements; None where there are none.
        nans, infinities: how many elements are not finite.
        max_rel: error of the native value, relative to the largest magnitude; None for weights,
            constants and inputs of the program, which are the same on both sides.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    lowest: float | None
    highest: float | None
    mean: float | None
    nans: int
    infinities: int
    max_rel: float | None

    @classmethod
    def of(cls, name: str, tensor: Tensor, max_rel: float | None = None) -> InputStatistics:
        """Measures a tensor."""
        type = type_of(tensor)
        flat = tensor.detach().cpu().double().reshape(-1)
        finite = flat[flat.isfinite()]
        measures = (finite.min(), finite.max(), finite.mean()) if finite.numel() else (None,) * 3
        lowest, highest, mean = (None if m is None else float(m) for m in measures)
        nans, infinities = int(flat.isnan().sum()), int(flat.isinf().sum())
        return cls(name, type.dtype, type.shape, lowest, highest, mean, nans, infinities, max_rel)

    def __str__(self) -> str:
        text = f"{self.name} {TensorType(self.dtype, self.shape)}"
        if self.mean is not None:
            text += f": {self.lowest:.4g} … {self.highest:.4g}, mean {self.mean:.4g}"
        for count, what in ((self.nans, "NaN"), (self.infinities, "infinite")):
            text += f", {count} {what}" if count else ""
        return text if self.max_rel is None else f"{text}; max rel {self.max_rel:.3g}"


@dataclass(frozen=True)
class Divergence:
    """A command of a program whose value is not the reference's.

    Attributes:
        command: index in the method.
        kernel: what it calls.
        node: the graph node it belongs to, with `op` and `source`.
        value: its result, compared with the reference.
        own: the same where every command before it was given the reference's values: what the
            command adds by itself.
        inputs: the tensors it was given.
        partition: index in the plan of a partitioned model.
    """

    command: int
    kernel: str
    node: str
    op: str
    source: str
    value: Comparison
    own: Comparison | None = None
    inputs: tuple[InputStatistics, ...] = ()
    partition: int | None = None

    @property
    def cause(self) -> str:
        """`command` when it is wrong on the reference's inputs too, `accumulated` when its error
        comes with its inputs, and `unknown` when that was not tried."""
        if self.own is None:
            return "unknown"
        return "accumulated" if self.own.ok else "command"

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON-able data."""
        fields = asdict(replace(self, own=None))
        own = self.own.to_json() if self.own is not None else None
        inputs = [without_infinities(asdict(i)) for i in self.inputs]
        found = {"value": self.value.to_json(), "own": own, "inputs": inputs, "cause": self.cause}
        return {**fields, **found}

    def place(self) -> str:
        """Returns which command of which node it is."""
        source = f" ({self.source})" if self.source else ""
        within = "" if self.partition is None else f"partition {self.partition}, "
        return f"{within}command {self.command} {self.kernel}, node {self.node} {self.op}{source}"

    def __str__(self) -> str:
        lines = [f"{self.place()}: {self.value}"]
        if self.own is not None:
            how = {
                "command": "The command itself: given the reference's inputs, its",
                "accumulated": "Accumulated before it: given the reference's inputs, its",
            }[self.cause]
            lines.append(f"    {how} max rel is {self.own.max_rel:.3g}.")
        lines += [f"    input {i}" for i in self.inputs]
        return "\n".join(lines)


@dataclass(frozen=True)
class PassDivergence:
    """A pass after which a graph computes something else.

    Attributes:
        name: of the pass; empty where the graph is not known that the passes were given.
        index: in the pipeline.
        node: the first node after the pass whose value is another one, with `op` and `source`;
            empty where no node kept its name.
        value: that node's value, or the output that differs.
        inputs: what the node was given.
        partition: index in the plan of a partitioned model.
    """

    name: str
    index: int
    value: Comparison
    node: str = ""
    op: str = ""
    source: str = ""
    inputs: tuple[InputStatistics, ...] = ()
    partition: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON-able data."""
        inputs = [without_infinities(asdict(i)) for i in self.inputs]
        keys = ("name", "index", "node", "op", "source", "partition")
        named = {key: getattr(self, key) for key in keys}
        return {**named, "value": self.value.to_json(), "inputs": inputs}

    def __str__(self) -> str:
        within = "" if self.partition is None else f"partition {self.partition}: "
        if not self.name:
            return (
                f"{within}the program's own graph differs from the model when PyTorch runs it, "
                f"so its commands are not at fault: {self.value}"
            )
        source = f" ({self.source})" if self.source else ""
        where = f"node {self.node} {self.op}{source}" if self.node else "an output"
        lines = [f"{within}the graph after `{self.name}` differs: {where}: {self.value}"]
        return "\n".join([*lines, *(f"    input {i}" for i in self.inputs)])


@dataclass(frozen=True)
class EdgeResult:
    """How the outputs compare on inputs at an edge.

    Attributes:
        name: of the edge, as `edge_inputs` has it.
        inputs: what was given.
    """

    name: str
    outputs: tuple[Comparison, ...]
    inputs: tuple[Tensor, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every output is within its tolerance."""
        return all(output.ok for output in self.outputs)

    def to_json(self) -> dict[str, Any]:
        """Returns the comparison as JSON-able data, without the inputs."""
        outputs = [output.to_json() for output in self.outputs]
        return {"name": self.name, "ok": self.ok, "outputs": outputs}


@dataclass(frozen=True)
class Report:
    """What a comparison found. `print(report)` shows it; `ok` is the answer.

    Attributes:
        first_divergence: the first command whose value is out of tolerance; where none is, though
            a result is, the one with the largest error.
        largest_own: the command that adds most by itself, up to the first divergence.
        edges: the same comparison on inputs at the edges.
        fault: the pass that computes something else, so that no command is to blame for it.
    """

    subject: str
    outputs: tuple[Comparison, ...]
    first_divergence: Divergence | None = None
    largest_own: Divergence | None = None
    edges: tuple[EdgeResult, ...] = ()
    fault: PassDivergence | None = None

    @property
    def ok(self) -> bool:
        """Whether every output is within its tolerance, on edge inputs too."""
        return all(o.ok for o in self.outputs) and all(edge.ok for edge in self.edges)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON-able data."""
        first, own = self.first_divergence, self.largest_own
        return {
            "subject": self.subject,
            "ok": self.ok,
            "outputs": [output.to_json() for output in self.outputs],
            "edges": [edge.to_json() for edge in self.edges],
            "fault": self.fault.to_json() if self.fault else None,
            "first_divergence": first.to_json() if first else None,
            "largest_own": own.to_json() if own else None,
        }

    def __str__(self) -> str:
        lines = [f"{self.subject}: {'agrees' if self.ok else 'DIFFERS'}"]
        lines += [f"  {'ok  ' if output.ok else 'FAIL'} {output}" for output in self.outputs]
        lines += self._edge_lines()
        if self.fault is not None:
            lines.append(f"  {self.fault}")
        first, own = self.first_divergence, self.largest_own
        if first is not None:
            lines.append(f"  first divergence: {first}")
        if own is not None and (first is None or own.command != first.command):
            assert own.own is not None
            lines.append(f"  largest error of its own: {own.place()}: {own.own}")
        return "\n".join(lines)

    def _edge_lines(self) -> list[str]:
        fine = [edge.name for edge in self.edges if edge.ok]
        lines = [f"  ok   edge inputs: {', '.join(fine)}"] if fine else []
        for edge in self.edges:
            lines += [f"  FAIL {edge.name}: {output}" for output in edge.outputs if not output.ok]
        return lines

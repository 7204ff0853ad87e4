"""PartitionPlan: a graph cut into partitions, what crosses between them, and why.

Owns the plan as data. Partitions run in order. A partition is a graph of its own, whose inputs and
outputs are values of the whole graph under their own names; a native one carries its program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from npusim.ir.graph import Graph, Node
from npusim.ir.symbolic import upper
from npusim.ir.types import TensorType
from npusim.partition.grouping import Cut
from npusim.partition.support import Verdict
from npusim.program.program import CompiledProgram

NATIVE, PYTORCH = "native", "pytorch"
CALLER = -1  # as the source of a transfer: an argument, or a state
_SHOWN = 3  # operators that a summary names


@dataclass(frozen=True, repr=False)
class Partition:
    """Nodes that one executor runs together.

    Attributes:
        index: its place in the order of execution.
        executor: "native" (a compiled program) or "pytorch" (operators called on the CPU).
        at_load: it depends on weights alone and runs once, when they are loaded.
        graph: its nodes, with copies of the static ones they read; outputs are named as the values
            they show.
        program: of a native partition, once it is compiled.
        witnesses: inputs of the graph whose data nobody reads: their sizes tell those symbolic
            sizes that no other input tells.
    """

    index: int
    executor: str
    at_load: bool
    graph: Graph
    program: CompiledProgram | None = None
    witnesses: tuple[str, ...] = ()

    def __repr__(self) -> str:
        when = ", at load" if self.at_load else ""
        return f"Partition({self.index}: {len(self.graph.nodes)} nodes, {self.executor}{when})"

    @property
    def is_native(self) -> bool:
        """Whether a compiled program runs it."""
        return self.executor == NATIVE

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its nodes, in order."""
        return tuple(node.name for node in self.graph.nodes)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values it reads that others make or the caller supplies."""
        return tuple(v.name for v in self.graph.inputs if v.name not in self.witnesses)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The values it makes that others read or the caller receives."""
        return tuple(output.value for output in self.graph.outputs)

    @property
    def commands(self) -> tuple[tuple[str, str], ...]:
        """Of a compiled partition, each command's kernel and the node it came from, in order."""
        if self.program is None:
            return ()
        kernels, nodes = self.program.kernels, self.program.nodes
        commands = self.program.methods[0].commands
        return tuple((kernels[c.kernel].name, nodes[c.node].name) for c in commands)


@dataclass(frozen=True, slots=True)
class TransferOp:
    """A value that one side made and the other reads. It crosses once, whoever reads it there.

    Attributes:
        value: its name.
        type: its dtype and shape.
        source: index of the partition that makes it; CALLER for a state.
        target: index of the first partition that reads it on the other side.
        to: the executor it crosses to.
        at_load: it crosses once, when the weights are loaded, and stays there.
    """

    value: str
    type: TensorType
    source: int
    target: int
    to: str
    at_load: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that cross; of symbolic sizes, at most."""
        return upper(self.type.nbytes)


@dataclass(frozen=True, repr=False)
class PartitionPlan:
    """What runs where, in which order.

    Attributes:
        graph: the whole model.
        target: the target's name, and `device` the backend that runs its programs.
        partitions: in order of execution.
        transfers: in order of execution, each before the partition that needs it.
        verdicts: by node, why it runs where it runs.
        cut: the groups that the partitions were built from.
    """

    graph: Graph
    target: str
    device: str
    partitions: tuple[Partition, ...]
    transfers: tuple[TransferOp, ...]
    verdicts: Mapping[str, Verdict]
    cut: Cut

    @cached_property
    def steps(self) -> tuple[Partition | TransferOp, ...]:
        """Partitions and transfers as they take place."""
        steps: list[Partition | TransferOp] = []
        for partition in self.partitions:
            steps += [t for t in self.transfers if t.target == partition.index]
            steps.append(partition)
        return tuple(steps)

    @cached_property
    def fallback_nodes(self) -> tuple[Node, ...]:
        """The nodes that PyTorch runs, in order."""
        return tuple(n for n in self.graph.nodes if not self.verdicts[n.name].is_native)

    @property
    def crossing_bytes(self) -> int:
        """Bytes that cross at each call; with symbolic sizes, at most."""
        return sum(t.nbytes for t in self.transfers if not t.at_load)

    @property
    def carried_states(self) -> tuple[str, ...]:
        """States that no single program keeps: read or updated by PyTorch or several partitions."""
        kept = {s.name for p in self.partitions for s in p.graph.states}
        return tuple(s.name for s in self.graph.states if s.name not in kept)

    def partition_of(self, node: str) -> Partition:
        """Returns the partition that runs a node; of a copied one, the first. KeyError if none."""
        for partition in self.partitions:
            if node in partition.nodes:
                return partition
        raise KeyError(node)

    def __reduce__(self) -> tuple[Any, ...]:
        # By the bytes of its file, which are validated where they arrive.
        from npusim.partition.plan_file import read_plan, write_plan

        return read_plan, (write_plan(self),)

    def __copy__(self) -> PartitionPlan:
        return self

    def __repr__(self) -> str:
        native = sum(p.is_native for p in self.partitions)
        return (
            f"PartitionPlan({self.graph.name} for {self.target}: {native} native partitions, "
            f"{len(self.partitions) - native} on PyTorch)"
        )

    def _repr_html_(self) -> str:
        from npusim.ir.notebook import cut, picture, table

        rows = [
            (
                p.index,
                p.executor,
                len(p.graph.nodes),
                cut(", ".join(p.inputs)),
                cut(", ".join(p.outputs)),
            )
            for p in self.partitions
        ]
        head = ("partition", "runs on", "nodes", "reads", "makes")
        return table(f"{self!r}: {self.summary()}", head, rows) + picture(self.graph)

    def summary(self) -> str:
        """Returns one line: how much is native, and what is not, from which line of the model."""
        total, others = len(self.graph.nodes), self.fallback_nodes
        line = f"{total - len(others)} of {total} nodes native"
        if not others:
            return line
        counts = Counter((n.op, _place(n)) for n in others)
        named = [f"{op}{f' x{n}' if n > 1 else ''}{place}" for (op, place), n in counts.items()]
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        return f"{line}; {len(others)} on PyTorch: {', '.join(named[:_SHOWN])}{more}"

    def save(self, path: str | Path) -> None:
        """Writes the plan with the programs of its native partitions: one file, whole or not.

        Raises:
            Error: the path cannot be written.
        """
        from npusim.partition.plan_file import save_plan

        save_plan(self, path)

    @classmethod
    def load(cls, path: str | Path) -> PartitionPlan:
        """Reads a plan.

        Raises:
            ProgramFormatError: truncated, corrupt, of another version, or not a plan.
            Error: the file cannot be read.
        """
        from npusim.partition.plan_file import load_plan

        return load_plan(path)


def _place(node: Node) -> str:
    """Returns ` (detector.py:88)`, or the module's path where no line is known."""
    source = node.source
    if source is None:
        return ""
    place = f"{Path(source.file).name}:{source.line}" if source.file else source.module
    return f" ({place})" if place else ""

"""Shrinks a failing graph to a small part that fails in the same way.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002)
over the nodes of a graph. Whatever a part reads from the rest becomes an input, with data like
what the whole graph computes there, so every candidate is a model of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from npusim.errors import Error
from npusim.ir.graph import Graph
from npusim.ir.subgraph import live_outputs, subgraph
from npusim.ops.reference import GraphRun
from npusim.targets import TargetConfig
from npusim.verify.repro import Failure, Repro
from npusim.verify.synthetic import TensorData

if TYPE_CHECKING:
    from torch import Tensor

Check = Callable[[Repro], "Failure | None"]

_SECONDS = 600  # that one candidate may take in a process of its own


def reduce(
    graph: Graph,
    inputs: Sequence[Tensor],
    weights: Mapping[str, Tensor],
    *,
    target: str = "cpu",
    seed: int = 0,
    tolerance: float | None = None,
    isolate: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[Repro, Failure]:
    """Returns a small part of a graph that fails, and how.

    Args:
        graph: as extracted, before any pass.
        inputs: its inputs, in order; measured, and not kept.
        weights: a state_dict.
        target: where the graph fails: the name of a target whose device is here.
        tolerance: replaces `TOLERANCE` for floating-point values.
        isolate: run every candidate in a process of its own. That is slower, and is done anyway
            when the whole graph takes its process down.
        report: told what is being tried.

    Raises:
        TargetConstraintError: there is no such target, so that nothing could compile.
        Error: the graph does not fail, or only with the values it was given.
    """
    TargetConfig.named(target)
    report("measuring every value")
    data = _measure(graph, inputs, weights)
    whole = subgraph(graph, [n.name for n in graph.nodes], dict.fromkeys(_results(graph)))
    repro = Repro(whole, target, data, seed, tolerance)
    report("running the whole graph in a process of its own")
    failure = run_isolated(repro)
    if failure is None:
        raise Error(
            "The graph does not fail on values like the ones it was given.",
            hint="What fails may depend on the values themselves: `npusim verify --bisect` names "
            "the command that differs with the real ones. Another --seed may do.",
        )
    alone = isolate or failure.kind in ("crash", "hang")
    return _Search(repro, failure, run_isolated if alone else Repro.run, report).smallest()


def run_isolated(repro: Repro) -> Failure | None:
    """Runs a repro in a process of its own, which may crash or hang."""
    with tempfile.TemporaryDirectory() as folder:
        repro.save(folder)
        command = [sys.executable, "-m", "npusim.verify.reproduce", folder]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return Failure("hang", f"no result after {_SECONDS} s")
    if done.returncode < 0:
        return Failure("crash", f"the process ended by signal {-done.returncode}")
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        reason = said[-1] if said else f"exit code {done.returncode}"
        raise Error(
            f"A candidate could not be run: {reason}.",
            hint="A repro folder shows all of it: python -m npusim.verify.reproduce FOLDER",
        )
    kind, _, rest = done.stdout.decode(errors="replace").partition("\n")
    outputs, _, message = rest.partition("\n")
    return Failure(kind, message.strip(), tuple(outputs.split())) if kind else None


def _results(graph: Graph) -> list[str]:
    """Returns what the graph's nodes compute for the caller and for the next call."""
    made = graph.producers
    return [o.value for o in (*graph.outputs, *graph.updates) if o.value in made]


def _measure(
    graph: Graph, inputs: Sequence[Tensor], weights: Mapping[str, Tensor]
) -> dict[str, TensorData]:
    run = GraphRun(graph, inputs, weights)
    data: dict[str, TensorData] = {}
    for node, results in run:
        for name, tensor in run.operands(node).items():
            if name not in data:
                data[name] = TensorData.like(tensor)
        for value, tensor in zip(node.outputs, results, strict=True):
            data[value.name] = TensorData.like(tensor)
    return data


class _Search:
    """Looks for the smallest part; every step keeps a part that fails in the same way."""

    def __init__(
        self, repro: Repro, failure: Failure, check: Check, report: Callable[[str], None]
    ) -> None:
        self.whole, self.check, self.report = repro, check, report
        self.best, self.failure = repro, failure
        self.tried: set[frozenset[str]] = set()

    def smallest(self) -> tuple[Repro, Failure]:
        """Returns the part and its failure."""
        self._shorten(lambda names, n: names[:n])
        self._keep_what_fails()
        self._shorten(lambda names, n: names[len(names) - n :])
        size = max(len(self._names()) // 2, 1)
        while True:
            smaller = self._drop(size)
            if not smaller and size == 1:
                return self.best, self.failure
            size = max(size // 2, 1) if not smaller else min(size, len(self._names()))

    def _names(self) -> list[str]:
        return [node.name for node in self.best.graph.nodes]

    def _shorten(self, part: Callable[[list[str], int], list[str]]) -> None:
        """Finds how short a stretch of the nodes may be, if longer ones fail where one does."""
        names = self._names()
        low, high = 1, len(names)  # `high` fails
        while low < high:
            middle = (low + high) // 2
            if self._fails(part(names, middle)):
                high = middle
            else:
                low = middle + 1

    def _keep_what_fails(self) -> None:
        """Drops the outputs that are right, and the nodes that only they need."""
        if not self.failure.outputs:
            return
        needed, graph = set(self.failure.outputs), self.best.graph
        for node in reversed(graph.nodes):
            if needed & {v.name for v in node.outputs}:
                needed.update(i for i in node.inputs if i is not None)
        self._fails([n.name for n in graph.nodes if needed & {v.name for v in n.outputs}])

    def _drop(self, size: int) -> bool:
        """Tries to do without each stretch of `size` nodes; returns whether one could go."""
        names, found, start = self._names(), False, 0
        while start < len(names):
            rest = names[:start] + names[start + size :]
            if rest and self._fails(rest):
                names, found = self._names(), True
            else:
                start += size
        return found

    def _fails(self, names: list[str]) -> bool:
        """Whether these nodes fail as the whole did; if so they are the best so far."""
        key = frozenset(names)
        if key in self.tried:
            return False
        self.tried.add(key)
        self.report(f"{len(names)} of {len(self.whole.graph.nodes)} nodes, try {len(self.tried)}")
        candidate = self.whole.of(subgraph(self.whole.graph, key, self._outputs(key)))
        failure = self.check(candidate)
        if failure is None or failure.kind != self.failure.kind:
            return False
        self.best, self.failure = candidate, failure
        return True

    def _outputs(self, names: frozenset[str]) -> list[str]:
        """Returns what these nodes should return: no more than fails, for fusion's sake."""
        nodes = [node for node in self.whole.graph.nodes if node.name in names]
        made = {v.name for node in nodes for v in node.outputs}
        wrong = [name for name in self.failure.outputs if name in made]
        return wrong or live_outputs(self.whole.graph, names)

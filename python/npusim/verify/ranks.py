"""Running a graph of several ranks through PyTorch, the ranks in turn: the reference of programs
that are split among ranks (`npusim.passes.shard`).

Node by node, each rank computes its own; where values are exchanged all ranks have got there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from npusim.errors import ShapeError
from npusim.ir.graph import Graph, Node
from npusim.ops.ranks import ALL_GATHER, ALL_REDUCE, RANK_PART, part_of_rank
from npusim.ops.reference import constant_tensor, run_node, zeros


class RankedRun:
    """A run of a graph on all ranks.

    Attributes:
        states: by rank, what the run leaves in each state.
        values: by rank, every value.
    """

    def __init__(
        self,
        graph: Graph,
        ranks: int,
        inputs: Sequence[Tensor],
        weights: Mapping[str, Tensor],
        states: Sequence[Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Runs the graph.

        Args:
            inputs: in order, the same for all ranks.
            weights: whole tensors by key, alias or name.
            states: by rank; zeros by default.

        Raises:
            ShapeError: `ranks` is not what the graph was split for.
        """
        self._ranks = ranks
        self.values: list[dict[str, Tensor]] = []
        for rank in range(ranks):
            values = {v.name: t for v, t in zip(graph.inputs, inputs, strict=True)}
            for weight in graph.weights:
                names = (weight.key, *weight.aliases, weight.name)
                values[weight.name] = next(weights[name] for name in names if name in weights)
            values.update((c.name, constant_tensor(c)) for c in graph.constants)
            for state in graph.states:
                known = states[rank] if states is not None else {}
                values[state.name] = known.get(state.name, zeros(state.type))
            self.values.append(values)
        with torch.no_grad():
            for node in graph.nodes:
                self._run(node)
        self.states = [
            {**{s.name: own[s.name] for s in graph.states}}
            | {u.name: own[u.value] for u in graph.updates}
            for own in self.values
        ]
        self._outputs = [o.value for o in graph.outputs]

    def outputs(self, rank: int = 0) -> list[Tensor]:
        """Returns a rank's results, in order."""
        return [self.values[rank][name] for name in self._outputs]

    def _run(self, node: Node) -> None:
        ranks = node.attrs.get("ranks") if node.op in _OF_RANKS else self._ranks
        if ranks != self._ranks:
            raise ShapeError(f"{node.name} is of {ranks} ranks, and {self._ranks} run.")
        given = [[None if i is None else own[i] for i in node.inputs] for own in self.values]
        results = self._results(node, given)
        for own, values in zip(self.values, results, strict=True):
            own.update(zip((v.name for v in node.outputs), values, strict=True))

    def _results(self, node: Node, given: list[list[Any]]) -> list[list[Tensor]]:
        if node.op == RANK_PART:
            axis, parts = (int(str(node.attrs[name])) for name in ("axis", "parts"))
            at = [part_of_rank(rank, parts, self._ranks) for rank in range(self._ranks)]
            return [
                [x.chunk(parts, axis)[part].contiguous()]
                for part, (x,) in zip(at, given, strict=True)
            ]
        if node.op == ALL_GATHER:
            whole = torch.cat([x for (x,) in given], int(str(node.attrs["axis"])))
            return [[whole]] * self._ranks
        if node.op == ALL_REDUCE:
            total = _sum([x for x, *_ in given])
            return [[total if not more else total + more[0]] for _, *more in given]
        return [run_node(node, tensors) for tensors in given]


_OF_RANKS = (RANK_PART, ALL_REDUCE, ALL_GATHER)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    """Adds up in the order of the ranks, in float32 where parts are of 16 bits."""
    wide = torch.float32 if parts[0].dtype in (torch.float16, torch.bfloat16) else parts[0].dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        total = total + part.to(wide)
    return total.to(parts[0].dtype)

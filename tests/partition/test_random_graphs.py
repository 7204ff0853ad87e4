"""Random graphs under random masks: the values are PyTorch's, and no partition waits for itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
import torch

import npusim
from npusim.ir.graph import Graph, Node, Source
from npusim.ir.rewrite import GraphBuilder, drop_dead
from npusim.ir.types import TensorType
from npusim.ops.reference import GraphRun
from npusim.partition.plan_file import read_plan, write_plan

from .models import EAGER_DEVICE

_TYPE = TensorType("float32", (3, 4))
_HALF = TensorType("float32", (3, 2))
_UNARY = ("aten.relu.default", "aten.tanh.default", "aten.neg.default", "aten.sigmoid.default")
_BINARY = ("aten.add.Tensor", "aten.mul.Tensor", "aten.sub.Tensor", "aten.maximum.default")


def random_graph(rng: random.Random) -> Graph:
    """A graph of up to 30 nodes over inputs, weights, a constant and states."""
    builder = GraphBuilder("random")
    data = torch.linspace(-1, 1, 12).numpy().tobytes()
    values = [
        builder.input("x", _TYPE),
        builder.input("y", _TYPE),
        builder.weight("w", _TYPE),
        builder.constant("c", _TYPE, data),
        builder.state("s", _TYPE),
        builder.state("t", _TYPE),
    ]
    for _ in range(rng.randint(1, 30)):
        recent = values[-rng.choice((2, 2, 4, len(values))) :]
        kind = rng.random()
        if kind < 0.15:  # several results, one of which may be unused
            halves = builder.nodes(
                "aten.split.Tensor",
                [rng.choice(recent)],
                [_HALF, _HALF],
                {"split_size": 2, "dim": 1},
            )
            pair = [rng.choice(halves), rng.choice(halves)]
            joined = {"tensors": 2, "dim": 1}
            values.append(builder.node("aten.cat.default", pair, _TYPE, joined))
        elif kind < 0.5:
            values.append(builder.node(rng.choice(_UNARY), [rng.choice(recent)], _TYPE))
        else:
            pair = [rng.choice(recent), rng.choice(values)]
            op = rng.choice(_BINARY)
            attrs = {"alpha": 1} if op in ("aten.add.Tensor", "aten.sub.Tensor") else {}
            values.append(builder.node(op, pair, _TYPE, attrs))
    builder.output("last", values[-1])
    for i in range(rng.randint(0, 3)):
        builder.output(f"out{i}", rng.choice(values))
    for state in rng.sample(("s", "t"), rng.randint(0, 2)):
        builder.update(state, rng.choice(values))
    return builder.build()


def random_mask(rng: random.Random, graph: Graph) -> Mapping[str, str]:
    """Gives some nodes to PyTorch, by the module each is said to be from."""
    share = rng.choice((0.1, 0.3, 0.6, 1.0))
    return {n.name: "pytorch" for n in graph.nodes if rng.random() < share}


def placed(graph: Graph) -> Graph:
    """The graph with every node in a module of its own name, which pins can then name."""

    def named(node: Node) -> Node:
        return replace(node, source=Source(node.name))

    return replace(graph, nodes=tuple(map(named, graph.nodes)))


def check_order(plan: npusim.PartitionPlan) -> None:
    """Every partition reads what partitions before it made: nothing goes in a circle."""
    ready = {v.name for v in (*plan.graph.inputs, *plan.graph.states)}
    for index, partition in enumerate(plan.partitions):
        assert partition.index == index
        assert set(partition.inputs) <= ready
        ready.update(partition.outputs)


def reference(
    graph: Graph, inputs: list[torch.Tensor], weights: dict[str, torch.Tensor]
) -> Iterator[list[torch.Tensor]]:
    """What PyTorch computes, call after call."""
    states: dict[str, torch.Tensor] = {}
    while True:
        run = GraphRun(graph, inputs, weights, states)
        for _ in run:
            pass
        yield run.outputs()
        states.update(run.updates())


@pytest.mark.parametrize(
    "seed", [*range(16), *(pytest.param(n, marks=pytest.mark.long) for n in range(16, 40))]
)
def test_values_and_order(seed: int, device: str) -> None:
    check_seed(seed, device)


def check_seed(seed: int, device: str) -> None:
    """Cuts a random graph by a random mask, and compares three calls of the plan with PyTorch."""
    rng = random.Random(seed)
    graph = placed(random_graph(rng))
    pins = random_mask(rng, drop_dead(graph))
    torch.manual_seed(seed)
    inputs, weights = [torch.randn(3, 4), torch.randn(3, 4)], {"w": torch.randn(3, 4)}
    plan = npusim.partition(graph, target=device, pin=pins, costs=EAGER_DEVICE)
    check_order(plan)
    for node in pins:
        assert not plan.verdicts[node].is_native
    for copy in (plan, _through_bytes(plan)):
        executor = npusim.DAGExecutor(copy, plan.device, summary=False).load_weights(weights)
        expected = reference(graph, inputs, weights)
        for _ in range(3):  # states go from call to call
            for y, r in zip(executor(*inputs), next(expected), strict=True):
                torch.testing.assert_close(y, r, rtol=1e-5, atol=1e-5)


def _through_bytes(plan: npusim.PartitionPlan) -> npusim.PartitionPlan:
    return read_plan(write_plan(plan))

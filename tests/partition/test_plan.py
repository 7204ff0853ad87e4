"""How a graph is cut: along its dependences, as the caller wishes, and no finer than it pays."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.errors import Error, GraphError, TargetConstraintError, UnsupportedOpError
from npusim.ir.graph import Attr
from npusim.ir.module import Module
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.partition.build import check_order, find_transfers
from npusim.partition.plan import Partition
from npusim.targets import TargetConfig

from .models import EAGER_DEVICE, Function, keep_off, nowhere, stray

_X = (torch.linspace(-1, 1, 12).reshape(3, 4),)


def extract(function: object, *args: Tensor) -> npusim.IR:
    return npusim.extract_ir(Function(function).eval(), args or _X)


def sides(plan: npusim.PartitionPlan) -> str:
    """The executors in order: n for native, p for PyTorch, P for PyTorch at load."""
    return "".join("n" if p.is_native else "P" if p.at_load else "p" for p in plan.partitions)


def test_a_stray_op_beside_the_path_does_not_cut_it() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.relu()
        for _ in range(3):
            aside = stray(y)
            y = (y + 1).tanh()
        return y, aside

    plan = npusim.partition(extract(function), costs=EAGER_DEVICE)
    assert sides(plan) == "np", "the path is one partition, what branches off it another"
    assert len(plan.transfers) == 1, "what is not used is not computed"


def test_independent_strays_share_a_partition() -> None:
    def function(x: Tensor) -> Tensor:
        parts = [stray(x + i).relu() for i in range(4)]
        return sum(parts[1:], parts[0])

    plan = npusim.partition(extract(function), costs=EAGER_DEVICE)
    assert sides(plan) == "npn"
    assert plan.crossing_bytes == 8 * 12 * 4


def test_no_fewer_partitions_than_the_alternation_asks_for() -> None:
    plan = npusim.partition(extract(lambda x: stray(stray(x).relu()).relu()), costs=EAGER_DEVICE)
    assert sides(plan) == "pnpn"
    order = [type(step).__name__ for step in plan.steps]
    assert order == ["Partition", "TransferOp"] * 3 + ["Partition"]


def test_a_value_crosses_once_for_all_its_readers() -> None:
    plan = npusim.partition(
        extract(lambda x: stray(x.relu()) + stray(x.relu() * 2) + x.relu()), costs=EAGER_DEVICE
    )
    crossed = [(t.value, t.to) for t in plan.transfers]
    assert len(crossed) == len(set(crossed)) == 4


def test_little_is_kept_between_partitions() -> None:
    def function(x: Tensor, mask: Tensor) -> Tensor:
        wide = mask.expand(64, 3, 4) * 2.0  # made of twelve elements, read after the stray
        return stray(x).permute(1, 0).T + wide

    graph = extract(function, *_X, torch.ones(3, 4))
    plan = npusim.partition(graph, costs=EAGER_DEVICE)
    assert sides(plan) == "pn"

    def between(x: Tensor) -> Tensor:
        y = x.relu()
        return stray(y) + y.expand(64, 3, 4)

    first, _, last = npusim.partition(extract(between), costs=EAGER_DEVICE).partitions
    assert first.outputs == ("relu",)
    assert "expand" in last.nodes


def test_what_compiles_only_with_its_neighbours_falls_back() -> None:
    """A convolution takes the activation after it along, until it runs elsewhere."""
    cpu = TargetConfig.named("cpu")
    target = replace(cpu, kernels=("conv", "pack_b", "copy"), winograd_tiles=())
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3)).eval()
    graph = npusim.extract_ir(model, torch.randn(1, 2, 8, 8))
    whole = npusim.partition(graph, target=target, costs=EAGER_DEVICE)
    assert sides(whole) == "n"
    assert whole.fallback_nodes == ()
    plan = npusim.partition(graph, target=target, costs=EAGER_DEVICE, pin={"0": "pytorch"})
    assert sides(plan) == "pn"
    assert [n.op.split(".")[1] for n in plan.fallback_nodes] == ["conv2d", "relu"]
    assert plan.verdicts["relu"].reason == "target 'cpu' has no kernel 'pointwise'"


def test_partitions_show_their_nodes_and_commands() -> None:
    plan = npusim.partition(extract(lambda x: stray(x.relu().exp()) + 1), costs=EAGER_DEVICE)
    first, second, third = plan.partitions
    assert first.nodes == ("relu", "exp")
    assert {kernel for kernel, _ in first.commands} == {"pointwise"}
    assert second.nodes == ("stray",)
    assert second.commands == ()
    assert third.inputs == ("stray",)
    assert plan.partition_of("exp") is first
    with pytest.raises(KeyError):
        plan.partition_of("nothing")


def test_tiny_islands_stay_off_the_device() -> None:
    graph = extract(lambda x: stray(stray(x).relu()))
    assert sides(npusim.partition(graph)) == "p"
    assert npusim.partition(graph).verdicts["relu"].constraint == "cost"
    large = torch.zeros(1024, 1024)
    graph = extract(lambda x: stray(stray(x) @ x), large)
    assert sides(npusim.partition(graph)) == "pnp", "what is large enough pays"
    graph = extract(lambda x: x.relu())
    assert sides(npusim.partition(graph)) == "n", "a model without strays has no islands"


def test_weights_are_prepared_once_wherever_they_are_read() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))
            self.other = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            scale = self.weight.exp()  # read by both sides
            known = stray(scale) @ stray(self.other.relu())
            return stray(x @ scale) @ scale + known.mean(0)

    graph = npusim.extract_ir(Folded().eval(), _X)
    plan = npusim.partition(graph, costs=EAGER_DEVICE)
    assert sides(plan) == "Pnpn"
    assert {t.at_load for t in plan.transfers if t.source == 0} == {True}
    assert "exp" in plan.partitions[1].nodes, "a program prepares its own"


def test_a_predicate_sees_operators_and_their_attributes() -> None:
    def no_last_dim(op: str, attrs: Mapping[str, Attr]) -> bool:
        return attrs.get("dim") != -1

    graph = extract(lambda x: x.softmax(0).softmax(-1))
    plan = npusim.partition(graph, no_last_dim, costs=EAGER_DEVICE)
    assert [n.attrs["dim"] for n in plan.fallback_nodes] == [-1]
    assert sides(npusim.partition(graph, lambda op, attrs: True)) == "n"


def test_a_predicate_cannot_add_what_the_target_lacks() -> None:
    plan = npusim.partition(extract(stray), lambda op, attrs: True)
    assert plan.verdicts["stray"].constraint == "op"


def test_a_predicate_that_contradicts_itself_is_refused() -> None:
    answers = itertools.cycle((True, False, True))
    with pytest.raises(Error, match=r"contradicts itself: aten.relu.default \(.*test_plan.py"):
        npusim.partition(extract(lambda x: x.relu()), lambda op, attrs: next(answers))
    graph = extract(lambda x: x.relu())
    with pytest.raises(Error, match=r"gives a NoneType for aten\.relu"):
        npusim.partition(graph, lambda op, attrs: None)  # type: ignore[arg-type, return-value]


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.encoder(x))
        return y


def test_modules_are_pinned_by_path() -> None:
    graph = npusim.extract_ir(Tower().eval(), _X)
    plan = npusim.partition(graph, pin={"encoder": "pytorch", "encoder.2": "native"})
    assert sides(plan) == "pn", "the innermost pin counts"
    assert len(plan.fallback_nodes) == 2
    assert all(plan.verdicts[n.name].constraint == "pin" for n in plan.fallback_nodes)
    assert sides(npusim.partition(graph, pin={"": "pytorch"})) == "p"


def test_pins_that_cannot_hold_are_refused() -> None:
    graph = npusim.extract_ir(Tower().eval(), _X)
    with pytest.raises(Error, match="'decoder', in which no node"):
        npusim.partition(graph, pin={"decoder": "pytorch"})
    with pytest.raises(Error, match="'native' or 'pytorch'"):
        npusim.partition(graph, pin={"head": "cuda"})
    with pytest.raises(Error, match="'head' is pinned to the device, but is_supported"):
        npusim.partition(graph, keep_off("aten.linear"), pin={"head": "native"})
    with pytest.raises(UnsupportedOpError, match=r"stray.* in '': npusim does not know"):
        npusim.partition(extract(stray), pin={"": "native"})


def test_what_nobody_runs_is_refused_all_at_once() -> None:
    graph = extract(lambda x: nowhere(nowhere(x) + 1))
    with pytest.raises(UnsupportedOpError) as caught:
        npusim.partition(graph)
    assert "2 nodes" in str(caught.value)
    assert "neither natively nor by PyTorch" in str(caught.value)
    assert len(caught.value.nodes) == 2


def test_fallback_can_be_an_error() -> None:
    graph = extract(lambda x: stray(x))
    with pytest.raises(
        UnsupportedOpError, match=r"fallback is an error:\n  npusim_partition.stray"
    ):
        npusim.partition(graph, fallback="error")
    with pytest.raises(Error, match="'cpu' or 'error'"):
        npusim.partition(graph, fallback="gpu")
    npusim.partition(extract(lambda x: x.relu()), fallback="error")


def test_a_dtype_the_device_lacks_does_not_cross() -> None:
    builder = GraphBuilder("g")
    kind = TensorType("complex64", (2,))
    x = builder.input("x", kind)
    y = builder.node("aten.neg.default", [x], kind)
    builder.output("y", builder.node("aten.neg.default", [y], kind))
    graph = builder.build()

    def part(index: int, executor: str, reads: str, node: int) -> Partition:
        one = GraphBuilder("part")
        value = one.input(reads, kind)
        shown = one.node("aten.neg.default", [value], kind, name=graph.nodes[node].name)
        one.output(shown, shown)
        return Partition(index, executor, False, one.build())

    parts = (part(0, "pytorch", "x", 0), part(1, "native", "neg", 1))
    with pytest.raises(TargetConstraintError, match=r"'neg' cannot cross to partition 1.*complex"):
        find_transfers(graph, parts)


def test_the_order_of_partitions_is_checked() -> None:
    plan = npusim.partition(extract(lambda x: stray(x.relu()).exp()), costs=EAGER_DEVICE)
    check_order(plan.graph, plan.partitions)
    with pytest.raises(GraphError, match="partition 2 reads 'stray', which none before it makes"):
        check_order(plan.graph, (plan.partitions[0], plan.partitions[2]))
    with pytest.raises(GraphError, match="no partition makes 'exp'"):
        check_order(plan.graph, plan.partitions[:2])


def test_the_summary_names_operators_and_lines() -> None:
    plan = npusim.partition(extract(lambda x: stray(stray(x)) @ x.T), costs=EAGER_DEVICE)
    summary = plan.summary()
    assert summary.startswith("2 of 4 nodes native; 2 on PyTorch: ")
    assert "npusim_partition.stray.default x2" in summary
    assert "test_plan.py:" in summary
    assert "\n" not in summary


def test_one_graph_at_a_time() -> None:
    graph = extract(lambda x: x.relu())
    with pytest.raises(GraphError, match=r"several methods.*methods\['a'\]"):
        npusim.partition(Module("m", {"a": graph}))  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="Cannot partition a int"):
        npusim.partition(3)  # type: ignore[arg-type]

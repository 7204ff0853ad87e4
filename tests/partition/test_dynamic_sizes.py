"""Plans of graphs with symbolic sizes: below the bound, at it, beyond it; and their files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import npusim
from npusim.errors import ShapeError
from npusim.ir.graph import Graph

from .models import EAGER_DEVICE, stray

BATCH, SEQ = 4, 12  # the greatest sizes


class Tagger(nn.Module):
    """Attention over sequences, and operators of PyTorch whose sizes the call chooses.

    What lies between the strays has the sizes batch*seq alone, from which nobody can tell either.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 6)

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """Maps [batch, seq, 16] and [batch] to scores of [batch, seq, 6], and to [batch, seq]."""
        h = self.first(x).relu()
        h = nn.functional.scaled_dot_product_attention(h, h, h) * scale[:, None, None]
        flat = stray(h.reshape(-1, 16))
        flat = stray(self.last(flat).tanh() * 2)
        scores = flat.view(x.shape[0], x.shape[1], 6)
        return {"scores": scores, "best": scores.argmax(-1), "places": torch.arange(x.shape[1])}


def arguments(batch: int, seq: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch * 100 + seq)
    return torch.randn(batch, seq, 16, generator=generator), torch.rand(batch, generator=generator)


@pytest.fixture(scope="module")
def model() -> Tagger:
    return Tagger().eval()


@pytest.fixture(scope="module")
def graph(model: Tagger) -> Graph:
    batch, seq = Dim("batch", max=BATCH), Dim("seq", max=SEQ)
    sizes = {"x": {0: batch, 1: seq}, "scale": {0: batch}}
    return npusim.extract_ir(model, arguments(3, 5), dynamic_shapes=sizes)


@pytest.fixture(scope="module")
def plan(graph: Graph) -> npusim.PartitionPlan:
    return npusim.partition(graph, costs=EAGER_DEVICE)


def check(executor: npusim.DAGExecutor, model: nn.Module, batch: int, seq: int) -> None:
    args = arguments(batch, seq)
    want = model(*args)
    got = executor.execute(args)
    assert list(got) == list(want)
    for name, tensor in got.items():
        torch.testing.assert_close(tensor, want[name], rtol=1e-5, atol=1e-5)
    arrays = executor.execute([x.numpy() for x in args])
    assert all(np.array_equal(arrays[name], got[name].numpy()) for name in got)


def test_any_sizes_up_to_the_bound(plan: npusim.PartitionPlan, model: Tagger) -> None:
    natives = [p for p in plan.partitions if p.is_native]
    assert len(natives) >= 3 and len(plan.fallback_nodes) == 2
    assert any(p.witnesses for p in natives), "batch*seq tells neither"
    assert {"x", "scale"} == {v.name for v in plan.graph.inputs}
    executor = npusim.DAGExecutor(plan, summary=False).load_weights(model.state_dict())
    for batch, seq in ((3, 5), (BATCH, SEQ), (1, 1), (2, SEQ - 1), (BATCH, 1), (3, 5)):
        check(executor, model, batch, seq)
    for seq in range(1, SEQ + 1):  # more sizes than are kept
        check(executor, model, 2, seq)


def test_the_file_keeps_the_symbols(
    plan: npusim.PartitionPlan, model: Tagger, tmp_path: Path
) -> None:
    plan.save(tmp_path / "tagger.npuplan")
    loaded = npusim.PartitionPlan.load(tmp_path / "tagger.npuplan")
    assert loaded.graph.symbols == plan.graph.symbols
    assert [p.witnesses for p in loaded.partitions] == [p.witnesses for p in plan.partitions]
    executor = npusim.DAGExecutor(loaded, summary=False).load_weights(model.state_dict())
    for batch, seq in ((2, 7), (BATCH, SEQ)):
        check(executor, model, batch, seq)


@pytest.mark.parametrize(
    ("batch", "seq", "scale", "words"),
    [
        (BATCH + 1, 5, BATCH + 1, r"input x: dimension 0 is 5; batch is 1 … 4"),
        (2, SEQ + 1, 2, r"input x: dimension 1 is 13; seq is 1 … 12"),
        (2, 0, 2, r"input x: dimension 1 is 0; seq is 1 … 12"),
        (2, 5, 3, r"input scale: dimension 0 is 3, expected batch = 2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    plan: npusim.PartitionPlan, model: Tagger, batch: int, seq: int, scale: int, words: str
) -> None:
    executor = npusim.DAGExecutor(plan, summary=False).load_weights(model.state_dict())
    with pytest.raises(ShapeError, match=words):
        executor(torch.zeros(batch, seq, 16), torch.zeros(scale))
    with pytest.raises(ShapeError, match="input x has 2 dimensions"):
        executor(torch.zeros(4, 16), torch.zeros(4))
    with pytest.raises(ShapeError, match="'scale' has dtype float64"):
        executor(torch.zeros(2, 5, 16), torch.zeros(2).double())
    check(executor, model, 2, 5)


def test_bytes_and_costs_are_those_of_the_greatest_sizes(
    plan: npusim.PartitionPlan, graph: Graph
) -> None:
    fixed = npusim.specialize(graph, {"batch": BATCH, "seq": SEQ})
    whole = npusim.partition(fixed, costs=EAGER_DEVICE)
    assert plan.crossing_bytes == whole.crossing_bytes == sum(t.nbytes for t in plan.transfers)
    reports = [npusim.check(g) for g in (graph, fixed)]
    assert [n.seconds for n in reports[0].nodes] == [n.seconds for n in reports[1].nodes]
    assert "float32[batch*seq, 16]" in str(reports[0])


@pytest.mark.skipif(sys.platform != "linux", reason="NVRTC is there on Linux alone")
def test_programs_of_cuda_stay_open_and_bring_code(
    graph: Graph, plan: npusim.PartitionPlan
) -> None:
    with pytest.raises(ShapeError, match="batch is 5; 1 … 4 is possible"):
        npusim.partition(graph, target="cuda", sizes=[{"batch": BATCH + 1}])
    with pytest.raises(ShapeError, match="no symbolic size 'length'"):
        npusim.partition(graph, target="cuda", sizes=[{"length": 1}])
    few, more = (
        npusim.partition(graph, target="cuda:sm_90a", costs=EAGER_DEVICE, sizes=sizes)
        for sizes in ((), [{"batch": 1}, {"batch": 2, "seq": 3}])
    )
    assert few.graph.symbols == graph.symbols and few.cut == more.cut == plan.cut
    native = [
        (before.program, now.program)
        for before, now in zip(few.partitions, more.partitions, strict=True)
        if before.program is not None and now.program is not None
    ]
    assert len(native) == sum(p.program is not None for p in plan.partitions) > 0
    for pair in native:
        assert all(program.methods[0].symbols for program in pair)
        before, now = (program.metadata["prepared_sizes"]["forward"] for program in pair)
        assert before == [{"batch": BATCH, "seq": SEQ}]
        assert now == [*before, {"batch": 1, "seq": SEQ}, {"batch": 2, "seq": 3}]


def test_a_fault_is_found_at_the_sizes_of_the_inputs(
    plan: npusim.PartitionPlan, model: Tagger
) -> None:
    for batch, seq in ((2, 7), (BATCH, SEQ)):
        ok, report = npusim.verify_plan(
            plan,
            state_dict=model.state_dict(),
            test_inputs=arguments(batch, seq),
            original_model=model,
            bisect=True,
        )
        assert ok and report.first_divergence is not None, report

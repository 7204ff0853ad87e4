"""Simulated runs of partition plans: the machine's programs, the host's nodes, and crossings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import npusim
from npusim.errors import Error, ShapeError
from npusim.partition.cost import CostModel, works
from npusim.simulate.explain import explain
from npusim.simulate.sweep import sweep

from .nets import cut, net


@pytest.mark.parametrize("target", ["npu-edge-32x32", "cpu"])
@pytest.mark.parametrize("settings", [(), ("dispatch.call_us=7",)])
def test_steps_follow_one_another(target: str, settings: tuple[str, ...]) -> None:
    if target == "cpu":
        settings = ("roofline.call_us=7",) if settings else ()
    plan = cut(target)
    found = npusim.simulate(plan, overrides=settings)
    kernels = [layer.facts.kernel for layer in found.layers]
    assert kernels.count("transfer") == 2 and "pytorch" in kernels
    assert kernels.index("transfer") < kernels.index("pytorch")
    at = 0
    for layer in found.layers:
        assert layer.timed.start == at and sum(layer.timed.causes.values()) == layer.timed.ticks
        at += layer.timed.ticks
    assert at == found.walked.ticks == sum(found.walked.causes.values())
    assert [layer.index for layer in found.layers] == list(range(len(kernels)))
    # Its parts are those of the programs, each with its call, and PyTorch's costs.
    programs = [p.program for p in plan.partitions if p.program is not None]
    native = sum(npusim.simulate(p, overrides=settings).seconds for p in programs)
    config = npusim.TargetConfig.named(target)
    host = sum(
        CostModel.of(config).host(work)
        for p in plan.partitions
        if not p.is_native
        for work in works(p.graph, config).values()
    )
    crossed = sum(x.seconds for x in found.layers if x.facts.kernel == "transfer")
    assert found.seconds == pytest.approx(native + host + crossed, rel=1e-6)
    assert found.stalls["dependency"] == pytest.approx(host, rel=1e-6)


def test_crossings_pass_the_machines_memory() -> None:
    fast, slow = (
        npusim.simulate(cut(), overrides=[f"dram.gb_per_s={rate}", "dram.read_latency_ns=0"])
        for rate in (10, 1)
    )
    times = [
        next(x.seconds for x in found.layers if x.facts.kernel == "transfer")
        for found in (fast, slow)
    ]
    nbytes = cut().transfers[0].nbytes
    assert times == [pytest.approx(nbytes / rate / 0.9e9, rel=1e-3) for rate in (10, 1)]


def test_a_report_says_why_the_host_computes() -> None:
    report = npusim.simulate(cut()).report
    advice = {layer["kernel"]: layer["advice"] for layer in report["layers"]}
    assert "on the host" in advice["pytorch"] and "crosses" in advice["transfer"]
    assert report["model"] == "Cut" and {m["name"] for m in report["memories"]} == {"l1", "dram"}
    assert report["advice"][0]["seconds"] < report["seconds"]
    assert all(0 <= row["saved"] < 1 for row in report["advice"])


@pytest.mark.parametrize("target", ["npu-edge-32x32", "cpu"])
def test_each_step_is_explained(target: str) -> None:
    """As the report has it; what the host computes and crossings have no operands."""
    plan = cut(target)
    found = npusim.simulate(plan)
    for layer in found.report["layers"]:
        one = explain(plan, layer["index"])
        assert one.layer == layer and one.seconds == found.seconds
        native = layer["kernel"] not in ("pytorch", "transfer")
        assert bool(one.operands) == bool(one.params) == native
        assert bool(one.schedules) == (native and target != "cpu")
    last = found.report["layers"][-1]
    assert explain(plan, last["node"]).layer == last
    with pytest.raises(Error, match="plan of 'Cut' has no command 99"):
        explain(plan, 99)
    with pytest.raises(Error, match="plan of 'Cut' has no command of a node 'nowhere'"):
        explain(plan, "nowhere")


def test_machines_are_swept_over(tmp_path: Path) -> None:
    plan = cut()
    settings = {"mxu.rows": ["8", "32"], "dram.gb_per_s": ["5", "50"]}
    found = sweep(plan, settings, mode="loose")
    assert (found.model, found.target) == ("Cut", "npu-edge-32x32")
    for row in found.rows:
        alone = npusim.simulate(
            plan, mode="loose", overrides=[f"{k}={v}" for k, v in row.settings.items()]
        )
        assert row.objectives["seconds"] == alone.seconds and row.stalls == alone.stalls
    plan.save(tmp_path / "p.npuplan")
    kept = tmp_path / "rows.part"
    again = sweep(tmp_path / "p.npuplan", settings, mode="loose", jobs=2, journal=kept)
    assert again == found and not kept.exists()
    with pytest.raises(Error, match="no methods"):
        sweep(plan, settings, method="forward")


def test_a_file_of_a_plan(tmp_path: Path) -> None:
    cut().save(tmp_path / "p.npuplan")
    assert npusim.simulate(tmp_path / "p.npuplan") == npusim.simulate(cut())
    net().save(tmp_path / "p.npubin")
    assert npusim.simulate(tmp_path / "p.npubin") == npusim.simulate(net())


def test_symbolic_sizes_and_refusals() -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.det(torch.relu(x + 1)) + 1

    batch = torch.export.Dim("batch", min=1, max=64)
    graph = npusim.extract_ir(
        Rows().eval(), (torch.zeros(8, 16, 16),), dynamic_shapes=({0: batch},)
    )
    plan = npusim.partition(graph, target="npu-edge-32x32", pin={})
    few, many = (npusim.simulate(plan, sizes={"batch": n}).seconds for n in (1, 64))
    assert few < many == npusim.simulate(plan).seconds
    for wrong in ({"batch": 0}, {"batch": 65}, {"x": 1}):
        with pytest.raises(ShapeError):
            npusim.simulate(plan, sizes=wrong)
    with pytest.raises(Error, match="no methods"):
        npusim.simulate(plan, method="forward")

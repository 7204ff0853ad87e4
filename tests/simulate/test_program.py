"""Simulated runs of whole programs: what holds of every machine, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import npusim
from npusim.errors import Error, ProgramFormatError, ShapeError, TargetConstraintError
from npusim.schedule import Sizes
from npusim.simulate.changes import npu_changes
from npusim.simulate.device import roofline_time
from npusim.simulate.npu import walk_npu
from npusim.simulate.plan import planned
from npusim.simulate.roofline import run_time
from npusim.simulate.simulation import REPORT_CAUSES
from npusim.targets import Npu, override

from .nets import net, rows

MACHINES: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "four cores": ("cores.count=4",),
    "one buffer": ("sram.l1.double_buffer=false",),
    "little memory": ("sram.l1.kib=64",),
    "slow": ("dram.gb_per_s=0.5", "dma.channels=1"),
    "calibrated": ("calibration.mxu_eff=0.5", "calibration.overlap_p=1.5"),
}


@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize("settings", MACHINES.values(), ids=MACHINES)
def test_every_tick_is_due_to_something(settings: tuple[str, ...], mode: str) -> None:
    found = npusim.simulate(net(), mode=mode, overrides=settings)
    walked = found.walked
    assert sum(walked.causes.values()) == walked.ticks > 0
    at = walked.call
    for one in walked.commands:
        assert one.start == at and sum(one.causes.values()) == one.ticks > 0
        assert all(part >= 0 for part in one.causes.values())
        at += one.ticks
        assert all(0 <= event.start < event.end <= one.ticks for event in one.events)
    assert at == walked.ticks
    assert sum(found.stalls.values()) == pytest.approx(found.seconds, rel=1e-12)
    assert npusim.simulate(net(), mode=mode, overrides=settings).report == found.report


def test_a_queue_is_never_slower_than_doorbells() -> None:
    for settings in MACHINES.values():
        loose, tight = (
            npusim.simulate(net(), mode=mode, overrides=settings).walked.ticks
            for mode in ("loose", "tight")
        )
        assert loose > tight
    free = ("overhead_ns", "doorbell_cycles", "poll_cycles", "issue_cycles")
    settings = tuple(f"dispatch.{key}=0" for key in free)
    loose, tight = (
        npusim.simulate(net(), mode=mode, overrides=settings).walked for mode in ("loose", "tight")
    )
    assert loose == tight and loose.causes["dispatch"] == 0


def test_a_host_that_is_slow_keeps_the_queue_empty() -> None:
    """Each command then waits for the host: its overhead is the time from one to the next."""
    slow = npusim.simulate(net(), overrides=["dispatch.overhead_ns=1000000"])
    count = len(slow.layers)
    assert slow.seconds == pytest.approx(count * 1e-3, rel=1e-2) and slow.seconds > count * 1e-3
    once = npusim.simulate(net(), overrides=["dispatch.overhead_ns=0", "dispatch.call_us=1000"])
    assert once.seconds - 1e-3 == pytest.approx(
        npusim.simulate(net(), overrides=["dispatch.overhead_ns=0"]).seconds
    )
    # A queue of one place is filled when the command before has ended.
    short = npusim.simulate(net(), overrides=["dispatch.queue_depth=1"])
    assert short.walked.causes["dispatch"] > npusim.simulate(net()).walked.causes["dispatch"]


def test_a_roofline_has_the_time_of_its_formula() -> None:
    plan = planned(net("cpu"))
    device = plan.hardware.roofline
    assert device is not None
    for hidden in (0.0, 1.0, 50.0):
        classes = tuple(replace(kind, hidden_us=hidden) for kind in device.classes)
        changed = replace(device, classes=classes, call_us=3.0)
        target = replace(plan.target, hardware=replace(plan.hardware, roofline=changed))
        found = npusim.simulate(net("cpu"), target)
        times = [roofline_time(changed, facts) for facts in plan.commands]
        assert found.seconds == pytest.approx(run_time(times, changed), rel=1e-9)
        assert sum(found.walked.causes.values()) == found.walked.ticks
    assert found.cycles is None and found.energy is None
    assert npusim.simulate(net("cpu")).report["cycles"] is None


def test_commands_have_their_place_in_the_model() -> None:
    layers = npusim.simulate(net()).report["layers"]
    assert [layer["index"] for layer in layers] == list(range(len(layers)))
    assert {"conv_depthwise", "attention"} <= {layer["kernel"] for layer in layers}
    assert any(layer["module"] == "qkv" for layer in layers)
    assert all("nets.py:" in layer["source"] for layer in layers)
    for layer in layers:
        assert set(layer["stalls"]) == set(REPORT_CAUSES)
        assert layer["stalls"][layer["bound"]] == max(layer["stalls"].values())
        assert 0 <= layer["utilization"] <= 1 and layer["formula"] and layer["advice"]


def test_memory_is_occupied_by_what_lives() -> None:
    found = npusim.simulate(net())
    chip, dram = found.report["memories"]
    assert (chip["name"], dram["name"]) == ("l1", "dram")
    program = net()
    lasting = sum(program.buffers[spec.buffer].bytes for spec in program.weights)
    assert lasting < dram["peak_bytes"] <= dram["bytes"] == 4096 * 2**20
    assert 0 < chip["peak_bytes"] <= chip["bytes"]
    for memory in (chip, dram):
        starts, amounts = zip(*memory["occupancy"], strict=True)
        assert list(starts) == sorted(starts) and max(amounts) == memory["peak_bytes"]


def test_energy_sums_over_layers() -> None:
    found = npusim.simulate(net(), overrides=["dispatch.call_us=0"])
    energy = found.energy
    assert energy is not None and energy["mac"] > 0 and energy["dram"] > 0
    parts = sum(joules for name, joules in energy.items() if name != "total")
    assert energy["total"] == pytest.approx(parts)
    layers = found.report["layers"]
    assert sum(layer["energy_j"] for layer in layers) == pytest.approx(energy["total"])
    bare = npusim.simulate(net(), overrides=["energy.dram_row_act_pj=0"])
    moved = sum(layer.timed.dram_bytes for layer in bare.layers)
    assert bare.energy is not None and bare.energy["dram"] < energy["dram"]
    assert bare.energy["dram"] == pytest.approx(8e-12 * _npu().energy.dram_pj_per_bit * moved)


def test_the_vector_units_operands_pass_the_memory_on_the_chip() -> None:
    layers = {x.facts.kernel: x for x in npusim.simulate(net()).layers}
    norm = layers["norm"]
    read = norm.facts.bytes_read + norm.facts.bytes_written
    assert norm.timed.sram_bytes == norm.timed.dram_bytes + read
    pj = _npu().energy.sram_pj_per_byte
    assert norm.timed.energy["sram"] == pytest.approx(1e-12 * pj * norm.timed.sram_bytes)


def test_what_would_help_is_walked() -> None:
    """Each change's time is that of a machine that has it, with the schedules as they are."""
    found = npusim.simulate(net())
    changes = found.report["advice"]
    assert [c["seconds"] for c in changes] == sorted(c["seconds"] for c in changes)
    least = next(c for c in changes if c["setting"].startswith("dram.gb_per_s"))
    assert least["setting"] == "dram.gb_per_s=204.8" and least["seconds"] <= found.seconds


def test_sizes_and_methods() -> None:
    few, many = (npusim.simulate(rows(), sizes={"batch": n}) for n in (1, 512))
    assert few.seconds < many.seconds == npusim.simulate(rows()).seconds
    for wrong in ({"batch": 0}, {"batch": 513}, {"rows": 1}):
        with pytest.raises(ShapeError):
            npusim.simulate(rows(), sizes=wrong)
    with pytest.raises(Error, match="no method 'x'"):
        npusim.simulate(rows(), method="x")
    with pytest.raises(Error, match="no mode 'x'"):
        npusim.simulate(rows(), mode="x")
    with pytest.raises(Error, match="no language model"):
        npusim.simulate(rows(), context=1)


def test_a_program_of_another_machine() -> None:
    """Means something where the machine would have got the same commands."""
    alike = npusim.TargetConfig.named("npu-edge-32x32")
    assert npusim.simulate(net(), alike) == npusim.simulate(net(), alike)
    smaller = npusim.simulate(net(), overrides=["mxu.rows=8", "mxu.cols=8"])
    assert smaller.seconds > npusim.simulate(net()).seconds
    for target, why in (
        ("h200", "commands are those of device 'cpu'"),
        ("cuda", "describes no machine"),
        ("nowhere", "Unknown target"),
        ("gemmini-8", "no unit of it computes"),
    ):
        with pytest.raises(TargetConstraintError, match=why):
            npusim.simulate(net(), target)
    with pytest.raises(TargetConstraintError, match="padded to multiples of"):
        npusim.simulate(net(), overrides=["constraints.channel_align.float32=32"])
    with pytest.raises(TargetConstraintError, match="Winograd"):
        npusim.simulate(_with_kernel("conv_winograd"), "npu-edge-32x32")


def _with_kernel(stem: str) -> npusim.CompiledProgram:
    program = net("cpu")
    kernels = (replace(program.kernels[0], name=stem), *program.kernels[1:])
    return replace(program, kernels=kernels)


@pytest.mark.parametrize(
    "setting",
    [
        "dram.gb_per_s=0",
        "dram.gb_per_s=-1",
        "dram.gb_per_s=nan",
        "clock.core_mhz=0",
        "dma.bytes_per_cycle=0",
        "mxu.rows=0",
        "sram.l1.bytes_per_cycle=0",
        "calibration.mxu_eff=0",
        "calibration.dram_eff=-1",
        "dram.efficiency=0",
        "dispatch.overhead_ns=-1",
        "nothing=1",
    ],
)
def test_absurd_rates_are_refused(setting: str) -> None:
    with pytest.raises(TargetConstraintError):
        npusim.simulate(net(), overrides=[setting])


def test_what_is_beyond_counting_is_refused_with_its_node() -> None:
    for latency in ("read_latency_ns=1e15", "read_latency_ns=9e15", "write_latency_ns=9e15"):
        with pytest.raises(TargetConstraintError, match=r"Node '.*nets.py:.*delays below 2\^50"):
            npusim.simulate(net(), overrides=["clock.core_mhz=4000", f"dram.{latency}"])
    plan = planned(net())
    npu = plan.hardware.npu
    assert npu is not None
    (schedule,) = plan.schedules[0]
    sizes = Sizes(m=2**13, n=2**13)
    many = replace(schedule, form="product", sizes=sizes, tile=Sizes(), loops=("m", "n"))
    with pytest.raises(TargetConstraintError, match=r"more than 2\^24 tiles"):
        walk_npu(npu, plan.hardware.calibration, [(plan.commands[0], (many,))], "tight")


def test_damaged_schedules_are_refused() -> None:
    program = net()
    stored: Any = json.loads(json.dumps(program.simulation))
    for damage in (
        {"tile": {"b": 1, "m": 0, "n": 1, "k": 1}},
        {"command": 99},
        {"loops": ["k", "m"]},
        {"form": "x"},
    ):
        changed = json.loads(json.dumps(stored))
        changed["schedules"]["forward"][0].update(damage)
        with pytest.raises(ProgramFormatError):
            npusim.simulate(replace(program, simulation=changed))


def test_a_folder_is_written_whole(tmp_path: Path) -> None:
    found = npusim.simulate(net())
    written = found.save(tmp_path / "out" / "r")
    assert {"report.json", "report.html"} <= {path.name for path in written}
    assert json.loads((tmp_path / "out/r/report.json").read_text()) == found.report
    (tmp_path / "blocked" / "report.html").mkdir(parents=True)
    with pytest.raises(Error, match="folder"):
        found.save(tmp_path / "blocked")
    assert not (tmp_path / "blocked" / "report.json").exists()


def test_lanes_are_added_up_at_the_end_of_a_row() -> None:
    """In log2 steps by a tree, one by one without; rows that are short side by side."""
    vpu = _npu().vpu
    assert vpu.lanes == 256 and vpu.cycles("add") == 1
    assert [vpu.sum_cycles(n) for n in (1, 2, 5, 256, 1000)] == [
        *((256, 0), (128, 1), (51, 3), (1, 8), (1, 8))
    ]
    serial = _npu("vpu.reduce=serial").vpu
    assert [serial.sum_cycles(n) for n in (1, 2, 5, 256, 1000)] == [
        *((256, 0), (128, 1), (51, 4), (1, 255), (1, 255))
    ]
    tree, slow = (
        npusim.simulate(net(), overrides=[f"vpu.reduce={kind}"]) for kind in ("tree", "serial")
    )
    slower = {
        a.facts.kernel for a, b in zip(tree.layers, slow.layers, strict=True)
        if b.timed.ticks > a.timed.ticks
    }  # fmt: skip
    assert slower == {"norm", "attention", "softmax"}


def _npu(*settings: str) -> Npu:
    hardware = override(npusim.TargetConfig.named("npu-edge-32x32"), settings).hardware
    assert hardware is not None and hardware.npu is not None
    return hardware.npu


def test_what_no_unit_takes_is_the_hosts() -> None:
    """The array has float32, the vector unit has not: norms and softmaxes leave the machine."""
    edge = npusim.TargetConfig.named("npu-edge-32x32")
    found = npusim.simulate(net(override(edge, ["vpu.dtype_rate={ int8 = 4, int64 = 1 }"])))
    away = [x for x in found.layers if any(e.lane == "host" for e in x.timed.events)]
    assert {"norm", "attention", "softmax"} <= {x.facts.kernel for x in away}
    assert "gemm" not in {x.facts.kernel for x in away}
    for layer in away:
        facts, npu = layer.facts, edge.hardware.npu  # type: ignore[union-attr]
        assert npu is not None and layer.timed.causes["dependency"] > 0
        crossing = (facts.bytes_read + facts.bytes_written) / npu.dram_bytes_per_cycle + 160
        assert layer.timed.causes["dram"] / 1024 == pytest.approx(crossing, abs=1)


def test_a_gpus_program_is_simulated_on_gpus() -> None:
    cuda = replace(npusim.TargetConfig.named("cuda:sm_90a"), code_format="")
    program = net(cuda)
    times = [npusim.simulate(program, name).seconds for name in ("h200", "a100")]
    assert 0 < times[0] < times[1]
    with pytest.raises(TargetConstraintError, match="h200 or a100"):
        npusim.simulate(program)


@pytest.mark.parametrize("settings", MACHINES.values(), ids=MACHINES)
def test_more_of_a_resource_is_never_slower(settings: tuple[str, ...]) -> None:
    """With the same schedules, command by command; the vector unit's lanes are the exception:
    where there are more, adding them up takes longer."""
    plan = planned(net(), overrides=settings)
    npu, calibration = plan.hardware.npu, plan.hardware.calibration
    assert npu is not None
    work = tuple(zip(plan.commands, plan.schedules, strict=True))
    for mode in ("loose", "tight"):
        before = walk_npu(npu, calibration, work, mode)
        for change in npu_changes(npu):
            if change.setting.startswith("vpu.lanes"):
                continue
            after = walk_npu(change.machine, calibration, work, mode)
            pairs = zip(after.commands, before.commands, strict=True)
            assert all(a.ticks <= b.ticks for a, b in pairs), change.setting


NUMBERS = {
    "dram.gb_per_s": 12.8,
    "dma.bytes_per_cycle": 2.0,
    "noc.gb_per_s": 4.0,
    "sram.l1.bytes_per_cycle": 16.0,
    "acc.bytes_per_cycle": 16.0,
}


@examples(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(MACHINES)),
    st.sampled_from(["loose", "tight"]),
    st.fixed_dictionaries({key: st.sampled_from([0.3, 1.0, 4.0]) for key in NUMBERS}),
    st.sampled_from(sorted(NUMBERS)),
    st.floats(1, 30),
)
def test_no_model_is_slower_where_more_bytes_pass(
    name: str, mode: str, shares: dict[str, float], key: str, faster: float
) -> None:
    """Each machine's own schedules are searched and walked, with all numbers finite."""
    rates = {one: value * shares[one] for one, value in NUMBERS.items()}
    more = {**rates, key: rates[key] * faster}
    slow, fast = (
        npusim.simulate(
            net(), mode=mode, overrides=(*MACHINES[name], *(f"{k}={v!r}" for k, v in given.items()))
        )
        for given in (rates, more)
    )
    assert fast.walked.ticks <= slow.walked.ticks
    for one, other in zip(fast.layers, slow.layers, strict=True):
        assert mode == "loose" or one.timed.ticks <= other.timed.ticks


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("constraints.max_rank=5",), "at most 6 dimensions in it, and at most 5 there"),
        (("constraints.max_rank=6",), None),
        (("constraints.max_rank=0",), None),
    ],
)
def test_a_machine_of_fewer_dimensions_is_another(
    settings: tuple[str, ...], why: str | None
) -> None:
    if why is None:
        assert npusim.simulate(net(), overrides=settings).seconds > 0
        return
    with pytest.raises(TargetConstraintError, match=why):
        npusim.simulate(net(), overrides=settings)


def test_a_roofline_that_takes_other_dtypes_is_another() -> None:
    with pytest.raises(
        TargetConstraintError, match=r"takes float16 or .*, not float32, which node"
    ):
        npusim.simulate(net(), "ane-m1")
    assert npusim.simulate(net(), "ane-m1", overrides=["roofline.dtypes=[]"]).seconds > 0

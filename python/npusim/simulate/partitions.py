"""A run of a partition plan: programs on the machine, PyTorch's nodes on the host, and crossings.

The steps follow one another. A node of the host takes what `partition/cost.py` estimates of
PyTorch, by which the plan was cut, and the machine waits for it; a value that crosses passes DRAM
of a described NPU once more, or takes what the target's file says of a transfer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from npusim.errors import Error, ShapeError
from npusim.ir.graph import Source
from npusim.ir.specialize import specialize
from npusim.ir.symbolic import evaluate
from npusim.partition.cost import CostModel, Work, works
from npusim.partition.plan import Partition, PartitionPlan, TransferOp
from npusim.profile.commands import CommandFacts
from npusim.program.program import CompiledProgram
from npusim.schedule.cost import TICKS
from npusim.simulate.device import RATE
from npusim.simulate.plan import Plan, planned
from npusim.simulate.run import SHOWN, run
from npusim.simulate.simulation import Explained, Layer, Simulation
from npusim.simulate.timed import Event, Timed, Walked, add
from npusim.targets import Npu, TargetConfig
from npusim.targets.hardware import Hardware

HOST = "pytorch"  # kernel of a node of the host
TRANSFER = "transfer"


@dataclass(frozen=True, slots=True)
class _Part:
    """Layers of a step, in ticks from its begin; a native one has its run, and what was run."""

    layers: tuple[Layer, ...]
    formulas: tuple[str, ...]
    run: Simulation | None = None
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class PlanRun:
    """A simulated run of a partition plan.

    Attributes:
        simulation: of all steps.
        places: for each layer, the program that it is of, with the number of its command there;
            None of what the host computes and of crossings.
        hardware: the machine.
    """

    simulation: Simulation
    places: tuple[tuple[Plan, int] | None, ...]
    hardware: Hardware


def first_program(plan: PartitionPlan) -> CompiledProgram:
    """Returns the first program of a plan that runs in calls; Error where there is none."""
    natives = (p.program for p in plan.partitions if p.is_native and not p.at_load)
    found = next((program for program in natives if program is not None), None)
    if found is None:
        raise Error(
            f"No node of '{plan.graph.name}' runs on '{plan.target}', so there is no machine to "
            "simulate.",
            hint="'npusim check' says why.",
        )
    return found


def run_plan(
    plan: PartitionPlan,
    target: str | TargetConfig | None = None,
    *,
    method: str | None = None,
    mode: str | None = None,
    sizes: Mapping[str, int] | None = None,
    context: int | None = None,
    overrides: Iterable[str] = (),
    shown: int = SHOWN,
) -> PlanRun:
    """Returns a simulated run; arguments and errors are those of `npusim.simulate`.

    Args:
        shown: about as many events are in the timeline of each program.
    """
    if method is not None or context is not None:
        raise Error("A plan has no methods and no context to choose.")
    native, settled, overrides = first_program(plan), _settled(plan, sizes or {}), tuple(overrides)
    first = planned(native, target, sizes=_of(native, settled), overrides=overrides)
    steps = _Steps(plan, first.target, first.hardware, settled, mode, target, overrides, shown)
    parts = [steps.part(step) for step in plan.steps if not step.at_load]
    places = tuple(
        (part.plan, at) if part.plan is not None else None
        for part in parts
        for at in range(len(part.layers))
    )
    return PlanRun(_joined(plan, first.target, parts), places, first.hardware)


def _settled(plan: PartitionPlan, sizes: Mapping[str, int]) -> dict[str, int]:
    symbols = {symbol.name: symbol for symbol in plan.graph.symbols}
    for name, value in sizes.items():
        symbol = symbols.get(name)
        if symbol is None or not symbol.low <= value <= symbol.high:
            known = ", ".join(f"{s.name} {s.low} … {s.high}" for s in symbols.values())
            raise ShapeError(f"{name} is {value}; possible is: {known or 'no symbolic size'}.")
    return {name: sizes.get(name, symbol.high) for name, symbol in symbols.items()}


def _of(program: Any, sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns those sizes that a partition's program has."""
    names = {symbol.name for symbol in program.methods[0].symbols}
    return {name: size for name, size in sizes.items() if name in names}


class _Steps:
    """What the steps of a plan have in common."""

    def __init__(
        self,
        plan: PartitionPlan,
        target: TargetConfig,
        hardware: Hardware,
        sizes: Mapping[str, int],
        mode: str | None,
        given: str | TargetConfig | None,
        overrides: tuple[str, ...],
        shown: int,
    ) -> None:
        self.plan, self.target, self.sizes, self.mode = plan, target, sizes, mode
        self.shown = shown
        self.given, self.overrides = given, overrides
        self.npu: Npu | None = hardware.npu
        self.eff = hardware.calibration.dram_eff
        self.cycle = TICKS if self.npu is not None else 0
        self.rate = self.npu.clock.core_mhz * TICKS * 1e6 if self.npu is not None else RATE
        self.cost = CostModel.of(target)

    def part(self, step: Partition | TransferOp) -> _Part:
        """Returns the layers of a step."""
        if isinstance(step, TransferOp):
            return self._transfer(step)
        return self._native(step) if step.is_native else self._host(step)

    def _native(self, step: Partition) -> _Part:
        assert step.program is not None
        chosen = planned(
            step.program,
            self.given,
            sizes=_of(step.program, self.sizes),
            overrides=self.overrides,
        )
        found = run(chosen, self.mode, self.shown)
        layers, call = list(found.layers), found.walked.call
        if layers:  # a program's call belongs to its first command
            layers[0] = replace(layers[0], timed=_delayed(layers[0].timed, call))
        return _Part(tuple(layers), (), found, chosen)

    def _host(self, step: Partition) -> _Part:
        graph = specialize(step.graph, {s.name: self.sizes[s.name] for s in step.graph.symbols})
        work = works(graph, self.target)
        layers, formulas, now = [], [], 0
        for node in graph.nodes:
            seconds = self.cost.host(work[node.name])
            facts = CommandFacts(
                *(HOST, {}, node.name, node.op, *_origin(node.source)),
                *(work[node.name].bytes, 0, work[node.name].flops),
            )
            ticks = math.ceil(seconds * self.rate)
            layers.append(self._layer(facts, now, ticks, {"dependency": ticks}, 0))
            formulas.append(self._formula(work[node.name], seconds))
            now += ticks
        return _Part(tuple(layers), tuple(formulas))

    def _formula(self, work: Work, seconds: float) -> str:
        compute, memory = self.cost.host_rates
        return (
            f"the host, in PyTorch: {1e6 * self.cost.node_seconds:.3g} us a node + max("
            f"{work.flops:,} operations / {compute:.3g} a second, {work.bytes:,} bytes / "
            f"{memory:.3g} a second) = {1e6 * seconds:.4g} us"
        )

    def _transfer(self, step: TransferOp) -> _Part:
        nbytes = evaluate(step.type.nbytes, self.sizes)
        if self.npu is None:
            seconds = self.cost.transfer(nbytes)
            text = f"{1e6 * self.cost.transfer_seconds:.3g} us + {nbytes:,} bytes"
        else:
            dram = self.npu.dram
            latency = dram.write_latency_ns if step.to == "native" else dram.read_latency_ns
            rate = dram.gb_per_s * dram.efficiency * self.eff
            seconds = 1e-9 * (latency + nbytes / rate)
            text = f"{latency:g} ns + {nbytes:,} bytes / {rate:.4g} GB/s"
        ticks = math.ceil(seconds * self.rate)
        facts = CommandFacts(TRANSFER, {}, step.value, TRANSFER, "", "", nbytes, 0, 0)
        layer = self._layer(facts, 0, ticks, {"dram": ticks}, nbytes)
        return _Part((layer,), (f"to {step.to}: {text} = {1e6 * seconds:.4g} us",))

    def _layer(
        self, facts: CommandFacts, start: int, ticks: int, causes: dict[str, int], nbytes: int
    ) -> Layer:
        events = (Event("host", 0, ticks, ticks),) if ticks else ()
        timed = Timed(start, ticks, causes, nbytes, 0, events=events, units=len(events))
        watts = self.npu.energy.static_w if self.npu is not None else 0.0
        return Layer(0, facts, timed, self.rate, self.cycle, 0.0, watts)


def _origin(source: Source | None) -> tuple[str, str]:
    """Returns the module, and file and line."""
    if source is None:
        return "", ""
    return source.module, f"{source.file}:{source.line}" if source.file else ""


def _delayed(timed: Timed, ticks: int) -> Timed:
    """Returns a command that begins so many ticks of dispatch earlier."""
    return replace(
        timed,
        start=timed.start - ticks,
        ticks=timed.ticks + ticks,
        causes=add(timed.causes, {"dispatch": ticks}),
        events=tuple(
            replace(event, start=event.start + ticks, end=event.end + ticks)
            for event in timed.events
        ),
    )


def _joined(plan: PartitionPlan, target: TargetConfig, parts: list[_Part]) -> Simulation:
    """Returns one run of all steps in order."""
    layers, starts, number, now = list[Layer](), list[int](), count(), 0
    for part in parts:
        starts.append(now)
        for layer in part.layers:
            timed = replace(layer.timed, start=layer.timed.start + now)
            layers.append(replace(layer, index=next(number), timed=timed))
        now += sum(layer.timed.ticks for layer in part.layers)
    runs = [(start, part.run) for start, part in zip(starts, parts, strict=True) if part.run]
    one = runs[0][1]
    walked = Walked(one.walked.rate, 0, tuple(layer.timed for layer in layers))
    return Simulation(
        model=plan.graph.name,
        method=one.method,
        target=target.name,
        mode=one.mode,
        walked=walked,
        layers=tuple(layers),
        peaks=one.peaks,
        static_w=one.static_w,
        explained=lambda: _explained(plan, walked, layers, parts),
        memories=_memories(runs),
    )


def _memories(runs: list[tuple[int, Simulation]]) -> list[dict[str, Any]]:
    """Returns the memories of all programs as one list, each where the programs run."""
    found: dict[str, dict[str, Any]] = {}
    for start, run_ in runs:
        for memory in run_.memories:
            begin = start / run_.walked.rate
            steps = [[begin + at, nbytes] for at, nbytes in memory["occupancy"]]
            one = found.setdefault(memory["name"], {**memory, "occupancy": []})
            one["occupancy"] += steps
            one["peak_bytes"] = max(one["peak_bytes"], memory["peak_bytes"])
    return list(found.values())


def _explained(
    plan: PartitionPlan, walked: Walked, layers: Iterable[Layer], parts: list[_Part]
) -> Explained:
    formulas, advice = list[str](), list[str]()
    saved: dict[str, tuple[str, float]] = {}
    names = iter(layers)
    for part in parts:
        nodes = [next(names).facts.node for _ in part.layers]
        if part.run is None:
            formulas += part.formulas
            advice += [_reason(plan, node) for node in nodes]
            continue
        own = part.run.explained()
        formulas += own.formulas
        advice += own.advice
        for change in own.changes:
            cause, before = saved.get(change["setting"], (change["cause"], 0.0))
            saved[change["setting"]] = cause, before + part.run.seconds - change["seconds"]
    whole = walked.ticks / walked.rate
    changes = [
        {
            "setting": setting,
            "cause": cause,
            "seconds": whole - seconds,
            "saved": seconds / whole if whole else 0.0,
        }
        for setting, (cause, seconds) in sorted(saved.items(), key=lambda row: -row[1][1])
    ]
    return Explained(formulas, advice, changes)


def _reason(plan: PartitionPlan, node: str) -> str:
    verdict = plan.verdicts.get(node)
    if verdict is None or not verdict.reason:
        return "crosses between the host and the machine"
    return f"on the host: {verdict.reason}"

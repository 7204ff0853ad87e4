"""One command of a simulated run, to check by hand: formula, operands, schedule, and remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npusim.errors import Error
from npusim.partition.plan import PartitionPlan
from npusim.program.program import CompiledProgram, Method
from npusim.schedule import Schedule
from npusim.simulate import opened_program
from npusim.simulate.partitions import run_plan
from npusim.simulate.plan import Plan, planned
from npusim.simulate.run import run
from npusim.simulate.saved import busy_share
from npusim.simulate.simulation import Simulation
from npusim.targets import TargetConfig


@dataclass(frozen=True, slots=True)
class OperandFacts:
    """An operand of a command.

    Attributes:
        name: of the input, output, weight or state that it is; empty of a temporary buffer.
        kind: of its buffer, such as "temp" or "weight".
        access: "read", "write" or "read_write".
        nbytes: of its buffer.
    """

    name: str
    kind: str
    access: str
    nbytes: int


@dataclass(frozen=True)
class Explanation:
    """Why a command takes as long as it does.

    Attributes:
        target, mode: of the machine.
        seconds: of the whole run, of which the command is a part.
        layer: what the report says of it: the formula with its numbers, the bound, its times by
            cause, what would help.
        params: its kernel's fields that are not 0.
        operands: in the order of the command.
        schedules: that it has on the machine; none on one that is known by what it reaches.
        busy: seconds that each of the machine's units works for it, as far as events were kept.
    """

    target: str
    mode: str
    seconds: float
    layer: Mapping[str, Any] = field(repr=False)
    params: Mapping[str, Any] = field(repr=False)
    operands: tuple[OperandFacts, ...] = field(repr=False)
    schedules: tuple[Schedule, ...] = field(repr=False)
    busy: Mapping[str, float] = field(repr=False)


def explain(
    program: CompiledProgram | PartitionPlan | str | Path,
    command: int | str,
    target: str | TargetConfig | None = None,
    *,
    method: str | None = None,
    mode: str | None = None,
    sizes: Mapping[str, int] | None = None,
    context: int | None = None,
    overrides: Iterable[str] = (),
) -> Explanation:
    """Returns what the time of one command of a simulated run is made of.

    Args:
        program: a program or a partition plan, or the path of one.
        command: its index in the method, or in the run of a plan; or the name of its node; of
            several, the first.

    Other arguments, and errors, are those of `npusim.simulate`; Error for no such command.
    """
    opened = opened_program(program)
    asked: dict[str, Any] = {
        "method": method, "sizes": sizes, "context": context, "overrides": overrides
    }  # fmt: skip
    places: Sequence[tuple[Plan, int] | None]
    if isinstance(opened, CompiledProgram):
        plan = planned(opened, target, **asked)
        found, places = run(plan, mode), [(plan, at) for at in range(len(plan.commands))]
        what = f"Method '{plan.method.name}'"
    else:
        joined = run_plan(opened, target, mode=mode, **asked)
        found, places = joined.simulation, joined.places
        what = f"The plan of '{opened.graph.name}'"
    index = _index([layer.facts.node for layer in found.layers], what, command)
    return _explanation(found, index, places[index])


def _index(nodes: Sequence[str], what: str, command: int | str) -> int:
    """Returns the number of a command, of which the nodes of all are given."""
    if isinstance(command, str):
        if command in nodes:
            return nodes.index(command)
        raise Error(
            f"{what} has no command of a node '{command}'.",
            hint="'npusim simulate' lists those that take longest, and layers.csv all of them.",
        )
    if not 0 <= command < len(nodes):
        there = f"0 … {len(nodes) - 1}" if nodes else "none"
        raise Error(f"{what} has no command {command}; it has: {there}.")
    return command


def _explanation(found: Simulation, index: int, place: tuple[Plan, int] | None) -> Explanation:
    """Returns what there is to say of a layer; the host's and crossings have no operands."""
    report = found.report
    busy: dict[str, float] = {}
    for event in report["timeline"]:
        if event["layer"] == index:
            seconds = event["seconds"] * busy_share(event)
            busy[event["lane"]] = busy.get(event["lane"], 0.0) + seconds
    params = found.layers[index].facts.params
    plan, at = place if place is not None else (None, 0)
    return Explanation(
        target=report["target"],
        mode=report["mode"],
        seconds=report["seconds"],
        layer=report["layers"][index],
        params={k: v for k, v in params.items() if any(v if isinstance(v, tuple) else (v,))},
        operands=tuple(_operands(plan.program, plan.method, at)) if plan is not None else (),
        schedules=plan.schedules[at] if plan is not None and plan.schedules else (),
        busy=busy,
    )


def _operands(program: CompiledProgram, method: Method, index: int) -> Iterable[OperandFacts]:
    names = {spec.buffer: spec.name for spec in (*method.inputs, *method.outputs)}
    names |= {spec.buffer: spec.keys[0] for spec in program.weights}
    for operand in method.commands[index].operands:
        buffer = program.buffers[operand.buffer]
        yield OperandFacts(
            names.get(operand.buffer, ""),
            buffer.kind.name.lower(),
            operand.access.name.lower(),
            buffer.bytes,
        )

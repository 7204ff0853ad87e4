"""The schedules of a program as `npusim info` and `npusim view` show them."""

from __future__ import annotations

from typing import Any

from npusim.cli.answer import amount, table
from npusim.pictures import Marks
from npusim.program.program import CompiledProgram
from npusim.schedule import Schedule, schedules_of, target_of
from npusim.schedule.schedule import AXES
from npusim.targets.records import to_data


def schedule_facts(program: CompiledProgram) -> dict[str, Any]:
    """Returns what a program says of its machine, as JSON types; nothing of one without any."""
    if not program.simulation:
        return {}
    nodes = {method.name: method.commands for method in program.methods}
    return {
        "machine": target_of(program).name,
        "schedules": {
            name: [
                {"node": program.nodes[nodes[name][row.command].node].name, **to_data(row)}
                | {"dram_bytes": row.dram_bytes, "steps": row.steps}
                for row in rows
            ]
            for name, rows in schedules_of(program).items()
        },
    }


def schedule_lines(program: CompiledProgram) -> list[str]:
    """Returns a table for each method that has schedules."""
    lines: list[str] = []
    for method in program.methods:
        rows = schedules_of(program).get(method.name, ())
        if not rows:
            continue
        cells = [_cells(program, method.commands[row.command].node, row) for row in rows]
        header = ("#", "node", "form", "on", "sizes", "tile", "loops", "DRAM", "held", "cycles")
        cycles, least = (sum(getattr(r, key) for r in rows) for key in ("cycles", "least_cycles"))
        moved = amount(sum(row.dram_bytes for row in rows))
        lines += ["", f"schedule of {method.name} on {target_of(program).name}"]
        lines += [table(cells, *header)]
        lines += [f"{moved} from and to DRAM; about {cycles:,.0f} cycles, at least {least:,.0f}"]
    return lines


def schedule_marks(program: CompiledProgram) -> dict[str, Marks]:
    """Returns for each method which unit computes its nodes, in which tiles, how long about."""
    if not program.simulation:
        return {}
    npu, found = target_of(program).npu, schedules_of(program)
    marks = {}
    for method in program.methods:
        units: dict[str, str] = {}
        seconds: dict[str, float] = {}
        notes: dict[str, list[str]] = {}
        for row in found.get(method.name, ()):
            name = program.nodes[method.commands[row.command].node].name
            if name not in units or row.unit == "mxu":  # what computes most of it
                units[name] = row.unit
            if npu is not None:
                seconds[name] = seconds.get(name, 0.0) + row.cycles / (1e6 * npu.clock.core_mhz)
            notes.setdefault(name, []).extend(_note(row))
        marks[method.name] = Marks(units, seconds, notes)
    return marks


def _note(row: Schedule) -> list[str]:
    loops = [axis for axis in row.loops if row.trips(axis) > 1]
    tile = "×".join(str(row.tile.of(axis)) for axis in AXES if row.sizes.of(axis) > 1) or "1"
    held = [plan.role for plan in row.operands if plan.resident or plan.source != "dram"]
    lines = [f"{row.unit} {row.dtype}, tile {tile}"]
    lines += [f"{row.steps} tiles over {' '.join(loops)}"] if loops else []
    lines += [f"{amount(row.dram_bytes)} DRAM" + (f", {' '.join(held)} held" if held else "")]
    return lines


def _cells(program: CompiledProgram, node: int, row: Schedule) -> tuple[object, ...]:
    sizes, tile = ("x".join(str(s.of(a)) for a in AXES) for s in (row.sizes, row.tile))
    kept = [plan.role for plan in row.operands if plan.resident or plan.source != "dram"]
    return (
        row.command,
        program.nodes[node].name,
        f"{row.form}, {row.taps} taps" if row.taps > 1 else row.form,
        f"{row.unit} {row.dtype}",
        sizes,
        tile,
        " ".join(axis for axis in row.loops if row.trips(axis) > 1) or "-",
        amount(row.dram_bytes),
        " ".join(kept) or "-",
        round(row.cycles),
    )

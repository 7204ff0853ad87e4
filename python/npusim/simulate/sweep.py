"""Many machines for one program: every combination of some settings, and what is worth its cost.

Costs are what a target gives: multipliers, memory on the chip, and the rate of DRAM. A row is on
the Pareto front when no other one is as good in every objective and better in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from math import prod
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from npusim.errors import Error, TargetConstraintError
from npusim.partition.plan import PartitionPlan
from npusim.pictures.chart import COLORS, Axis, Chart
from npusim.program.program import CompiledProgram
from npusim.schedule import target_of
from npusim.simulate import opened_program
from npusim.simulate.csv_table import to_csv
from npusim.simulate.journal import Journal, identity
from npusim.simulate.partitions import first_program, run_plan
from npusim.simulate.plan import planned
from npusim.simulate.run import run
from npusim.simulate.saved import REPORT_CAUSES
from npusim.simulate.simulation import Simulation
from npusim.targets import TargetConfig
from npusim.targets.hardware import Hardware

MOST = 10_000  # combinations of one sweep
MIB = 2**20
OBJECTIVES = {
    "seconds": "s",
    "energy_j": "J",
    "multipliers": "multiply-adds a cycle",
    "sram_bytes": "bytes on the chip",
    "dram_bytes_per_second": "bytes a second",
}


@dataclass(frozen=True)
class Row:
    """One machine of a sweep.

    Attributes:
        settings: by key, as `--set` takes them.
        objectives: by name, of `OBJECTIVES`; None where the target does not give it. Empty where
            the program cannot run there.
        cycles: of the core's clock, where it has one.
        stalls: seconds by cause.
        why: what is in the way where the program cannot run there; else empty.
        pareto: on the front.
    """

    settings: Mapping[str, str]
    objectives: Mapping[str, float | None]
    cycles: float | None = None
    stalls: Mapping[str, float] | None = None
    why: str = ""
    pareto: bool = False

    @property
    def bound(self) -> str:
        """The cause that most of its time is due to; empty where it cannot run."""
        return max(self.stalls, key=self.stalls.__getitem__) if self.stalls else ""


@dataclass(frozen=True)
class Sweep:
    """All machines of a sweep, in the order of their settings, the last of which changes fastest.

    Attributes:
        model, method, target: names.
        over: the objectives that the front is of.
    """

    model: str
    method: str
    target: str
    over: tuple[str, ...]
    rows: tuple[Row, ...]

    def to_csv(self) -> str:
        """Returns a table with a row for each machine."""
        keys = list(self.rows[0].settings)
        head = [*keys, *OBJECTIVES, "cycles", "bound", *REPORT_CAUSES, "pareto", "why not"]
        return to_csv(head, (self._cells(row) for row in self.rows))

    def _cells(self, row: Row) -> list[str | float | None]:
        stalls = row.stalls or {}
        return [
            *row.settings.values(),
            *(row.objectives.get(name) for name in OBJECTIVES),
            row.cycles,
            row.bound,
            *(stalls.get(cause) for cause in REPORT_CAUSES),
            "" if row.why else "yes" if row.pareto else "no",
            row.why,
        ]

    def to_svg(self) -> str:
        """Returns a chart of time over energy, or over what costs where energy is not known.

        Machines on the front are filled, and joined where they are the front of these two alone.
        """
        done = [row for row in self.rows if not row.why]
        costs = [name for name in OBJECTIVES if name != "seconds"]
        known = [c for c in costs if all(r.objectives[c] is not None for r in done)]
        cost = max(known, key=lambda name: len({r.objectives[name] for r in done}), default="")
        points = [
            (float(r.objectives[cost] or 0.0), float(r.objectives["seconds"] or 0.0), r)
            for r in done
            if cost
        ]
        x = Axis.over(f"{cost} ({OBJECTIVES.get(cost, '')})", (p[0] for p in points))
        y = Axis.over("seconds of a run", (p[1] for p in points))
        chart = Chart(f"{self.model}, {self.method}: {len(self.rows)} machines", x, y)
        chart.line(list(_lower([p[:2] for p in points])), "#c5ccd8", dash="4 3")
        colors = dict(zip(dict.fromkeys(r.bound for _, _, r in points), COLORS, strict=False))
        for across, up, row in points:
            note = ", ".join(f"{key}={value}" for key, value in row.settings.items())
            color = colors.get(row.bound, COLORS[-1])
            chart.point(across, up, color, note, 4.5 if row.pareto else 3.5, not row.pareto)
        for bound, color in colors.items():
            chart.line([], color, f"bound by {bound}")
        return chart.svg()


def sweep(
    program: CompiledProgram | PartitionPlan | str | Path,
    settings: Mapping[str, Sequence[str]],
    target: str | TargetConfig | None = None,
    *,
    method: str | None = None,
    mode: str | None = None,
    sizes: Mapping[str, int] | None = None,
    context: int | None = None,
    pareto: Sequence[str] = tuple(OBJECTIVES),
    jobs: int = 1,
    progress: Callable[..., None] | None = None,
    journal: str | Path | None = None,
) -> Sweep:
    """Simulates a program on every combination of settings of a machine.

    A machine into which the program does not fit, or whose settings are impossible, is a row that
    says so.

    Args:
        program: a program or a partition plan, or the path of one. A plan stays cut as it is.
        settings: values by key, such as {"mxu.rows": ["8", "16"], "dram.gb_per_s": ["25", "50"]}.
        pareto: names of `OBJECTIVES` that the front is of; those that a target does not give, or
            that are the same everywhere, make no difference.
        jobs: processes. More than one are started anew: a script calls this under
            `if __name__ == "__main__":`.
        progress: called with (stage, done, total).
        journal: a file that keeps each row as soon as it is known, until all are. A sweep that was
            stopped goes on from there when it is called again.

    Raises:
        TargetConstraintError: none of the machines runs the program, as where a key is none of the
            target's.
        Error: the journal is another sweep's; no settings, a key without values, or more than
            10,000 combinations; and as `npusim.simulate` of arguments that have nothing to do with
            the machine.
    """
    program = opened_program(program)
    if unknown := [name for name in pareto if name not in OBJECTIVES]:
        raise Error(
            f"There is no objective '{unknown[0]}'.", hint=f"Choose from: {', '.join(OBJECTIVES)}."
        )
    if jobs < 1:
        raise Error(f"{jobs} processes cannot work.", hint="Give 1 or more.")
    named = TargetConfig.named(target) if isinstance(target, str) else target
    one = program if isinstance(program, CompiledProgram) else first_program(program)
    chosen = named or target_of(one)
    combined = list(_combined(settings))
    asked = {"method": method, "mode": mode, "sizes": sizes, "context": context}
    with ExitStack() as stack:
        kept = None
        if journal is not None:
            key = identity(program, chosen, combined, asked)
            kept = stack.enter_context(Journal(Path(journal), key))
        rows = list(_rows(program, chosen, combined, asked, jobs, progress, kept))
    if all(row.why for row in rows):
        raise TargetConstraintError(
            f"None of {len(rows)} machines runs the program. The first: {rows[0].why}"
        )
    name = one.method(method).name if method else one.methods[0].name
    if isinstance(program, CompiledProgram):
        model = str(program.metadata.get("model", ""))
    else:
        model = program.graph.name
    return Sweep(model, name, chosen.name, tuple(pareto), tuple(_marked(rows, pareto)))


def _combined(settings: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    if not settings:
        raise Error("A sweep needs settings.", hint="Give some, such as mxu.rows=8,16,32.")
    for key, values in settings.items():
        if not values or len(set(values)) != len(values):
            raise Error(
                f"'{key}' has {'the same value twice' if values else 'no values'}.",
                hint="Give different values, such as mxu.rows=8,16,32.",
            )
    count = prod(map(len, settings.values()))
    if count > MOST:
        raise Error(f"{count:,} combinations are more than {MOST:,}.", hint="Give fewer values.")
    for values in product(*settings.values()):
        yield dict(zip(settings, values, strict=True))


def _texts(settings: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def _rows(
    program: CompiledProgram | PartitionPlan,
    target: TargetConfig,
    combined: list[dict[str, str]],
    asked: Mapping[str, Any],
    jobs: int,
    progress: Callable[..., None] | None,
    journal: Journal | None,
) -> Iterator[Row]:
    """Yields the rows in order: those that are known already, then those that are simulated."""
    known = journal.rows(combined) if journal is not None else []
    left = combined[len(known) :]
    for done, row in enumerate(chain(known, _found(program, target, left, asked, jobs)), 1):
        if journal is not None and done > len(known):
            journal.add(row)
        if progress is not None:
            progress("simulating", done, len(combined))
        yield row


def _found(
    program: CompiledProgram | PartitionPlan,
    target: TargetConfig,
    combined: list[dict[str, str]],
    asked: Mapping[str, Any],
    jobs: int,
) -> Iterator[Row]:
    """Yields simulated rows in order, from processes where there are several."""
    jobs = min(jobs, len(combined))
    work = partial(_row, target=target, asked=asked)
    if jobs <= 1:
        yield from (work(settings, program=program) for settings in combined)
        return
    share = -(-len(combined) // (4 * jobs))  # neighbours share searches of schedules
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (program,)) as pool:
        try:
            yield from pool.map(partial(_row_of_worker, work), combined, chunksize=share)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_program: CompiledProgram | PartitionPlan | None = None  # of a worker


def _begin(program: CompiledProgram | PartitionPlan) -> None:
    global _program
    _program = program


def _row_of_worker(work: Callable[..., Row], settings: Mapping[str, str]) -> Row:
    return work(settings, program=_program)


def _row(
    settings: Mapping[str, str],
    *,
    program: CompiledProgram | PartitionPlan,
    target: TargetConfig,
    asked: Mapping[str, Any],
) -> Row:
    try:
        found, hardware = _run(program, target, _texts(settings), **asked)
    except TargetConstraintError as error:
        return Row(settings, {}, why=str(error))
    energy = found.energy
    measured = {"seconds": found.seconds, "energy_j": energy["total"] if energy else None}
    return Row(settings, {**measured, **_costs(hardware)}, found.cycles, found.stalls)


def _run(
    program: CompiledProgram | PartitionPlan,
    target: TargetConfig,
    overrides: list[str],
    mode: str | None,
    **asked: Any,
) -> tuple[Simulation, Hardware]:
    """Returns a run without a timeline, and the machine."""
    if isinstance(program, CompiledProgram):
        plan = planned(program, target, overrides=overrides, **asked)
        return run(plan, mode, shown=0), plan.hardware
    found = run_plan(program, target, mode=mode, overrides=overrides, shown=0, **asked)
    return found.simulation, found.hardware


def _costs(hardware: Hardware) -> dict[str, float | None]:
    """Returns what of a machine is paid for."""
    npu, roofline = hardware.npu, hardware.roofline
    if npu is None:
        assert roofline is not None
        rate = 1e9 * roofline.memory[-1].giga_bytes_per_second
        return {"multipliers": None, "sram_bytes": None, "dram_bytes_per_second": rate}
    held = [m.bytes * (npu.cores.count if m.scope == "core" else 1) for m in npu.sram]
    return {
        "multipliers": npu.multipliers,
        "sram_bytes": float(sum(held)),
        "dram_bytes_per_second": 1e9 * npu.dram.gb_per_s,
    }


def _marked(rows: Sequence[Row], pareto: Sequence[str]) -> Iterator[Row]:
    points = [
        tuple(float(row.objectives[name] or 0.0) for name in pareto) if not row.why else None
        for row in rows
    ]
    fast = {point for point in points if point is not None}
    for row, point in zip(rows, points, strict=True):
        front = point is not None and not any(_better(other, point) for other in fast)
        yield Row(row.settings, row.objectives, row.cycles, row.stalls, row.why, front)


def _better(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _lower(points: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yields points that no other is left of and below."""
    least = float("inf")
    for x, y in sorted(points):
        if y < least:
            least = y
            yield x, y

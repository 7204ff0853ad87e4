"""How long a program takes on a device that is described, and what that time is due to.

Owns the public function, which loads what it needs when it is called, since `import npusim` brings
this file. `plan` settles what is simulated, `npu` and `device` walk it, `run` puts it together,
`simulation` is what comes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.program.program import CompiledProgram
from npusim.targets import TargetConfig

if TYPE_CHECKING:
    from npusim.partition.plan import PartitionPlan
    from npusim.simulate.simulation import Simulation


def simulate(
    program: CompiledProgram | PartitionPlan | str | Path,
    target: str | TargetConfig | None = None,
    *,
    method: str | None = None,
    mode: str | None = None,
    sizes: Mapping[str, int] | None = None,
    context: int | None = None,
    overrides: Iterable[str] = (),
) -> Simulation:
    """Simulates a run of a method: seconds, what each is due to, energy, and a timeline.

    No value is computed. A described NPU's schedules are walked tile by tile, those that the
    program carries, or, for another machine or other sizes, new ones; a device that is known by
    what it reaches has the formula of `npusim.simulate.roofline` for each command.

    Args:
        program: a program or a partition plan, or the path of one. Of a plan, PyTorch's nodes are
            the host's, and values cross.
        target: a target's name, the path of a target file, or a TargetConfig; by default what the
            program was compiled for.
        method: its name; by default the first.
        mode: how commands start, "loose" (a doorbell and polling each) or "tight" (queued); by
            default as the target says.
        sizes: of symbolic sizes by name; by default the greatest.
        context: of a language model, how many tokens its cache holds; by default it is full.
        overrides: numbers of the target that are changed, such as "dram.gb_per_s=51.2".

    Raises:
        TargetConstraintError: the target describes no machine, a setting is none of its own or
            contradicts it, the program does not fit into it, or says nothing of it, or a command
            has too many tiles to be walked.
        ProgramFormatError: the program, or what it says of its machine, is damaged.
        ShapeError: sizes that calls cannot have.
        Error: no such method or mode, or a context without a language model or beyond it.
    """
    from npusim.simulate.plan import planned
    from npusim.simulate.run import run

    opened = opened_program(program)
    asked: dict[str, Any] = {
        "method": method, "sizes": sizes, "context": context, "overrides": overrides
    }  # fmt: skip
    if not isinstance(opened, CompiledProgram):
        from npusim.simulate.partitions import run_plan

        return run_plan(opened, target, mode=mode, **asked).simulation
    return run(planned(opened, target, **asked), mode)


def opened_program(
    program: CompiledProgram | PartitionPlan | str | Path,
) -> CompiledProgram | PartitionPlan:
    """Returns a program or a plan, or what the file of one holds."""
    if not isinstance(program, (str, Path)):
        return program
    from npusim.partition.plan import PartitionPlan
    from npusim.partition.plan_file import is_plan

    return PartitionPlan.load(program) if is_plan(program) else CompiledProgram.load(program)

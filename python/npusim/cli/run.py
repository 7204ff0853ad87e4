"""`npusim run`: a program, or a plan, over arrays from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

import npusim
from npusim.cli.answer import Answer, Verb, table
from npusim.cli.arrays import INPUT_HELP, read_inputs, summary, write_outputs
from npusim.cli.artifact import open_runnable, plan_specs
from npusim.cli.progress import Report, progress
from npusim.cli.running import Running, running_options
from npusim.cli.weights import Weights, weights_options
from npusim.partition.plan import PartitionPlan
from npusim.program.program import CompiledProgram


@click.command(cls=Verb)
@click.argument("program", type=click.Path(path_type=Path))
@weights_options()
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help=INPUT_HELP)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the outputs, one NAME.npy each; without it, a line tells each.",
)
@running_options
def run(
    program: Path,
    weights: Weights,
    inputs: tuple[str, ...],
    output: Path | None,
    running: Running,
) -> Answer:
    """Run a program, or a plan, on inputs from .npy or .npz files."""
    opened = open_runnable(program)
    extra: Sequence[str] = ()
    if isinstance(opened, PartitionPlan):
        specs, usual = plan_specs(opened), opened.device
    else:
        specs, usual = list(opened.input_specs), opened.target
    arrays = read_inputs(inputs, specs)
    on, copy = running.open(usual), running.copy_weights
    with progress("Running") as report:
        if isinstance(opened, PartitionPlan):
            outputs = _run_plan(opened, on, weights, arrays, report, copy)
        else:
            outputs, extra = _run_program(opened, on, weights, arrays, report, copy)
    told: list[str | None] = [None] * len(outputs)
    if output is not None:
        told = [str(path) for path in write_outputs(output, outputs)]
    rows = [
        (name, f"{a.dtype}{list(a.shape)}", path or summary(a))
        for (name, a), path in zip(outputs.items(), told, strict=True)
    ]
    data = {
        "outputs": [
            {"name": name, "dtype": str(a.dtype), "shape": list(a.shape), "path": path}
            for (name, a), path in zip(outputs.items(), told, strict=True)
        ],
        "unused_weights": list(extra),
    }
    lines = [table(rows, "output", "type", "file" if output is not None else "values")]
    if extra:
        few = ", ".join(extra[:3]) + (", …" if len(extra) > 3 else "")
        lines.append(f"The program does not use {len(extra)} tensors of the file: {few}")
    return Answer(data, lines)


def _run_program(
    program: CompiledProgram,
    device: npusim.Device,
    weights: Weights,
    arrays: Mapping[str, np.ndarray],
    report: Report,
    copy: bool,
) -> tuple[dict[str, np.ndarray], Sequence[str]]:
    """Returns the outputs by name, and the weights of the file that nobody reads."""
    checked = npusim.load_weights(
        weights, program, device, check_nan=True, copy=copy, progress=report
    )
    report("running")
    results = npusim.load(program, weights=checked, device=device)(*arrays.values())
    names = [spec.name for spec in program.output_specs]
    return {n: np.asarray(r) for n, r in zip(names, results, strict=True)}, checked.extra


def _run_plan(
    plan: PartitionPlan,
    device: npusim.Device,
    weights: Weights,
    arrays: Mapping[str, Any],
    report: Report,
    copy: bool,
) -> dict[str, np.ndarray]:
    executor = npusim.DAGExecutor(plan, device)
    executor.load_weights(weights, copy=copy, progress=report)
    report("running")
    return {name: np.asarray(value) for name, value in executor.execute(arrays).items()}

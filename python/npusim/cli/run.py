"""`npusim run`: a program, or a plan, over arrays from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

import npusim
from npusim.cli.answer import Answer, Verb, table
from npusim.cli.arrays import INPUT_HELP, read_inputs, write_outputs
from npusim.cli.artifact import open_runnable, readable
from npusim.partition.plan import PartitionPlan
from npusim.program.program import CompiledProgram, TensorSpec


@click.command(cls=Verb)
@click.argument("program", type=click.Path(path_type=Path))
@click.option("--weights", type=click.Path(path_type=Path), help=".safetensors, its index, or .pt.")
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help=INPUT_HELP)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder for the outputs, one NAME.npy each.",
)
@click.option("--device", help="Default: the device of the program's target.")
@click.option("--threads", type=click.IntRange(min=1), help="Default: one a core.")
@click.option(
    "--max-work",
    type=click.IntRange(min=1),
    metavar="STEPS",
    help="Refuse a program of which a method takes more on the cpu; `npusim info` counts them.",
)
def run(
    program: Path,
    weights: Path | None,
    inputs: tuple[str, ...],
    output: Path,
    device: str | None,
    threads: int | None,
    max_work: int | None,
) -> Answer:
    """Run a program, or a plan, on inputs from .npy files."""
    opened = open_runnable(program)
    source = readable(weights) if weights else None
    extra: Sequence[str] = ()
    if isinstance(opened, PartitionPlan):
        arrays = read_inputs(inputs, _specs(opened))
        on = npusim.Device(device or opened.device, threads=threads, max_work=max_work)
        outputs = _run_plan(opened, on, source, arrays)
    else:
        arrays = read_inputs(inputs, opened.input_specs)
        on = npusim.Device(device or opened.target, threads=threads, max_work=max_work)
        outputs, extra = _run_program(opened, on, source, arrays)
    paths = write_outputs(output, outputs)
    rows = [
        (name, f"{a.dtype}{list(a.shape)}", str(path))
        for (name, a), path in zip(outputs.items(), paths, strict=True)
    ]
    data = {
        "outputs": [
            {"name": name, "dtype": str(a.dtype), "shape": list(a.shape), "path": str(path)}
            for (name, a), path in zip(outputs.items(), paths, strict=True)
        ],
        "unused_weights": list(extra),
    }
    lines = [table(rows, "output", "type", "file")]
    if extra:
        few = ", ".join(extra[:3]) + (", …" if len(extra) > 3 else "")
        lines.append(f"The program does not use {len(extra)} tensors of the file: {few}")
    return Answer(data, lines)


def _run_program(
    program: CompiledProgram,
    device: npusim.Device,
    weights: Path | None,
    arrays: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], Sequence[str]]:
    """Returns the outputs by name, and the weights of the file that nobody reads."""
    checked = npusim.load_weights(weights, program, device, check_nan=True)
    results = npusim.load(program, weights=checked, device=device)(*arrays.values())
    names = [spec.name for spec in program.output_specs]
    return {n: np.asarray(r) for n, r in zip(names, results, strict=True)}, checked.extra


def _run_plan(
    plan: PartitionPlan, device: npusim.Device, weights: Path | None, arrays: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    executor = npusim.DAGExecutor(plan, device).load_weights(weights)
    return {name: np.asarray(value) for name, value in executor.execute(arrays).items()}


def _specs(plan: PartitionPlan) -> list[TensorSpec]:
    return [
        TensorSpec(v.name, 0, v.type.dtype, v.type.shape, v.type.shape) for v in plan.graph.inputs
    ]

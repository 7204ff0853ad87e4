"""`npusim run`: a program over arrays from files."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

import npusim
from npusim.cli.answer import Answer, Verb, table
from npusim.cli.arrays import INPUT_HELP, read_inputs, write_outputs
from npusim.cli.artifact import open_program, readable


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
def run(
    program: Path,
    weights: Path | None,
    inputs: tuple[str, ...],
    output: Path,
    device: str | None,
    threads: int | None,
) -> Answer:
    """Run a program on inputs from .npy files."""
    compiled = open_program(program)
    arrays = read_inputs(inputs, compiled.input_specs)
    on = npusim.Device(device or compiled.target, threads=threads)
    source = readable(weights) if weights else None
    checked = npusim.load_weights(source, compiled, on, check_nan=True)
    session = npusim.load(compiled, weights=checked, device=on)
    results = session(*arrays.values())
    names = [spec.name for spec in compiled.output_specs]
    outputs = {n: np.asarray(r) for n, r in zip(names, results, strict=True)}
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
        "unused_weights": checked.extra,
    }
    lines = [table(rows, "output", "type", "file")]
    if checked.extra:
        few = ", ".join(checked.extra[:3]) + (", …" if len(checked.extra) > 3 else "")
        lines.append(f"The program does not use {len(checked.extra)} tensors of the file: {few}")
    return Answer(data, lines)

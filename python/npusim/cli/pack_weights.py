"""`npusim pack-weights`: weights as a program's preparation leaves them, in a file to be mapped."""

from __future__ import annotations

from pathlib import Path

import click

import npusim
from npusim.cli.answer import Answer, Verb
from npusim.cli.artifact import open_program
from npusim.cli.progress import progress
from npusim.cli.running import Running, running_options
from npusim.cli.weights import Weights, weights_options


@click.command("pack-weights", cls=Verb)
@click.argument("program", type=click.Path(path_type=Path))
@weights_options()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Such as model.npuw."
)
@running_options
def pack_weights(program: Path, weights: Weights, output: Path, running: Running) -> Answer:
    """Prepare a program's weights once, for this machine; --weights takes the file ever after."""
    opened = open_program(program)
    device = running.open(opened.target)
    with progress("Preparing") as report:
        loaded = npusim.load_weights(
            weights, opened, device, check_nan=True, copy=running.copy_weights, progress=report
        )
        npusim.pack_weights(loaded, output)
    size = output.stat().st_size
    data = {"path": str(output), "bytes": size, "device": device.kind}
    return Answer(data, [f"{output}: {size:,} bytes, for {device.kind}"])

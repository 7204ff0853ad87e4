"""`npusim tune`: a CUDA program with what computes each of its commands fastest on this GPU."""

from __future__ import annotations

from pathlib import Path

import click

import npusim
from npusim.cli.answer import Answer, Verb
from npusim.cli.artifact import readable
from npusim.cli.progress import progress


@click.command(cls=Verb)
@click.argument("program", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take the choices of a tuning file instead of measuring; needs no GPU.",
)
@click.option(
    "--save", type=click.Path(path_type=Path), metavar="FILE", help="Write a tuning file as well."
)
@click.option("--device", "ordinal", default=0, show_default=True, help="Which of several GPUs.")
def tune(
    program: Path, output: Path, source: Path | None, save: Path | None, ordinal: int
) -> Answer:
    """Choose kernels and library plans by measuring them, and write the tuned program.

    Own kernels are tried in their geometries, and cuBLASLt and cuDNN where they are there. No
    weights are needed. A tuned program runs everywhere: where a library is missing, own kernels
    compute.
    """
    # Imported here: other verbs run where the native module is missing.
    from npusim import tune as tuner
    from npusim.codegen.tuning import Tuning

    compiled = npusim.CompiledProgram.load(readable(program))
    with progress("Tuning") as report:
        if source is not None:
            tuning = Tuning.load(readable(source))
        else:
            device = npusim.Device(tuner.target_of(compiled).device, ordinal=ordinal)
            tuning = tuner.tune(compiled, device, progress=report)
        report("writing")
        tuned = tuner.apply(compiled, tuning)
        tuned.save(output)
        if save is not None:
            tuning.save(save)
    chosen = tuner.choices_for(compiled, tuning)
    counts: dict[str, int] = {}
    for choice in chosen.values():
        name = choice.library or choice.variant or "the default kernel"
        counts[name] = counts.get(name, 0) + 1
    lines = [f"{output}: {len(chosen)} distinct commands chosen by times on {tuning.device}"]
    lines += [f"  {count} × {name}" for name, count in sorted(counts.items())]
    return Answer({"output": str(output), "device": tuning.device, "choices": counts}, lines)

"""`npusim simulate-llm`: first token and tokens a second of a language model on a machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from npusim.cli.answer import Answer, Verb, duration, table
from npusim.cli.artifact import open_program
from npusim.cli.bench_llm import Lengths
from npusim.cli.progress import progress
from npusim.cli.simulated import mode_option, target_option
from npusim.files import write_atomic
from npusim.simulate.language_model import CONTEXTS, Generation, generation


@click.command(cls=Verb)
@click.argument("program", type=click.Path(path_type=Path))
@target_option
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Change a number.")
@mode_option
@click.option(
    "--contexts",
    type=Lengths(),
    default=",".join(map(str, CONTEXTS)),
    show_default=True,
    help="Tokens of the prompt, and then in the cache.",
)
@click.option(
    "--batch",
    type=Lengths(),
    default="1",
    show_default=True,
    help="Sequences at once.",
)
@click.option("--cores", type=Lengths(), help="Such as 1,2,4. Default: as many as it has.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The table as CSV.")
@click.option("--plot", "out", type=click.Path(path_type=Path), help="Charts as SVG.")
def simulate_llm(
    program: Path,
    target: str | None,
    settings: tuple[str, ...],
    mode: str | None,
    contexts: tuple[int, ...],
    batch: tuple[int, ...],
    cores: tuple[int, ...] | None,
    output: Path | None,
    out: Path | None,
) -> Answer:
    """Say how long a machine takes for a prompt and for a token, as the cache grows.

    The prompt runs in the chunks that the runtime would take; a token is one run of 'decode'.
    Several sequences share the weights, and have a cache each. Choosing tokens is not in it.
    """
    opened = open_program(program)
    with progress("Simulating") as report:
        found = generation(
            opened,
            target,
            contexts=contexts,
            batches=batch,
            cores=cores or (),
            mode=mode,
            overrides=settings,
            progress=report,
        )
    if output is not None:
        write_atomic(output, found.to_csv().encode())
    if out is not None:
        write_atomic(out, found.to_svg().encode())
    written = [str(path) for path in (output, out) if path is not None]
    rows = [
        {
            **dataclasses.asdict(point),
            "tokens_per_second": point.tokens_per_second,
            "prompt_tokens_per_second": point.prompt_tokens_per_second,
        }
        for point in found.points
    ]
    facts = {"model": found.model, "target": found.target, "rows": rows, "files": written}
    return Answer(facts, _lines(found, written))


def _lines(found: Generation, written: list[str]) -> list[str]:
    cells = [
        (
            point.context,
            point.batch,
            "-" if point.cores is None else str(point.cores),
            duration(point.first_s),
            f"{point.prompt_tokens_per_second:,.0f}",
            duration(point.token_s),
            f"{point.tokens_per_second:,.4g}",
            "-" if point.token_j is None else f"{point.token_j / point.batch:.3g} J",
            point.bound,
        )
        for point in found.points
    ]
    head = ("context", "batch", "cores", "first token", "prompt tokens/s", "a token", "tokens/s")
    return [
        f"{found.model or 'program'} on {found.target}",
        table(cells, *head, "energy a token", "bound"),
        *(f"written: {path}" for path in written),
    ]

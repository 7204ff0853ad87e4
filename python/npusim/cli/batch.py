"""`npusim batch`: a file of requests becomes a file of answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from pathlib import Path

import click

from npusim.cli.answer import Answer, Verb, duration
from npusim.cli.artifact import open_program
from npusim.cli.progress import progress
from npusim.cli.running import Running, running_options
from npusim.cli.serve import require_packages
from npusim.cli.weights import Weights, weights_options
from npusim.errors import Error
from npusim.files import reads


@click.command(cls=Verb)
@click.argument("requests", type=click.Path(path_type=Path))
@click.argument("program", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@weights_options()
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Default: beside the weights.")
@click.option("--name", help="What requests call the model. Default: the program's file name.")
@click.option("--max-batch", type=click.IntRange(min=1), default=256, show_default=True)
@running_options
def batch(
    requests: Path,
    program: Path,
    output: Path,
    weights: Weights,
    tokenizer: Path | None,
    name: str | None,
    max_batch: int,
    running: Running,
) -> Answer:
    """Answer a file of requests with a language model.

    REQUESTS has OpenAI's batch format, a JSON object a line: custom_id, method, url, body. The
    answers come in the same order; rows that fail say why, and the exit code is then 1. A run that
    was ended goes on where it was, with the same command.
    """
    require_packages()
    from npusim.serve.batch import Outcome, answer_file
    from npusim.serve.engine import Engine
    from npusim.serve.generation import Generator

    if not requests.is_file():
        raise Error(f"There is no file {requests}.")
    reads(requests)
    with progress("Batch") as report:
        report("loading")
        compiled = open_program(program)
        engine = Engine(
            compiled,
            weights,
            tokenizer=tokenizer,
            device=running.open(compiled.target),
            max_batch=max_batch,
            copy=running.copy_weights,
            progress=report,
        )

        async def work() -> Outcome:
            generator = Generator(engine, name or program.stem)
            try:
                return await answer_file(
                    generator, requests, output, lambda done, of: report("answering", done, of)
                )
            finally:
                generator.close()

        began = time.perf_counter()
        try:
            outcome = asyncio.run(work())
        finally:
            engine.close()
    seconds = time.perf_counter() - began
    data = {**asdict(outcome), "seconds": seconds}
    text = (
        f"{output}: {outcome.answered} answered, {outcome.failed} failed; "
        f"{outcome.completion_tokens} tokens after {outcome.prompt_tokens} in {duration(seconds)}"
    )
    return Answer(data, [text], ok=not outcome.failed)

"""`npusim batch`: a file of requests becomes a file of answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from pathlib import Path

import click

from npusim.cli.answer import Answer, Verb, duration
from npusim.cli.language import (
    LanguageOptions,
    language_options,
    name_of,
    open_to_serve,
    save_option,
)
from npusim.cli.precision import quantize_option
from npusim.cli.progress import progress
from npusim.cli.running import Running, running_options
from npusim.cli.serve import require_packages
from npusim.cli.weights import Weights, weights_options
from npusim.errors import Error
from npusim.files import reads


@click.command(cls=Verb)
@click.argument("requests", type=click.Path(path_type=Path))
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@weights_options(help="Default: MODEL.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Default: beside the weights.")
@click.option("--name", help="What requests call the model. Default: MODEL's own name.")
@click.option("--max-batch", type=click.IntRange(min=1), default=256, show_default=True)
@language_options(serving=True)
@quantize_option
@save_option
@running_options
def batch(
    requests: Path,
    model: Path,
    output: Path,
    weights: Weights,
    tokenizer: Path | None,
    name: str | None,
    max_batch: int,
    language: LanguageOptions,
    quantize: str | None,
    save: Path | None,
    running: Running,
) -> Answer:
    """Answer a file of requests with a language model.

    MODEL is a .npubin file, which needs --weights; or a folder of Hugging Face transformers or a
    .gguf file, of which a program is made first, as --max-context and the options below it say.

    REQUESTS has OpenAI's batch format, a JSON object a line: custom_id, method, url, body. The
    answers come in the same order; rows that fail say why, and the exit code is then 1. A run that
    was ended goes on where it was, with the same command.
    """
    require_packages()
    from npusim.serve.batch import Outcome, answer_file
    from npusim.serve.engine import Engine
    from npusim.serve.generation import Generator
    from npusim.serve.process import close_in_time

    if not requests.is_file():
        raise Error(f"There is no file {requests}.")
    reads(requests)
    with progress("Batch") as report:
        report("loading")
        served = open_to_serve(model, weights, language, quantize, save, report)
        engine = Engine(
            served.program,
            served.weights,
            tokenizer=tokenizer,
            device=running.open(served.program.target),
            max_batch=max_batch,
            copy=running.copy_weights,
            progress=report,
        )

        async def work() -> Outcome:
            generator = Generator(engine, name or name_of(model))
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
            close_in_time(engine)
    seconds = time.perf_counter() - began
    data = {**asdict(outcome), "seconds": seconds, "remark": served.remark}
    text = (
        f"{output}: {outcome.answered} answered, {outcome.failed} failed; "
        f"{outcome.completion_tokens} tokens after {outcome.prompt_tokens} in {duration(seconds)}"
    )
    return Answer(data, [text, *([served.remark] if served.remark else [])], ok=not outcome.failed)

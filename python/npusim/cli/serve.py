"""`npusim serve`: a language model behind an OpenAI-compatible HTTP interface."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import click

from npusim.cli.answer import Answer, Verb
from npusim.cli.artifact import open_program
from npusim.cli.encoder import is_text_encoder, open_encoder
from npusim.cli.finite import Finite
from npusim.cli.language import (
    LanguageOptions,
    is_language_model,
    language_options,
    name_of,
    open_to_serve,
    save_option,
)
from npusim.cli.precision import quantize_option
from npusim.cli.running import ByteCount, Running, running_options
from npusim.cli.weights import Weights, weights_options
from npusim.errors import Error

_log = logging.getLogger("npusim.serve")
_KEYS = "NPUSIM_API_KEYS"
_NEEDS = ("starlette", "uvicorn", "prometheus_client", "jinja2", "tokenizers")


@click.command(cls=Verb)
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@weights_options(help="Default: MODEL.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Default: beside the weights.")
@click.option("--name", help="What requests call the model. Default: MODEL's own name.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="0: any that is free; the log says which.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Requests that run at a time.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(min=0),
    default=1024,
    show_default=True,
    help="Requests that wait; more are refused (429).",
)
@click.option(
    "--frontends",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes that clients are served by, beside the engine's; 1: it serves them itself.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    help=f"Keys that are let in, one a line; or the variable {_KEYS}, separated by commas.",
)
@click.option(
    "--max-body", type=ByteCount(), default="8M", show_default=True, help="Bytes of a request."
)
@click.option(
    "--drain-timeout",
    type=Finite(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that requests may take to end after SIGTERM.",
)
@click.option(
    "--step-timeout",
    type=Finite(min=0),
    default=600.0,
    show_default=True,
    help="Seconds that a step may take before the engine counts as hung; 0: for ever.",
)
@click.option(
    "--pooling",
    metavar="HOW",
    help="MODEL is an encoder's folder, whose rows become the vector of a text by mean, cls, "
    "lasttoken, max or mean_sqrt_len_tokens. Default: as sentence-transformers' files in it say.",
)
@language_options(serving=True)
@quantize_option
@save_option
@running_options
def serve(
    model: Path,
    weights: Weights,
    tokenizer: Path | None,
    name: str | None,
    host: str,
    port: int,
    max_batch: int,
    max_waiting: int,
    frontends: int,
    api_key_file: Path | None,
    max_body: int,
    drain_timeout: float,
    step_timeout: float,
    pooling: str | None,
    language: LanguageOptions,
    quantize: str | None,
    save: Path | None,
    running: Running,
) -> Answer:
    """Serve a language model or a text encoder over HTTP, as OpenAI's clients expect it.

    MODEL is a .npubin file, which needs --weights; or a folder of Hugging Face transformers or a
    .gguf file, of which a program is made first, as --max-context and the options below it say.
    A folder of sentence-transformers, an encoder's with --pooling, and a program made of one are
    served as vectors of texts, by /v1/embeddings.

    /v1/chat/completions, /v1/completions, /v1/responses, /v1/models, /tokenize, /detokenize,
    /tokenizer_info, /health, /metrics. The log goes to stderr, a JSON object a line. SIGTERM lets
    requests end, then the process.
    """
    require_packages()
    from npusim.serve.app import Limits
    from npusim.serve.embedding_engine import EmbeddingEngine
    from npusim.serve.engine import Engine
    from npusim.serve.frontend import Served
    from npusim.serve.frontends import serve_here, serve_with
    from npusim.serve.process import logged_as_json, take_port

    served_as = Served(
        name or name_of(model), tuple(_keys(api_key_file)), Limits(body_bytes=max_body)
    )
    target = "cpu" if is_language_model(model) else open_program(model).target
    device = running.open(target)
    if is_text_encoder(model, pooling):
        if frontends > 1:
            raise Error("--frontends: an encoder is served by one process.")

        def load_encoder() -> EmbeddingEngine:
            made = open_encoder(model, weights, language, pooling, quantize, save)
            return EmbeddingEngine(
                made.program,
                made.weights,
                tokenizer=tokenizer,
                device=device,
                max_waiting=max_waiting,
                copy=running.copy_weights,
            )

        with logged_as_json():
            counts = serve_here(served_as, load_encoder, take_port(host, port), drain_timeout)
        return _answer(counts)

    def load() -> Engine:
        served = open_to_serve(model, weights, language, quantize, save, lambda *_: None)
        if served.remark is not None:
            _log.warning("no steps of many requests", extra={"facts": {"why": served.remark}})
        return Engine(
            served.program,
            served.weights,
            tokenizer=tokenizer,
            device=device,
            max_batch=max_batch,
            max_waiting=max_waiting,
            step_timeout=step_timeout,
            copy=running.copy_weights,
        )

    with logged_as_json():
        counts = serve_with(
            frontends,
            served_as,
            load,
            take_port(host, port),
            drain_timeout,
        )
    return _answer(counts)


def _answer(counts: Mapping[int, int]) -> Answer:
    statuses = {str(status): count for status, count in sorted(counts.items())}
    text = ", ".join(f"{count} x {status}" for status, count in statuses.items()) or "none"
    return Answer({"requests": statuses}, [f"requests: {text}"])


def require_packages() -> None:
    """Raises Error that names the packages of the extra `serve` that are missing."""
    from importlib.util import find_spec

    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise Error(
            f"Serving needs packages that are not there: {', '.join(missing)}.",
            hint="pip install 'npusim[serve]'",
        )


def _keys(path: Path | None) -> list[str]:
    """Returns the keys of a file, or of the variable where no file is given."""
    if path is None:
        given = os.environ.get(_KEYS, "").split(",")
    else:
        try:
            given = path.read_text("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise Error(f"{path} is no UTF-8 text.") from error
    keys = [key.strip() for key in given if key.strip()]
    if path is not None and not keys:
        raise Error(f"{path} has no key.", hint="Write one a line, or leave --api-key-file out.")
    return keys

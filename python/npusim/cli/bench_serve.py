"""`npusim bench --serve`: a load test of a server, with the names of `vllm bench serve`."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from npusim.cli.answer import Answer, table
from npusim.errors import Error
from npusim.files import write_atomic

if TYPE_CHECKING:
    from npusim.serve.load_client import LoadClient
    from npusim.serve.load_trace import Trace

_KEY = "NPUSIM_API_KEY"


@dataclass(frozen=True)
class LoadOptions:
    """What `bench --serve` was asked."""

    url: str | None
    dataset: str
    input_len: int
    output_len: int
    num_prompts: int
    request_rate: float
    burstiness: float | None
    max_concurrency: int | None
    clients: int
    goodput: tuple[str, ...]
    percentiles: str
    seed: int
    vocab_size: int | None
    result: Path | None


_OPTIONS = (
    click.option(
        "--serve",
        "url",
        metavar="URL",
        help="Test a server instead: requests as `vllm bench serve` makes them.",
    ),
    click.option(
        "--dataset",
        type=click.Choice(["random", "sharegpt", "azure-conversation", "azure-code"]),
        default="random",
        show_default=True,
        help="With --serve: lengths of prompts and answers.",
    ),
    click.option("--input-len", type=click.IntRange(min=1), default=128, show_default=True),
    click.option("--output-len", type=click.IntRange(min=1), default=128, show_default=True),
    click.option("--num-prompts", type=click.IntRange(min=1), default=100, show_default=True),
    click.option(
        "--request-rate",
        type=float,
        default=math.inf,
        show_default=True,
        help="With --serve: requests a second; inf: all at once.",
    ),
    click.option(
        "--burstiness",
        type=float,
        help="With --serve: shape of the Gamma distribution of arrivals. Default: the dataset's.",
    ),
    click.option("--max-concurrency", type=click.IntRange(min=1)),
    click.option(
        "--clients",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="With --serve: processes that send and read.",
    ),
    click.option(
        "--goodput",
        multiple=True,
        metavar="ttft:200",
        help="With --serve: a limit in ms of ttft, tpot or e2el; repeatable.",
    ),
    click.option("--percentiles", default="50,90,99", show_default=True),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True),
    click.option("--vocab-size", type=click.IntRange(min=1), help="Where the server does not say."),
    click.option("--result", type=click.Path(path_type=Path), help="With --serve: all as JSON."),
)
_NAMES = tuple(LoadOptions.__dataclass_fields__)


def load_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a verb, which gets them together as `load`."""

    @functools.wraps(verb)
    def gathered(**given: Any) -> Any:
        if given["url"] is None:
            _refuse_alone()
        return verb(load=LoadOptions(**{name: given.pop(name) for name in _NAMES}), **given)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered


def _refuse_alone() -> None:
    """Raises UsageError for options of a load test without a server."""
    context = click.get_current_context()
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in _NAMES and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} is about --serve, which is missing.")


def bench_server(options: LoadOptions, plot: Path | None, report: Callable[..., None]) -> Answer:
    """Sends the requests and reports."""
    from npusim.serve.load import LoadTest, lines_of, run_load
    from npusim.serve.load_client import LoadClient
    from npusim.serve.load_processes import run_load_in_processes

    assert options.url is not None
    url, key = options.url, os.environ.get(_KEY)
    percentiles = _percentiles(options.percentiles)
    goodput = _goodput(options.goodput)

    async def work() -> tuple[dict[str, Any], Trace]:
        async with LoadClient(url, key) as client:
            model, trace = await _prepare(client, options)
            test = LoadTest(
                "/v1/completions", model, trace, options.max_concurrency, goodput, percentiles
            )
            report("warming up")
            if options.clients > 1:
                clients = options.clients
                told = await asyncio.to_thread(run_load_in_processes, url, key, test, clients)
            else:
                told = await run_load(client, test, lambda done, of: report("requests", done, of))
            return told, trace

    told, trace = asyncio.run(work())
    finite = None if math.isinf(options.request_rate) else options.request_rate
    told = {"request_rate": finite, "burstiness": _burstiness(options), **told}
    if options.result is not None:
        write_atomic(options.result, json.dumps(told).encode())
    if plot is not None:
        draw(told, plot)
    text = [table(lines_of(told, percentiles))]
    if trace.cut:
        text.append(f"{trace.cut} requests were shortened to fit into the context.")
    text += [f"error: {error}" for error in sorted({e for e in told["errors"] if e})[:5]]
    return Answer(told, text, ok=told["failed"] == 0)


async def _prepare(client: LoadClient, options: LoadOptions) -> tuple[str, Trace]:
    """Asks the server for its model; returns its name and the requests."""
    from npusim.serve.load_trace import TRACES, Distribution, make_trace

    models = (await client.get("/v1/models")).get("data")
    if not isinstance(models, list) or not models:
        raise Error("The server has no model.")
    card = models[0]
    vocab = options.vocab_size or card.get("vocab_size")
    if not isinstance(vocab, int):
        raise Error("The server does not say its vocabulary.", hint="Give --vocab-size.")
    fixed = Distribution((math.log(options.input_len), 0), (math.log(options.output_len), 0), 1)
    trace = make_trace(
        options.num_prompts,
        TRACES.get(options.dataset, fixed),
        request_rate=options.request_rate,
        burstiness=_burstiness(options),
        max_context=card.get("max_model_len") or 1 << 20,
        vocab_size=vocab,
        seed=options.seed,
    )
    return str(card["id"]), trace


def _burstiness(options: LoadOptions) -> float:
    from npusim.serve.load_trace import TRACES

    own = TRACES[options.dataset].burstiness if options.dataset in TRACES else 1.0
    return own if options.burstiness is None else options.burstiness


def _percentiles(text: str) -> list[float]:
    try:
        parts = [float(part) for part in text.split(",")]
    except ValueError:
        parts = [-1.0]
    if not all(0 <= part <= 100 for part in parts):
        raise Error(f"--percentiles {text}: expected numbers from 0 to 100, such as 50,99.")
    return parts


def _goodput(limits: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for limit in limits:
        name, _, value = limit.partition(":")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = -1.0
        if name not in ("ttft", "tpot", "e2el") or not 0 <= found[name] < math.inf:
            raise Error(f"--goodput {limit}: expected ttft, tpot or e2el and ms, such as ttft:200.")
    return found


def draw(told: dict[str, Any], path: Path) -> None:
    """Draws how many requests had which time to the first token, and which gaps between tokens."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise Error("--plot needs matplotlib.", hint="pip install 'npusim[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    gaps = [1000 * gap for gaps in told["itls"] for gap in gaps]
    firsts = [1000 * first for first in told["ttfts"] if first > 0]
    for axis, values, label in zip(
        axes, (firsts, gaps), ("time to first token (ms)", "inter-token latency (ms)"), strict=True
    ):
        axis.ecdf(values or [0.0])
        axis.set(xlabel=label, ylabel="part of all", ylim=(0, 1))
        axis.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise Error(f"{path} cannot be written: {error}.") from error
    finally:
        pyplot.close(figure)

"""`npusim bench --llm`: time to the first token and tokens a second, by length of the context.

Prompts are seeded random numbers: what is measured does not depend on them. After them come the
most probable tokens.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npusim.cli.answer import Answer, amount, duration, table
from npusim.errors import Error
from npusim.profile.memory import peak_rss

if TYPE_CHECKING:
    from npusim.language_model import LanguageModel

LENGTHS = (1, 128, 512, 1024, 2048, 4096)
_NEW_TOKENS = 16


class Lengths(click.ParamType):
    """Numbers of tokens, separated by commas."""

    name = "lengths"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        """Returns the numbers; fails for anything that is none, or below one."""
        if isinstance(value, tuple):
            return value
        try:
            lengths = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers such as 1,128,1024", param, ctx)
        if min(lengths) < 1:
            self.fail("a context has one token or more", param, ctx)
        return lengths


def bench_language_model(
    model: LanguageModel,
    lengths: Sequence[int],
    runs: int,
    plot: Path | None,
    report: Callable[..., None],
) -> Answer:
    """Measures at each length that the context holds; `runs` prompts each."""
    usable = [n for n in sorted(set(lengths)) if n + _NEW_TOKENS <= model.max_context]
    if not usable:
        raise Error(
            f"No length fits: the context holds {model.max_context} tokens, of which "
            f"{_NEW_TOKENS} are generated.",
            hint="Give smaller --contexts, or compile with a larger max_context.",
        )
    _measure(model, usable[0], 1)  # pages of the weights come in, the clock goes up
    rows = []
    for length in usable:
        report(f"context of {length}")
        rows.append(_measure(model, length, runs))
    if plot is not None:
        _draw(rows, plot)
    cells = [
        (
            f"{row['context']:,}",
            duration(row["time_to_first_token_s"]),
            f"{row['context'] / row['time_to_first_token_s']:.0f}",
            f"{row['tokens_per_second']:.2f}",
            f"{duration(row['p10_s'])} … {duration(row['p90_s'])}",
        )
        for row in rows
    ]
    heads = ("context", "first token", "prompt tokens/s", "tokens/s", "a token: 10 % … 90 %")
    memory = peak_rss()
    text = f"peak memory of the process: {amount(memory)}"
    return Answer({"rows": rows, "peak_rss_bytes": memory}, [table(cells, *heads), text])


def _measure(model: LanguageModel, length: int, runs: int) -> dict[str, float]:
    numbers = random.Random(length)

    def tokens(count: int) -> list[int]:
        return [numbers.randrange(model.vocab_size) for _ in range(count)]

    first: list[float] = []
    others: list[float] = []
    for _ in range(runs):
        session = model.new_session()
        first.append(_timed(partial(session.append, tokens(length))))
        generation = session.generate_tokens(max_new_tokens=_NEW_TOKENS, ignore_eos=True)
        next(generation)  # the prompt's run has its scores already
        others += [_timed(partial(next, generation)) for _ in range(_NEW_TOKENS - 1)]
    tenths = statistics.quantiles(others, n=10)
    return {
        "context": length,
        "time_to_first_token_s": statistics.median(first),
        "tokens_per_second": 1 / statistics.median(others),
        "p10_s": tenths[0],
        "p90_s": tenths[-1],
    }


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _draw(rows: Sequence[dict[str, float]], path: Path) -> None:
    """Writes both measures over the context as a picture; the name's ending says which kind."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise Error("--plot needs matplotlib.", hint="pip install 'npusim[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    lengths = [row["context"] for row in rows]
    axes[0].plot(lengths, [row["time_to_first_token_s"] for row in rows], marker="o")
    axes[0].set(xlabel="context (tokens)", ylabel="time to first token (s)", ylim=(0, None))
    axes[1].plot(lengths, [row["tokens_per_second"] for row in rows], marker="o")
    axes[1].set(xlabel="context (tokens)", ylabel="tokens/s", ylim=(0, None))
    for axis in axes:
        axis.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise Error(f"{path} cannot be written: {error}.") from error
    finally:
        pyplot.close(figure)

"""One decoder served by steps: what `step` gives beside what a session gives, and in any company.

Two texts go through `step`, each alone a row at a time, then both together: in other chunks, other
pages, with rows of nobody among them. The logits of both have to be the same bits, and those of a
session within a bound. Where transformers or the session itself fails, nothing is said of `step`.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import transformers
from numpy.typing import NDArray

import npusim
from npusim.errors import ExportError
from npusim.frontends.step_method import StepSizes
from tests.zoo.decoder_models import NAMES, build
from tests.zoo.decoding import BOUNDS, DTYPES, all_weights
from tests.zoo.inputs import VOCAB
from tests.zoo.isolated import isolated
from tests.zoo.measure import first_line

CONTEXT, PAGE, PAGES = 48, 8, 14
SIZES = StepSizes(page_tokens=PAGE, max_step_tokens=24, max_requests=3, pages=PAGES)
SERVED, DIFFERS, REFUSED, NOT_RUN = "served", "differs", "refused", "not run"
_SECONDS, _MEMORY = 1200.0, 14 << 30
_LENGTHS = (40, 21)

Rows = list[NDArray[np.float32]]


@dataclass(frozen=True)
class Row:
    """What became of a decoder.

    Attributes:
        name: of the architecture, as transformers' configurations have it.
        dtype: of its weights.
        outcome: SERVED, DIFFERS, REFUSED by `extract_llm(serve=…)`, or NOT_RUN without it either.
        error: the largest difference of a logit from the session's, relative to the largest one.
        problem: why it is refused, or what differs, in one line.
        seconds: how long all of it took.
    """

    name: str
    dtype: str
    outcome: str
    error: float | None = None
    problem: str = ""
    seconds: float = 0.0


@dataclass
class _Request:
    tokens: list[int]
    pages: list[int]
    done: int = 0
    logits: dict[int, NDArray[np.float32]] = field(default_factory=dict)


def run(names: Sequence[str], dtypes: Sequence[str]) -> int:
    """Measures decoders, each in a process of its own, and prints a line each.

    Returns:
        1 where one differs, else 0.
    """
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    jobs = [(name, dtype) for dtype in dtypes for name in names or NAMES]
    differing = 0
    for job, result, problem in isolated(
        _measure, jobs, workers=1, seconds=_SECONDS, memory=_MEMORY
    ):
        row = result or Row(*job, DIFFERS, problem=problem)
        differing += row.outcome == DIFFERS
        error = "-" if row.error is None else f"{row.error:.1e}"
        text = f"{row.name:26} {row.dtype:8} {row.outcome:8} {error:>8} {row.seconds:5.1f} s"
        print(f"{text} {row.problem}".rstrip(), flush=True)
    return int(differing > 0)


def _measure(job: tuple[str, str]) -> Row:
    return measure(*job)


def measure(name: str, dtype: str = "float32") -> Row:
    """Takes an architecture through `step` on the CPU."""
    start = time.perf_counter()
    try:
        outcome, error, problem = _outcome(name, dtype)
    except Exception as failure:  # transformers' code may raise anything
        outcome, error, problem = DIFFERS, None, f"{type(failure).__name__}: {first_line(failure)}"
    return Row(name, dtype, outcome, error, problem, time.perf_counter() - start)


def _outcome(name: str, dtype: str) -> tuple[str, float | None, str]:
    try:
        model = build(name).to(DTYPES[dtype])
    except Exception as failure:
        return NOT_RUN, None, f"{type(failure).__name__}: {first_line(failure)}"
    try:
        module = npusim.extract_llm(model, max_context=CONTEXT, prefill_chunk=8, serve=SIZES)
    except ExportError as refusal:
        return REFUSED, None, first_line(refusal)
    program = npusim.compile(module)
    weights = all_weights(module, model)
    steps = npusim.load(program, weights=weights, method="step", threads=2)
    chance = random.Random(3)
    texts = [[chance.randrange(5, VOCAB) for _ in range(length)] for length in _LENGTHS]
    alone = [_alone(steps, text) for text in texts]
    for seed in range(4):
        for place, request in enumerate(_together(steps, texts, seed)):
            for done, logits in request.logits.items():
                if not np.array_equal(logits, alone[place][done - 1], equal_nan=True):
                    return DIFFERS, None, f"in company, text {place}, behind {done} tokens"
    error = max(
        _error(rows, _decoded(program, weights, text))
        for rows, text in zip(alone, texts, strict=True)
    )
    problem = "" if error <= BOUNDS[dtype] else "from what a session gives"
    return (DIFFERS if problem else SERVED), error, problem


def _error(found: Rows, wanted: Rows) -> float:
    """Returns the largest difference, relative to the largest logit; inf for a NaN."""
    largest = max(float(np.abs(row).max()) for row in wanted)
    error = max(float(np.abs(row - other).max()) for row, other in zip(found, wanted, strict=True))
    return error / largest if np.isfinite(error) else float("inf")


def _decoded(program: Any, weights: Any, tokens: Sequence[int]) -> Rows:
    """Returns the logits behind each token, of a session."""
    session = npusim.load(program, weights=weights, method="decode", threads=2)
    return [np.array(session(np.array([[token]]))[0]).reshape(-1).copy() for token in tokens]


def _alone(steps: Any, tokens: list[int]) -> Rows:
    request = _Request(tokens, list(range(PAGES))[-(CONTEXT // PAGE) :])
    for _ in tokens:
        _call(steps, [(request, 1)], padding=0)
    return [request.logits[done] for done in range(1, len(tokens) + 1)]


def _together(steps: Any, texts: Sequence[list[int]], seed: int) -> list[_Request]:
    """Runs texts beside each other, in chunks and pages that follow from a seed."""
    chance = random.Random(seed)
    pages = chance.sample(range(PAGES), PAGES)
    each = CONTEXT // PAGE
    requests = [
        _Request(text, pages[place * each : (place + 1) * each]) for place, text in enumerate(texts)
    ]
    while left := [r for r in requests if r.done < len(r.tokens)]:
        chosen = chance.sample(left, chance.randint(1, len(left)))
        rows = [(r, min(len(r.tokens) - r.done, chance.choice((1, 1, 3, 8, 11)))) for r in chosen]
        _call(steps, rows, padding=chance.choice((0, 0, 2)))
    return requests


def _call(steps: Any, rows: Sequence[tuple[_Request, int]], padding: int) -> None:
    """Runs the next rows of each request, and keeps the logits behind them."""
    tokens: list[int] = []
    positions: list[int] = []
    requests: list[int] = []
    last: list[int] = []
    tables = np.full((len(rows), CONTEXT // PAGE), -1, np.int64)
    for place, (request, count) in enumerate(rows):
        end = request.done + count
        tokens += request.tokens[request.done : end]
        positions += range(request.done, end)
        requests += [place] * count
        last.append(len(tokens) - 1)
        used = -(-end // PAGE)
        tables[place, :used] = request.pages[:used]
        request.done = end
    inputs = (
        [tokens + [5] * padding],
        positions + [0] * padding,
        requests + [-1] * padding,
        tables,
        last,
    )
    logits, *_ = steps(*(np.asarray(value, np.int64) for value in inputs))
    for (request, _), row in zip(rows, logits, strict=True):
        request.logits[request.done] = np.asarray(row).astype(np.float32).reshape(-1)

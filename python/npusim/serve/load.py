"""A load test of a server: requests by a trace, and what `vllm bench serve` reports of it.

Names and formulas are those of vLLM's `benchmarks/serve.py`, so that figures can stand beside its.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.errors import Error
from npusim.serve.load_client import LoadClient, Timing
from npusim.serve.load_trace import Trace

METRICS = ("ttft", "tpot", "itl", "e2el")
_TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


@dataclass(frozen=True)
class LoadTest:
    """How a server is tested.

    Attributes:
        endpoint: "/v1/completions"; prompts are token ids.
        model: what requests call it.
        trace: what is sent, and when.
        max_concurrency: requests under way at a time, at most; None: any number.
        goodput: limits in milliseconds of `ttft`, `tpot`, `e2el`; a request counts that keeps all.
        percentiles: those that are reported.
    """

    endpoint: str
    model: str
    trace: Trace
    max_concurrency: int | None
    goodput: Mapping[str, float]
    percentiles: Sequence[float]


async def run_load(
    client: LoadClient, test: LoadTest, report: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Sends one request to see that the server answers, then all; returns the report.

    Raises:
        Error: the first request fails.
    """
    await check_answers(client, test)
    begin = time.perf_counter()
    timings = await send_all(client, test, begin, report)
    return report_of(timings, time.perf_counter() - begin, test)


async def check_answers(client: LoadClient, test: LoadTest) -> None:
    """Sends the first request; Error where it is not answered."""
    first = await client.stream(test.endpoint, _body(test, 0))
    if not first.success:
        raise Error(f"The server does not answer a request: {first.error}.")


async def send_all(
    client: LoadClient,
    test: LoadTest,
    begin: float,
    report: Callable[[int, int], None] | None = None,
) -> list[Timing]:
    """Sends all requests; returns what became of each.

    Args:
        begin: of the test, of `time.perf_counter`.
        report: told how many are done, of how many.
    """
    count = len(test.trace.prompts)
    turns = asyncio.Semaphore(test.max_concurrency or max(1, count))
    done = 0

    async def one(number: int) -> Timing:
        nonlocal done
        await asyncio.sleep(begin + float(test.trace.delays[number]) - time.perf_counter())
        async with turns:
            timing = await client.stream(test.endpoint, _body(test, number))
        done += 1
        if report is not None:
            report(done, count)
        return timing

    return await asyncio.gather(*map(one, range(count)))


def _body(test: LoadTest, number: int) -> dict[str, Any]:
    return {
        "model": test.model,
        "prompt": test.trace.prompts[number].tolist(),
        "max_tokens": int(test.trace.answers[number]),
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def report_of(timings: Sequence[Timing], duration: float, test: LoadTest) -> dict[str, Any]:
    """Returns the fields of vLLM's report.

    Args:
        timings: one a request.
        duration: seconds of the whole test.
        test: what was asked.
    """
    good = [timing for timing in timings if timing.success]
    prompts = sum(timing.prompt_len for timing in good)
    answers = sum(timing.output_tokens for timing in good)
    told: dict[str, Any] = {
        "model_id": test.model,
        "num_prompts": len(timings),
        "max_concurrency": test.max_concurrency,
        "duration": duration,
        "completed": len(good),
        "failed": len(timings) - len(good),
        "total_input_tokens": prompts,
        "total_output_tokens": answers,
        "request_throughput": len(good) / duration,
        "request_goodput": _good(good, test.goodput) / duration if test.goodput else None,
        "output_throughput": answers / duration,
        "total_token_throughput": (prompts + answers) / duration,
        "max_output_tokens_per_s": _peak_tokens(good),
        "max_concurrent_requests": _peak_requests(good),
    }
    for name, values in measures(good).items():
        told.update(_spread(name, values, test.percentiles))
    return {
        **told,
        "input_lens": [timing.prompt_len for timing in timings],
        "output_lens": [timing.output_tokens for timing in timings],
        "ttfts": [timing.ttft for timing in timings],
        "itls": [timing.itl for timing in timings],
        "errors": [timing.error for timing in timings],
    }


def measures(timings: Sequence[Timing]) -> dict[str, list[float]]:
    """Returns the values of each measure, in seconds; TPOT of answers of two tokens or more."""
    return {
        "ttft": [timing.ttft for timing in timings],
        "tpot": [t for timing in timings if (t := _tpot(timing)) is not None],
        "itl": [gap for timing in timings for gap in timing.itl],
        "e2el": [timing.latency for timing in timings],
    }


def _tpot(timing: Timing) -> float | None:
    if timing.output_tokens < 2:
        return None
    return (timing.latency - timing.ttft) / (timing.output_tokens - 1)


def _good(timings: Sequence[Timing], limits: Mapping[str, float]) -> int:
    """Returns how many requests kept all limits, given in milliseconds."""

    def keeps(timing: Timing) -> bool:
        has = {"ttft": timing.ttft, "tpot": _tpot(timing) or 0.0, "e2el": timing.latency}
        return all(has[name] * 1000 <= limit for name, limit in limits.items())

    return sum(map(keeps, timings))


def _spread(name: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    times = np.array(values or [0.0]) * 1000
    told = {
        f"mean_{name}_ms": float(times.mean()),
        f"median_{name}_ms": float(np.median(times)),
        f"std_{name}_ms": float(times.std()),
    }
    for part in percentiles:
        told[f"p{part:g}_{name}_ms"] = float(np.percentile(times, part))
    return told


def _peak_tokens(timings: Sequence[Timing]) -> float:
    """Returns the most tokens of a second of the test; those of an event come with it."""
    if not timings:
        return 0.0
    begin = min(timing.start for timing in timings)
    whole = max(timing.start + timing.latency for timing in timings) - begin
    seconds = np.zeros(int(whole) + 1)
    for timing in timings:
        at = timing.start - begin + np.cumsum([timing.ttft, *timing.itl])
        np.add.at(seconds, at.astype(np.int64), timing.output_tokens / len(at))
    return float(seconds.max())


def _peak_requests(timings: Sequence[Timing]) -> int:
    """Returns how many requests were under way at a time, at most."""
    changes = [(timing.start, 1) for timing in timings]
    changes += [(timing.start + timing.latency, -1) for timing in timings]
    steps = [step for _, step in sorted(changes)]
    return int(np.cumsum(steps).max()) if steps else 0


def lines_of(told: Mapping[str, Any], percentiles: Sequence[float]) -> list[tuple[str, str]]:
    """Returns the rows that a person reads, by vLLM's names."""
    rows = [
        ("Successful requests", f"{told['completed']}"),
        ("Failed requests", f"{told['failed']}"),
        ("Benchmark duration (s)", f"{told['duration']:.2f}"),
        ("Total input tokens", f"{told['total_input_tokens']}"),
        ("Total generated tokens", f"{told['total_output_tokens']}"),
        ("Request throughput (req/s)", f"{told['request_throughput']:.2f}"),
        ("Output token throughput (tok/s)", f"{told['output_throughput']:.2f}"),
        ("Peak output token throughput (tok/s)", f"{told['max_output_tokens_per_s']:.2f}"),
        ("Peak concurrent requests", f"{told['max_concurrent_requests']}"),
        ("Total token throughput (tok/s)", f"{told['total_token_throughput']:.2f}"),
    ]
    if told["request_goodput"] is not None:
        rows.insert(6, ("Request goodput (req/s)", f"{told['request_goodput']:.2f}"))
    for name in METRICS:
        rows.append((_TITLES[name], ""))
        kinds = ["mean", "median", *(f"p{part:g}" for part in percentiles)]
        for kind in kinds:
            shown = kind.capitalize() if kind in ("mean", "median") else kind.upper()
            rows.append((f"{shown} {name.upper()} (ms)", f"{told[f'{kind}_{name}_ms']:.2f}"))
    return rows

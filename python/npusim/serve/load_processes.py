"""A load test by several processes, where one cannot read as fast as a server writes."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

from npusim.serve.load import LoadTest, check_answers, report_of, send_all
from npusim.serve.load_client import LoadClient, Timing
from npusim.serve.load_trace import Trace

_IMPORTS = 3.0  # seconds until all processes are there, about


def run_load_in_processes(
    url: str, key: str | None, test: LoadTest, clients: int
) -> dict[str, Any]:
    """As `run_load`; every process sends each of so many requests, and as many at a time.

    Args:
        url, key: as `LoadClient` takes them.
        test: what is asked.
        clients: how many processes; no more than requests at a time.

    Raises:
        Error: the first request fails.
    """
    asyncio.run(_check(url, key, test))
    begin = time.perf_counter() + _IMPORTS  # a clock that all processes have
    parts = shares(test, clients)
    with ProcessPoolExecutor(len(parts), multiprocessing.get_context("spawn")) as pool:
        sent = [pool.submit(_send, url, key, part, begin) for part in parts]
        told = [future.result() for future in sent]
    timings = [told[n % len(told)][n // len(told)] for n in range(len(test.trace.prompts))]
    first = min((timing.start for timing in timings), default=begin)
    last = max((timing.start + timing.latency for timing in timings), default=begin)
    return report_of(timings, last - first, test)


async def _check(url: str, key: str | None, test: LoadTest) -> None:
    async with LoadClient(url, key) as client:
        await check_answers(client, test)


def shares(test: LoadTest, clients: int) -> list[LoadTest]:
    """Returns what each process sends; no more processes than requests at a time."""
    clients = min(clients, test.max_concurrency or clients)
    return [_part(test, number, clients) for number in range(clients)]


def _part(test: LoadTest, number: int, clients: int) -> LoadTest:
    trace, each = test.trace, slice(number, None, clients)
    part = Trace(trace.prompts[each], trace.answers[each], trace.delays[each], 0)
    most = test.max_concurrency
    if most is not None:
        most = len(range(number, most, clients))
    return replace(test, trace=part, max_concurrency=most)


def _send(url: str, key: str | None, test: LoadTest, begin: float) -> list[Timing]:
    async def work() -> list[Timing]:
        async with LoadClient(url, key) as client:
            return await send_all(client, test, begin)

    return asyncio.run(work())

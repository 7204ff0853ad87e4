"""Measurements in processes of their own, with a limit of time and of memory for each."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

Job = TypeVar("Job")
_FORK = multiprocessing.get_context("fork")  # imports are paid for once


@dataclass
class _Running(Generic[Job]):
    job: Job
    process: Any
    results: Connection
    start: float = field(default_factory=time.monotonic)


def isolated(
    measure: Callable[[Job], Any], jobs: Sequence[Job], *, workers: int, seconds: float, memory: int
) -> Iterator[tuple[Job, Any, str]]:
    """Yields (job, result, "") or (job, None, why there is none), in the order they end.

    Args:
        workers: how many run at a time.
        seconds: that a job may take.
        memory: bytes of address space that it may have.
    """
    waiting = list(reversed(jobs))
    running: list[_Running[Job]] = []
    while waiting or running:
        while waiting and len(running) < workers:
            running.append(_start(measure, waiting.pop(), memory))
        wait([r.results for r in running], timeout=1.0)
        for entry in list(running):
            ended = _ended(entry, seconds)
            if ended is not None:
                running.remove(entry)
                yield (entry.job, *ended)


def _start(measure: Callable[[Job], Any], job: Job, memory: int) -> _Running[Job]:
    results, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_work, args=(measure, job, sender, memory))
    process.start()
    sender.close()
    return _Running(job, process, results)


def _work(measure: Callable[[Job], Any], job: Job, sender: Connection, memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        sender.send((measure(job), ""))
    except Exception as error:  # a defect has a row, too
        sender.send((None, f"{type(error).__name__}: {' '.join(str(error).split())}"))


def _ended(entry: _Running[Job], seconds: float) -> tuple[Any, str] | None:
    """Returns what a job gave, or why it gave nothing; None while it runs."""
    late = time.monotonic() - entry.start > seconds
    if not late and not entry.results.poll() and entry.process.is_alive():
        return None
    try:
        answer = entry.results.recv() if entry.results.poll() else None
    except EOFError:
        answer = None
    if answer is None:
        entry.process.kill()
    entry.process.join()
    entry.results.close()
    if answer is not None:
        return answer[0], answer[1]
    return None, f"it took more than {seconds:.0f} s" if late else "the process died"

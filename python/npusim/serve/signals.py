"""Signals that end a server."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def ending(stop: Callable[[int], object]) -> Iterator[None]:
    """While the block runs, SIGTERM and SIGINT call `stop` with their number, in the main thread.

    Elsewhere than in the main thread it does nothing: the owner of the process ends it.
    """
    before = {}
    with contextlib.suppress(ValueError):
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda one, _: stop(one))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

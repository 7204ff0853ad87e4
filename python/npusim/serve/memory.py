"""Gives memory that a server has freed back to the system.

Requests come and go in all sizes, and what they leave lies between what stays: the allocator keeps
it for later, a little more with each thousand of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from npusim import _runtime

_LOOK = 1.0  # seconds between looks at the engine
_BUSY = 30.0  # seconds between two times, while there is always something to do


def returner() -> Callable[[], object] | None:
    """Returns what gives free memory back; None where the system's allocator has no such call."""
    if sys.platform != "linux":
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    return None if trim is None else lambda: trim(0)


class Watched(Protocol):
    """An engine that is looked at.

    Attributes:
        taken: how many requests there were so far.
    """

    taken: int

    @property
    def open(self) -> int:
        """How many requests have not ended."""


async def keep_small(engine: Watched) -> None:
    """Gives memory back when requests have ended and none came for a while; at times anyway."""
    give_back = returner()
    if give_back is None:
        return
    watch = _Watch(engine.taken)
    while True:
        await asyncio.sleep(_LOOK)
        if watch.is_time(engine.taken, engine.open):
            await asyncio.to_thread(give_back)
            watch.gave()


def keep_small_beside(native: _runtime.Engine) -> None:
    """As `keep_small`, in a thread of its own for as long as the process lives."""
    give_back = returner()

    def keep(give_back: Callable[[], object]) -> None:
        watch = _Watch(native.stats()["prompt_tokens"])
        while True:
            time.sleep(_LOOK)
            stats = native.stats()
            if watch.is_time(stats["prompt_tokens"], stats["running"] + stats["waiting"]):
                give_back()
                watch.gave()

    if give_back is not None:
        threading.Thread(target=keep, args=(give_back,), daemon=True).start()


class _Watch:
    """Whether it is time to give memory back."""

    def __init__(self, taken: float) -> None:
        self._taken, self._is_due, self._is_idle = taken, False, True
        self._latest = time.monotonic()

    def is_time(self, taken: float, open_now: float) -> bool:
        """Looks at a count that grows while there is work, and at how many requests are open."""
        self._is_idle = taken == self._taken and open_now == 0
        self._taken, self._is_due = taken, self._is_due or not self._is_idle
        is_long = time.monotonic() - self._latest >= _BUSY
        return self._is_due and (self._is_idle or is_long)

    def gave(self) -> None:
        """It was given back."""
        self._is_due, self._latest = not self._is_idle, time.monotonic()

"""Gives memory that a server has freed back to the system.

Requests come and go in all sizes, and what they leave lies between what stays: the allocator keeps
it for later, a little more with each thousand of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time
from collections.abc import Callable

from npusim.serve.engine import Engine

_LOOK = 1.0  # seconds between looks at the engine
_BUSY = 30.0  # seconds between two times, while there is always something to do


def returner() -> Callable[[], object] | None:
    """Returns what gives free memory back; None where the system's allocator has no such call."""
    if sys.platform != "linux":
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    return None if trim is None else lambda: trim(0)


async def keep_small(engine: Engine) -> None:
    """Gives memory back when requests have ended and none came for a while; at times anyway."""
    give_back = returner()
    if give_back is None:
        return
    seen, is_due, latest = engine.taken, False, time.monotonic()
    while True:
        await asyncio.sleep(_LOOK)
        is_idle = engine.taken == seen and engine.open == 0
        seen, is_due = engine.taken, is_due or not is_idle
        if is_due and (is_idle or time.monotonic() - latest >= _BUSY):
            await asyncio.to_thread(give_back)
            is_due, latest = not is_idle, time.monotonic()

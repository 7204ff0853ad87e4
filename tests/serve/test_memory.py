"""When a server gives memory back to the system."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve")

from npusim.serve import memory


async def _given(engine: Any, changes: list[tuple[int, int]]) -> list[int]:
    """Returns how often memory was given back by the time of each change of taken and open."""
    times = 0

    def give_back() -> None:
        nonlocal times
        times += 1

    counts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "returner", lambda: give_back)
        patch.setattr(memory, "_LOOK", 0.01)
        task = asyncio.create_task(memory.keep_small(engine))
        for engine.taken, engine.open in changes:
            await asyncio.sleep(0.2)
            counts.append(times)
        task.cancel()
    return counts


def test_memory_is_given_back_once_when_all_requests_have_ended() -> None:
    engine = SimpleNamespace(taken=3, open=0)
    changes = [(3, 0), (4, 1), (5, 1), (5, 0), (5, 0), (6, 0), (6, 0)]
    assert asyncio.run(_given(engine, changes)) == [0, 0, 0, 1, 1, 2, 2]


def test_a_server_that_never_rests_gives_memory_back_at_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_BUSY", 0.05)
    engine = SimpleNamespace(taken=3, open=9)
    first, second, last = asyncio.run(_given(engine, [(4, 9), (4, 9), (4, 0)]))
    assert 1 <= first < second  # by a clock that others may hold up
    assert last == second + 1


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's call")
def test_the_allocator_of_this_system_can_be_asked() -> None:
    give_back = memory.returner()
    assert give_back is None or give_back() in (0, 1)

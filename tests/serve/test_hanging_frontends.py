"""Front ends that hang without ending: stopped, or with an event loop that does not turn."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from npusim.serve import frontend
from npusim.serve.channel import BEAT
from npusim.serve.engine import Engine
from npusim.serve.frontend import FrontEnd, Served
from npusim.serve.frontends import FrontEnds
from npusim.serve.process import take_port, url_of

from .test_frontends import rest_of
from .test_http import raw_request

SILENT = 4.0  # seconds after which a front end hangs
LIMIT = 60  # seconds that anything may take, on a machine that others use


def until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.fixture
def fronts(folder: Path) -> Iterator[FrontEnds]:
    """Two front ends of an engine in this process, which serve."""
    listening = take_port("127.0.0.1", 0)
    served = Served("model", silent_seconds=SILENT)

    def load() -> Engine:
        return Engine(folder / "paged.npubin", folder / "spoken", threads=1)

    made = FrontEnds(served, 2, load, listening, 1)
    serving = threading.Thread(target=made.run)
    serving.start()
    until(lambda: all(front.is_ready for front in made._living), "they answer")
    yield made
    made._news.put(lambda: made._stop(signal.SIGTERM))
    serving.join(LIMIT)
    assert not serving.is_alive() and made._failure is None


def asked(fronts: FrontEnds, **body: Any) -> socket.socket:
    """Returns a connection that asks."""
    parts = urllib.parse.urlsplit(url_of(fronts._listening))
    client = socket.create_connection((parts.hostname, parts.port), timeout=LIMIT)
    client.sendall(raw_request({"prompt": "0", "max_tokens": 3, **body}))
    return client


def whole(client: socket.socket) -> bytes:
    """Returns an answer that ends with its counts."""
    received = b""
    while b"usage" not in received:
        received += (part := client.recv(1 << 16))
        assert part, received
    return received


def test_one_that_is_stopped_is_ended_with_its_requests_and_replaced(fronts: FrontEnds) -> None:
    pytest.importorskip("llguidance")
    assert fronts._engine is not None and fronts._engine.native is not None
    native = fronts._engine.native
    (hanging, _) = sorted(fronts._living, key=lambda front: front.reader)
    # Each token waits until the front end has said what may come next.
    form = {"structured_outputs": {"regex": "[0-9]{380}"}}
    opened = [asked(fronts, **form, max_tokens=380, n=4, stream=True) for _ in range(2)]
    assert all(b" 200 " in client.recv(100) for client in opened)
    os.kill(hanging.process.pid, signal.SIGSTOP)
    until(lambda: hanging.is_slow, "it is known to be silent")
    late = [asked(fronts) for _ in range(4)]  # none of them has to wait for it
    assert all(b'"123"' in whole(client) for client in late)
    assert hanging in fronts._living and native.stats()["running"] > 0
    ended = [rest_of(client) for client in opened]
    assert sum(b"[DONE]" in text for text in ended) == 1, "the other one's client has all"
    until(lambda: hanging not in fronts._living, "it is ended")
    assert hanging.process.returncode == -signal.SIGKILL
    until(lambda: len([f for f in fronts._living if f.is_ready]) == 2, "another has its place")
    until(lambda: native.stats()["running"] + native.stats()["waiting"] == 0, "requests ended")
    assert native.stats()["free_pages"] == native.stats()["pages"]
    for client in (*opened, *late):
        client.close()
    with asked(fronts) as client:
        assert b'"123"' in whole(client)


class Silent:
    """A channel over which nothing comes."""

    def recv(self, _: int) -> bytes:
        raise BlockingIOError


class Process:
    pid = 0
    is_killed = False

    def kill(self) -> None:
        self.is_killed = True


def silent(was_heard: bool) -> tuple[Any, Process]:
    front: Any = object.__new__(FrontEnd)
    front._channel, front.process = Silent(), Process()
    front._missed, front._was_heard, front._silent_seconds = 0, was_heard, 3 * BEAT
    return front, front.process


@pytest.mark.parametrize("was_heard", [True, False])
def test_one_that_begins_has_more_time(was_heard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "_STARTS", 7 * BEAT)
    front, process = silent(was_heard)
    assert front._news() == b"" and process.is_killed
    assert front._missed == (3 if was_heard else 7)


def test_waits_count_and_not_the_time_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may have been stopped together with its front ends."""
    front, process = silent(was_heard=True)
    news = itertools.chain([BlockingIOError(), BlockingIOError()], [b"x"])

    def recv(_: int) -> bytes:
        told = next(news)
        if isinstance(told, Exception):
            raise told
        return told

    front._channel.recv = recv
    assert front._news() == b"x" and not process.is_killed and not front.is_slow

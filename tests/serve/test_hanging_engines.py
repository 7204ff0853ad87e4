"""Engines that hang: their process is stopped, or a step of theirs does not end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from npusim.errors import Error
from npusim.serve.channel import Kind, message
from npusim.serve.engine import Engine
from npusim.serve.frontend_process import Link

from . import test_http as http
from .conftest import Running
from .test_frontends import ToldLink, rest_of

SILENT = 4.0  # seconds after which a process hangs; less would end those that only wait
LIMIT = 60  # seconds that anything may take
_COMMAND = f"""
import functools, sys
from npusim.serve import frontend
frontend.Served = functools.partial(frontend.Served, silent_seconds={SILENT})
from npusim.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def server(folder: Path) -> Iterator[Running]:
    """A server of two front ends that lose patience soon."""
    weights = ("--weights", folder / "spoken", "--name", "model", "--threads", 1)
    made = folder / "paged.npubin"
    server = Running(made, *weights, "--frontends", 2, command=("-c", _COMMAND))
    server.wait_for("ready")
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.kill()


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="a process cannot be stopped")
def test_a_stopped_engine_leaves_nobody_waiting(server: Running) -> None:
    body = {"prompt": "0", "max_tokens": 380, "n": 100, "stream": True}
    with http.connect(server) as opened, http.connect(server) as whole:
        opened.sendall(http.raw_request(body))
        whole.sendall(http.raw_request({**body, "stream": False}))
        assert b" 200 " in opened.recv(100)
        os.kill(server.process.pid, signal.SIGSTOP)
        received = rest_of(opened)
        assert b"does not answer" in received and b"[DONE]" not in received
        assert b" 503 " in whole.recv(4096), "no answer has begun"
    for _ in range(2):
        server.wait_for("the engine hangs")
    for path, given in (("/health", None), ("/metrics", None), ("/v1/completions", body)):
        status, _, told = http.ask(server, path, given)  # over connections that nobody handed
        assert status == 503 and "does not answer" in told["error"]["message"]
    os.kill(server.process.pid, signal.SIGCONT)
    for _ in range(2):  # front ends
        server.wait_for("the engine answers again")
    http.wait_until_idle(server)
    assert http.numbers(server, "npusim:kv_cache_usage_perc") == 0, "nobody's requests have ended"
    told = http.ask(server, "/v1/completions", {"prompt": "0", "max_tokens": 3})[2]
    assert told["choices"][0]["text"] == "123"
    assert server.stop() == 0


def test_waits_count_where_an_answer_is_due() -> None:
    link: Link = ToldLink()
    link._silent_seconds = 3.0
    link.wait(5.0)
    assert not link.is_silent, "nothing was asked"
    for _ in range(2):
        link.tell_connections(0, 0)
    link.wait(2.0)
    link.data_received(message(Kind.ALIVE))
    link.wait(2.0)
    assert not link.is_silent
    link.wait(1.0)
    assert link.is_silent
    link.data_received(message(Kind.ALIVE))
    assert not link.is_silent
    link.wait(9.0)
    assert not link.is_silent, "all is answered"


def test_an_engine_that_does_not_close_ends_with_its_process() -> None:
    code = """
import time, types
from npusim.serve import process
process.AFTER_DRAIN = 0.1
process.close_in_time(types.SimpleNamespace(close=lambda: time.sleep(600)))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=LIMIT, check=False).returncode == 2


def test_how_long_a_step_may_take(folder: Path) -> None:
    given = folder / "paged.npubin", folder / "spoken"
    with pytest.raises(Error, match="step_timeout"):
        Engine(*given, step_timeout=-1.0)
    with pytest.raises(Error, match="step_timeout"):
        Engine(*given, step_timeout=float("nan"))


_LEFT = """
import asyncio, sys
from npusim.serve import Engine, Sampling
async def ask():
    engine = Engine(sys.argv[1], sys.argv[2], threads=1)
    stream = engine.submit([1, 2, 3], Sampling(max_tokens=300, ignore_eos=True))
    await stream.__anext__()
    return engine
left = asyncio.run(ask())
"""


def test_a_process_ends_that_left_its_engine_open(folder: Path) -> None:
    """Its exit code says nothing of a thread that was in native code."""
    given = (str(folder / "paged.npubin"), str(folder / "random"))
    ended = subprocess.run(
        [sys.executable, "-c", _LEFT, *given], capture_output=True, timeout=LIMIT, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, b"")

"""The tiny model, and servers of it as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import model

for _name in ("starlette", "uvicorn", "prometheus_client", "openai", "torch", "transformers"):
    pytest.importorskip(_name, reason="needs the extras serve and llm, and openai's client")


class Running:
    """A server as a process.

    Args:
        arguments: of the verb.
        command: of Python, which runs it.

    Attributes:
        url: where it is.
        log: what it said on stderr, a dict a line.
    """

    def __init__(self, *arguments: object, command: tuple[str, ...] = ("-m", "npusim.cli")) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command, "serve", *map(str, arguments), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.log: list[dict[str, Any]] = []
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.url = self.wait_for("listening")["url"]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with contextlib.suppress(ValueError):
                self._lines.put(json.loads(line))

    def wait_for(self, event: str, seconds: float = 60) -> dict[str, Any]:
        """Returns the first line of that event that nobody waited for yet."""
        until = time.monotonic() + seconds
        while True:
            line = self._lines.get(timeout=max(0.01, until - time.monotonic()))
            self.log.append(line)
            if line["event"] == event:
                return line

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Asks it to end; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)

    def kill(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.wait()


Start = Callable[..., Running]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    from npusim.frontends.step_method import StepSizes

    made = tmp_path_factory.mktemp("served")
    sizes = StepSizes(page_tokens=model.PAGE, max_step_tokens=64, max_requests=16, pages=96)
    model.make(made, paged=sizes)
    return made


@pytest.fixture(scope="session")
def start(folder: Path) -> Iterator[Start]:
    """Starts servers; all are ended at the end."""
    servers: list[Running] = []

    def begin(
        weights: str = "spoken", *options: object, program: str = "model", ready: bool = True
    ) -> Running:
        made = folder / f"{program}.npubin"
        server = Running(made, "--weights", folder / weights, "--threads", 1, *options)
        servers.append(server)
        if ready:
            server.wait_for("ready")
        return server

    yield begin
    for server in servers:
        server.kill()


@pytest.fixture(scope="session")
def spoken(start: Start) -> Running:
    """A server whose answers are known."""
    return start("spoken")


@pytest.fixture(scope="session")
def random(start: Start) -> Running:
    """A server that says any bytes."""
    return start("random")

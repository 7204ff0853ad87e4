"""A server as a process: the port, loading beside it, signals, the log, the end.

The port is taken first, so that a second server on it is refused at once, and answers "loading"
until the model is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from npusim.errors import Error, first_line
from npusim.serve.app import Server
from npusim.serve.connection import Connection
from npusim.serve.embedding_engine import EmbeddingEngine
from npusim.serve.embeddings import Embedder
from npusim.serve.engine import Engine
from npusim.serve.generation import Generator
from npusim.serve.memory import keep_small
from npusim.serve.signals import ending

_log = logging.getLogger("npusim.serve")
_BACKLOG = 2048
SWITCH = 0.0005  # seconds that an engine's thread may keep the event loop from the GIL
AFTER_DRAIN = 10  # seconds for answers that ended to reach their clients


def take_port(host: str, port: int) -> socket.socket:
    """Returns a socket that listens already.

    Args:
        port: 0 takes any that is free.

    Raises:
        Error: another process has it, or there is no such host.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        taken = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise Error(f"The address {host}:{port} cannot be used: {first_line(error)}.") from error
    try:
        if sys.platform != "win32":  # a port may be taken again while old connections fade
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen(_BACKLOG)
    except OSError as error:
        taken.close()
        raise Error(
            f"Port {port} of {host} cannot be taken: {first_line(error)}.",
            hint="Another server may have it; give another --port.",
        ) from error
    return taken


def url_of(listening: socket.socket) -> str:
    """Returns where a socket listens, as clients call it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(
    server: Server,
    load: Callable[[], Engine | EmbeddingEngine],
    listening: socket.socket,
    drain_seconds: float,
) -> None:
    """Serves until SIGTERM or SIGINT; then no request is taken, and those that run may end.

    Args:
        server: what answers.
        load: makes the engine, in another thread.
        listening: where requests come from.
        drain_seconds: how long requests may take to end; then they are told that they failed.

    Raises:
        Error: the model cannot be loaded.
    """
    config = configuration(server, drain_seconds)
    sys.setswitchinterval(SWITCH)
    asyncio.run(_Process(config, server, load, drain_seconds).run_on(listening))
    if server.failure is not None:
        raise server.failure


def configuration(server: Server, drain_seconds: float | None) -> uvicorn.Config:
    """Returns how uvicorn serves us.

    Args:
        server: what answers.
        drain_seconds: how long requests may take to end; None: somebody else sees to that.
    """
    grace = None if drain_seconds is None else int(drain_seconds) + AFTER_DRAIN
    return uvicorn.Config(
        server.app,
        http=Connection,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=grace,
    )


class _Process(uvicorn.Server):
    """uvicorn's server, with an end of our own."""

    def __init__(
        self,
        config: uvicorn.Config,
        server: Server,
        load: Callable[[], Engine | EmbeddingEngine],
        drain_seconds: float,
    ) -> None:
        super().__init__(config)
        self._server, self._load, self._drain_seconds = server, load, drain_seconds
        self._engine: Engine | EmbeddingEngine | None = None
        self._ends: asyncio.Task[None] | None = None
        self._keeps_small: asyncio.Task[None] | None = None

    async def run_on(self, listening: socket.socket) -> None:
        """Loads and serves, until it is told to end."""
        _log.info("listening", extra={"facts": {"url": url_of(listening)}})
        loading = asyncio.create_task(self._bring_up())
        try:
            await self.serve(sockets=[listening])
            if self._ends is not None:
                await self._ends
            if not loading.done() and self._server.served is None:
                _log.info("stopping", extra={"facts": {"while": "loading"}})
            await loading
        finally:
            if self._keeps_small is not None:
                self._keeps_small.cancel()
            if self._server.served is not None:
                self._server.served.close()
            if self._engine is not None:
                await asyncio.to_thread(close_in_time, self._engine)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """While it serves, SIGTERM and SIGINT end it in order; a second one does at once."""
        loop = asyncio.get_running_loop()
        with ending(lambda number: loop.call_soon_threadsafe(self._stop, number)):
            yield

    def _stop(self, number: int) -> None:
        if self._ends is not None:
            self.force_exit = True
            return
        _log.info("stopping", extra={"facts": {"signal": signal.Signals(number).name}})
        self._ends = asyncio.ensure_future(self._drain())
        self.should_exit = True

    async def _drain(self) -> None:
        if self._engine is None:
            return
        whole = await self._engine.drain(self._drain_seconds)
        _log.info("drained", extra={"facts": {"whole": whole}})

    async def _bring_up(self) -> None:
        began = time.monotonic()
        try:
            engine = self._engine = await asyncio.to_thread(self._load)
            if isinstance(engine, Engine):
                self._server.generator = Generator(engine, self._server.name)
            else:
                self._server.embedder = Embedder(engine, self._server.name)
        except Error as error:
            self._server.failure = error
        except Exception as error:
            self._server.failure = Error(f"Loading failed: {first_line(error)}.")
        if self._server.failure is not None:
            self.should_exit = True
            return
        self._keeps_small = asyncio.create_task(keep_small(engine))
        log_ready(engine, self._server.name, began)


def close_in_time(engine: Engine | EmbeddingEngine) -> None:
    """Closes an engine; ends the process where a step does not, when all have been told of it."""
    closing = threading.Thread(target=engine.close, daemon=True)
    closing.start()
    closing.join(AFTER_DRAIN)
    if closing.is_alive():
        _log.error("the engine hangs", extra={"facts": {"while": "ending"}})
        os._exit(2)  # without waiting for its thread, as an exit does


def log_ready(engine: Engine | EmbeddingEngine, name: str, began: float) -> None:
    """Says that requests are answered, and since when it was loaded, of `time.monotonic`."""
    facts = {
        "seconds": round(time.monotonic() - began, 3),
        "model": name,
        "max_context": engine.max_context,
        "max_batch": engine.max_batch,
    }
    _log.info("ready", extra={"facts": facts})


class JsonLines(logging.Formatter):
    """Writes a record of the log as one JSON object in a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns time, level, event and whatever facts the record has."""
        told: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told)


@contextlib.contextmanager
def logged_as_json() -> Iterator[None]:
    """While the block runs, what servers log goes to stderr, a JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    loggers = [logging.getLogger(name) for name in ("npusim.serve", "uvicorn.error")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger, level in zip(loggers, (logging.INFO, logging.ERROR), strict=True):
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate

"""A server of several processes: this one has the engine, the others, front ends, its clients.

This process takes connections and hands each to the front end that has the fewest; takes requests
from these, in tokens; and tells each, in one message a step, what its requests gained. It counts
for all. What a request costs here does not depend on how many tokens its answer has.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from npusim import _runtime
from npusim.errors import Error, first_line
from npusim.serve.app import Server
from npusim.serve.channel import Kind, json_message, message
from npusim.serve.embedding_engine import EmbeddingEngine
from npusim.serve.engine import Engine
from npusim.serve.frontend import FrontEnd, Served
from npusim.serve.memory import keep_small_beside
from npusim.serve.metrics import Metrics, Outcome
from npusim.serve.process import (
    AFTER_DRAIN,
    SWITCH,
    close_in_time,
    log_ready,
    run,
    url_of,
)
from npusim.serve.signals import ending

_log = logging.getLogger("npusim.serve")

_POLL = 0.2  # seconds that a thread waits for news, or for a connection, before it looks around
_MOST_DEATHS, _DEATHS_WITHIN = 3, 60.0  # of front ends, in seconds, before the server gives up
_SHUTS_DOWN = "The engine takes no more requests: it is shutting down."
_LEFT = "The server shuts down."


def serve_with(
    count: int,
    served: Served,
    load: Callable[[], Engine],
    listening: socket.socket,
    drain_seconds: float,
) -> dict[int, int]:
    """Serves until SIGTERM or SIGINT; returns how many requests had each status.

    Args:
        count: of front ends; 1: this process serves its clients itself.
        served: the model and who may ask it.
        load: makes the engine, in another thread.
        listening: where connections come from.
        drain_seconds: how long requests may take to end; then they are told that they failed.

    Raises:
        Error: the model cannot be loaded, or front ends cannot be had.
    """
    counts: dict[int, int] = {}
    if count > 1:
        if not hasattr(socket, "send_fds"):
            raise Error("Front ends need a system whose processes can hand over connections.")
        fronts = FrontEnds(served, count, load, listening, drain_seconds)
        engine, counts = fronts.run(), fronts.counts
        if engine is None:
            return counts
        _log.info("no front ends", extra={"facts": {"why": "sessions serve one after the other"}})
        load = partial(_given, engine)
    for status, number in serve_here(served, load, listening, drain_seconds).items():
        counts[status] = counts.get(status, 0) + number
    return counts


def serve_here(
    served: Served,
    load: Callable[[], Engine | EmbeddingEngine],
    listening: socket.socket,
    drain_seconds: float,
) -> dict[int, int]:
    """As `serve_with`, in this process alone, which may serve an encoder, too."""
    server = Server(served.name, api_keys=served.keys, limits=served.limits)
    run(server, load, listening, drain_seconds)
    return server.counts


def _given(engine: Engine) -> Engine:
    return engine


class FrontEnds:
    """Serves until SIGTERM or SIGINT, as `process.run` does, with front ends.

    Args:
        served: what they are told.
        count: how many.
        load: makes the engine, in another thread.
        listening: where connections come from; closed at the end.
        drain_seconds: how long requests may take to end.

    Attributes:
        counts: requests by status.
    """

    def __init__(
        self,
        served: Served,
        count: int,
        load: Callable[[], Engine],
        listening: socket.socket,
        drain_seconds: float,
    ) -> None:
        self._served, self._load, self._listening = served, load, listening
        self._drain_seconds = drain_seconds
        self._readers = itertools.count(1)
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._metrics = Metrics(self._stats, served.name)
        self._counting = threading.Lock()
        self.counts: dict[int, int] = {}
        self._engine: Engine | None = None
        self._failure: Error | None = None
        self._is_loading, self._was_ready = True, False
        self._is_ending, self._keeps_port = False, False
        self._deaths: list[float] = []
        self._began = time.monotonic()
        self._living: set[FrontEnd] = set()
        try:
            for _ in range(count):
                self._living.add(self._start())
        except Error:
            self._kill()
            raise

    def run(self) -> Engine | None:
        """Serves; returns an engine that no other process can ask, and that still waits to serve.

        Raises:
            Error: the model cannot be loaded, or front ends end again and again.
        """
        sys.setswitchinterval(SWITCH)
        fronts = sorted(front.process.pid for front in self._living)
        facts = {"url": url_of(self._listening), "frontends": fronts}
        _log.info("listening", extra={"facts": facts})
        threading.Thread(target=self._bring_up, daemon=True).start()
        accepting = threading.Thread(target=self._accept, daemon=True)
        accepting.start()
        with ending(lambda number: self._news.put(lambda: self._stop(number))):
            while self._living or self._is_loading:
                with contextlib.suppress(queue.Empty):  # signals are heard in between
                    self._news.get(timeout=_POLL)()
        self._is_ending = True
        accepting.join()
        engine = self._engine
        if self._keeps_port:
            return engine
        self._listening.close()
        if engine is not None:
            close_in_time(engine)
        if self._failure is not None:
            raise self._failure
        return None

    # ---- in the thread that runs
    def _stop(self, number: int) -> None:
        if self._is_ending:
            self._keeps_port = False  # what was to serve alone does not begin
            self._kill()
            return
        _log.info("stopping", extra={"facts": {"signal": signal.Signals(number).name}})
        self._end()
        if self._engine is None or self._engine.native is None:
            self._kill_later()
            return
        threading.Thread(target=self._drain, args=(self._engine.native,), daemon=True).start()

    def _end(self) -> None:
        """Takes no more connections and requests."""
        self._is_ending = True
        self._tell_all(json_message(Kind.DRAIN, _SHUTS_DOWN))

    def _tell_all(self, content: bytes) -> None:
        for front in self._living:
            front.send(content)

    def _kill(self) -> None:
        for front in self._living:
            front.kill()

    def _loaded(self, engine: Engine) -> None:
        self._is_loading, self._engine = False, engine
        if self._is_ending:
            return
        if engine.native is None:  # sessions are served where they are
            self._keeps_port = True
            self._end()
            self._kill_later()
            return
        for front in self._living:
            front.begin(engine, engine.native)
        keep_small_beside(engine.native)

    def _became_ready(self, front: FrontEnd) -> None:
        """Says so when all are, once: one that takes the place of another is no news."""
        front.is_ready = True
        if self._was_ready or self._is_ending or self._engine is None:
            return
        if all(each.is_ready for each in self._living):
            self._was_ready = True
            log_ready(self._engine, self._served.name, self._began)

    def _not_loaded(self, error: Error) -> None:
        self._is_loading, self._failure = False, error
        self._tell_all(json_message(Kind.NOT_LOADED, str(error)))
        self._end()
        self._kill_later()

    def _drained(self, whole: bool) -> None:
        _log.info("drained", extra={"facts": {"whole": whole}})
        for front in self._living:
            front.end(json_message(Kind.END, _LEFT))
        self._kill_later()

    def _kill_later(self) -> None:
        """Ends whoever has not ended when answers had their time to reach clients."""
        timer = threading.Timer(AFTER_DRAIN, lambda: self._news.put(self._kill))
        timer.daemon = True
        timer.start()

    def _died(self, front: FrontEnd) -> None:
        self._living.discard(front)
        if self._is_ending:
            return
        code, now = front.process.returncode, time.monotonic()
        _log.error("a front end ended", extra={"facts": {"code": code}})
        self._deaths = [then for then in self._deaths if now - then < _DEATHS_WITHIN] + [now]
        try:
            if len(self._deaths) > _MOST_DEATHS:
                raise Error(
                    f"{len(self._deaths)} front ends ended within {_DEATHS_WITHIN:g} s, the last "
                    f"one with code {code}; the server gives up."
                )
            again = self._start()
        except Error as error:
            self._failure = error
            self._end()
            self._kill()
            return
        self._living.add(again)
        if self._engine is not None and self._engine.native is not None:
            again.begin(self._engine, self._engine.native)

    def _start(self) -> FrontEnd:
        return FrontEnd(
            next(self._readers),
            self._served,
            self._listening,
            self._hear,
            lambda front: self._news.put(lambda: self._died(front)),
        )

    # ---- in threads of their own
    def _bring_up(self) -> None:
        try:
            engine = self._load()
        except Exception as error:  # whatever it is, it ends the server
            why = error if isinstance(error, Error) else _loading_failed(error)
            self._news.put(lambda: self._not_loaded(why))
        else:
            self._news.put(lambda: self._loaded(engine))

    def _drain(self, native: _runtime.Engine) -> None:
        whole = native.drain(self._drain_seconds)
        self._news.put(lambda: self._drained(whole))

    def _accept(self) -> None:
        """Hands connections to front ends, until the server ends."""
        self._listening.settimeout(_POLL)
        while not self._is_ending:
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError as error:  # no descriptors left, most likely
                _log.error("no connection", extra={"facts": {"why": first_line(error)}})
                time.sleep(_POLL)
                continue
            with connection:
                self._hand(connection)
        if not self._keeps_port:
            self._listening.close()

    def _hand(self, connection: socket.socket) -> None:
        while not self._is_ending:
            fronts = sorted(self._living, key=lambda front: (front.is_slow, front.connections))
            if any(front.hand(connection) for front in fronts):
                return
            time.sleep(0.01)

    def _hear(self, front: FrontEnd, kind: Kind, content: bytes) -> None:
        """Counts, and tells what was counted."""
        if kind is Kind.ASK_METRICS:
            with self._counting:
                text = self._metrics.text()
            front.send(message(Kind.METRICS, content + text))
        elif kind is Kind.NOTES:
            self._note(json.loads(content))
        elif kind is Kind.READY:
            self._news.put(lambda: self._became_ready(front))

    def _note(self, told: dict[str, Any]) -> None:
        with self._counting:
            if "outcome" in told:
                self._metrics.note(Outcome(**told["outcome"]))
                return
            status: int = told["status"]
            self._metrics.note_http(told["path"], status)
            self.counts[status] = self.counts.get(status, 0) + 1

    def _stats(self) -> Mapping[str, float]:
        return {} if self._engine is None else self._engine.stats()


def _loading_failed(error: Exception) -> Error:
    return Error(f"Loading failed: {first_line(error)}.")

"""A front end as a process: answers connections that the engine's process hands over.

    python -m npusim.serve.frontend_process CHANNEL CONNECTIONS LISTENING    descriptors of sockets

It ends when the engine's process says so, or is gone. While that one is there and silent, it
refuses what is asked, and takes new connections itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import uvicorn

from npusim.errors import DeviceError, Error
from npusim.serve.app import Limits, Server
from npusim.serve.channel import (
    BEAT,
    CONNECTIONS,
    TICKET,
    Kind,
    Messages,
    json_message,
    message,
)
from npusim.serve.fields import RequestError
from npusim.serve.generation import Generator
from npusim.serve.memory import keep_small
from npusim.serve.metrics import Outcome
from npusim.serve.process import AFTER_DRAIN, configuration, logged_as_json
from npusim.serve.remote_engine import RemoteEngine

_log = logging.getLogger("npusim.serve")
_TELL = 0.1  # seconds between two looks at how many connections it has
_GONE = "The engine's process has ended."
_HANGS = "The engine's process does not answer."
_MOST_UNREAD = 1 << 20  # bytes to the engine's process that wait, before nothing is counted


class RemoteCounts:
    """What metrics count, told to the engine's process, which counts for all: `Counts`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._tickets = itertools.count(1)
        self._asked: dict[int, asyncio.Future[bytes]] = {}

    def note_http(self, path: str, status: int) -> None:
        """Counts a request of HTTP."""
        self._tell({"path": path, "status": status})

    def note(self, outcome: Outcome) -> None:
        """Takes what happened to a request that is over."""
        self._tell({"outcome": asdict(outcome)})

    async def read(self) -> bytes:
        """Returns the text that is of all front ends; RequestError 503 where nobody has it."""
        if self._link.is_lost or self._link.is_silent:
            raise self._unavailable()
        ticket = next(self._tickets)
        answer = self._asked[ticket] = asyncio.get_running_loop().create_future()
        self._link.send(message(Kind.ASK_METRICS, TICKET.pack(ticket)))
        return await answer

    def fail(self) -> None:
        """Tells all that wait that nobody answers."""
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(self._unavailable())

    def take(self, content: bytes) -> None:
        """Takes a message METRICS."""
        (ticket,) = TICKET.unpack_from(content)
        answer = self._asked.pop(ticket, None)
        if answer is not None and not answer.done():
            answer.set_result(content[TICKET.size :])

    def _tell(self, what: dict[str, Any]) -> None:
        if self._link.unread < _MOST_UNREAD:
            self._link.send(json_message(Kind.NOTES, what))

    def _unavailable(self) -> RequestError:
        why = _GONE if self._link.is_lost else _HANGS
        return RequestError(why, status=503, type="server_error", code="unavailable")


class Link(asyncio.Protocol):
    """The channel to the engine's process.

    Attributes:
        server: what answers, once HELLO has come.
        is_told: set then.
        ends: set when this process has to end.
        lost: set when the engine's process is gone.
        is_silent: whether it has not answered for long, though it is there.
    """

    def __init__(self) -> None:
        self.server: Server | None = None
        self.is_told, self.ends = asyncio.Event(), asyncio.Event()
        self.lost = asyncio.Event()
        self.engine: RemoteEngine | None = None
        self.is_silent = False
        self._silent_seconds, self._silent = math.inf, 0.0
        self._asked_for_life = 0
        self._counts = RemoteCounts(self)
        self._messages = Messages()
        self._transport: asyncio.Transport | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the engine's process is gone."""
        return self.lost.is_set()

    @property
    def unread(self) -> int:
        """How many bytes wait to be sent."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Acts on all that came: news of several steps, where this process was busy."""
        for kind, content in self._messages.push(data):
            self._act(kind, content)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells all that wait."""
        self.lost.set()
        self._counts.fail()
        if self.engine is not None:
            self.engine.refuse(DeviceError(_GONE))
            self.engine.end_all(DeviceError(_GONE))
        elif self.server is not None:
            self.server.failure = DeviceError(_GONE)
        self.is_told.set()
        self.ends.set()

    def send(self, content: bytes) -> None:
        """Sends a message, if there is anybody."""
        if self._transport is not None and not self.is_lost:
            self._transport.write(content)

    def tell_connections(self, has: int, took: int) -> None:
        """Says how many connections there are, which the engine's process answers."""
        self._asked_for_life += 1
        self.send(message(Kind.CONNECTIONS, CONNECTIONS.pack(has, took)))

    def wait(self, seconds: float) -> None:
        """Counts a wait of this process, and not a clock: it may have been stopped as well."""
        if self._asked_for_life == 0 or self.is_silent or self.is_lost:
            return
        self._silent += seconds
        if self._silent >= self._silent_seconds:
            self.is_silent = True
            _log.error("the engine hangs", extra={"facts": {"silent_seconds": self._silent}})
            self._counts.fail()
            if self.engine is not None:
                self.engine.pause(Kind.ALIVE, DeviceError(_HANGS))
                self.engine.end_all(DeviceError(_HANGS))

    def _lives(self) -> None:
        self._asked_for_life -= 1
        self._silent = 0.0
        if self.is_silent:
            self.is_silent = False
            _log.info("the engine answers again")
            if self.engine is not None:
                self.engine.pause(Kind.ALIVE, None)

    def _act(self, kind: Kind, content: bytes) -> None:
        engine = self.engine
        if kind is Kind.EVENTS and engine is not None:
            engine.events(content)
        elif kind is Kind.ACCEPTED and engine is not None:
            engine.accepted(content)
        elif kind is Kind.REFUSED and engine is not None:
            engine.refused(content)
        elif kind is Kind.METRICS:
            self._counts.take(content)
        elif kind is Kind.ALIVE:
            self._lives()
        elif kind is Kind.HELLO:
            told = json.loads(content)
            self._silent_seconds = told["silent_seconds"]
            limits = Limits(**told["limits"])
            self.server = Server(
                told["name"], api_keys=told["keys"], limits=limits, metrics=self._counts
            )
            self.is_told.set()
        else:
            self._change(kind, json.loads(content or b"null"))

    def _change(self, kind: Kind, told: Any) -> None:
        """Acts on what changes the state of the engine."""
        assert self.server is not None
        if kind is Kind.LOADED:
            self.engine = RemoteEngine(told, self.send)
            self.server.generator = Generator(self.engine, self.server.name)
            self.send(message(Kind.READY))
        elif kind is Kind.NOT_LOADED:
            self.server.failure = Error(told)
        elif kind is Kind.FAILED and self.engine is not None:
            self.engine.pause(kind, DeviceError(told) if told else None)
        elif kind is Kind.DRAIN:
            if self.engine is not None:
                self.engine.refuse(Error(told))
            self.ends.set()
        elif kind is Kind.END and self.engine is not None:
            self.engine.refuse(Error(told))
            self.engine.end_all(Error(told))


class _Process(uvicorn.Server):
    """uvicorn's server over connections that are handed to it.

    Args:
        link: to the engine's process.
        server: what answers.
        connections: over which they are handed.
        listening: where they come from, for as long as nobody hands them.
    """

    def __init__(
        self,
        link: Link,
        server: Server,
        connections: socket.socket,
        listening: socket.socket | None = None,
    ) -> None:
        super().__init__(configuration(server, None))
        self._link, self._connections, self._listening = link, connections, listening
        self._beginning: set[asyncio.Task[None]] = set()  # which a loop does not keep
        self._taken = 0

    async def run_on(self) -> None:
        """Serves until the engine's process says that it ends, or has ended."""
        loop = asyncio.get_running_loop()
        self._connections.setblocking(False)
        tasks = [asyncio.create_task(work) for work in (self._tell(), self._watch())]
        if not self.config.loaded:
            self.config.load()
        loop.add_reader(self._connections, self._take)
        try:
            await self.serve(sockets=[])
        finally:
            loop.remove_reader(self._connections)
            for task in tasks:
                task.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the engine's process' to hear."""
        yield

    def _take(self) -> None:
        """Takes a connection, if another has not."""
        try:
            news, descriptors, _, _ = socket.recv_fds(self._connections, 1, 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            news, descriptors = b"", []
        if not news:
            asyncio.get_running_loop().remove_reader(self._connections)
            return
        self._taken += 1
        if not descriptors:
            _log.error("no connection", extra={"facts": {"why": "no descriptors are left"}})
        for descriptor in descriptors:
            self._welcome(socket.socket(fileno=descriptor))

    def _take_all(self) -> None:
        """Takes connections itself, which the engine's process does not."""
        while self._listening is not None:
            try:
                self._welcome(self._listening.accept()[0])
            except OSError:  # no more of them, or no descriptor for one
                return

    def _welcome(self, taken: socket.socket) -> None:
        if self.should_exit:
            taken.close()
            return
        taken.setblocking(False)
        begins = asyncio.create_task(self._begin(taken))
        self._beginning.add(begins)
        begins.add_done_callback(self._beginning.discard)

    async def _begin(self, taken: socket.socket) -> None:
        def made() -> asyncio.Protocol:
            of: Any = self.config.http_protocol_class
            state = {"server_state": self.server_state, "app_state": self.lifespan.state}
            protocol: asyncio.Protocol = of(config=self.config, **state)
            return protocol

        try:
            await asyncio.get_running_loop().connect_accepted_socket(made, taken)
        except OSError:  # it has ended already
            taken.close()

    async def _tell(self) -> None:
        """Says how many connections there are, so also that this loop turns; gives memory back."""
        loop = asyncio.get_running_loop()
        told, then = (0, 0), 0.0
        small: asyncio.Task[None] | None = None
        try:
            while True:
                await asyncio.sleep(_TELL)
                self._link.wait(_TELL)
                if self._link.is_silent:
                    self._take_all()
                    continue
                if small is None and self._link.engine is not None:
                    small = asyncio.create_task(keep_small(self._link.engine))
                count = len(self.server_state.connections) + len(self._beginning)
                if told != (count, self._taken) or loop.time() - then > BEAT / 2:
                    told, then = (count, self._taken), loop.time()
                    self._link.tell_connections(*told)
        finally:
            if small is not None:
                small.cancel()

    async def _watch(self) -> None:
        await self._link.ends.wait()
        if self._listening is not None:
            self._listening.close()  # the port is another server's to take
            self._listening = None
        self.should_exit = True
        await self._link.lost.wait()  # then nobody else ends what does not end by itself
        await asyncio.sleep(AFTER_DRAIN)
        self.force_exit = True


async def _main(
    channel: socket.socket, connections: socket.socket, listening: socket.socket
) -> int:
    loop = asyncio.get_running_loop()
    channel.setblocking(False)
    _, link = await loop.connect_accepted_socket(Link, channel)
    await link.is_told.wait()
    if link.server is not None and not link.is_lost:
        await _Process(link, link.server, connections, listening).run_on()
        if link.server.generator is not None:
            link.server.generator.close()
    return 1 if link.is_lost else 0


def main() -> int:
    """Serves until it is told to end; returns 1 if the engine's process was gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # of a terminal or a service: the engine's
        signal.signal(number, signal.SIG_IGN)
    channel, connections, listening = (socket.socket(fileno=int(given)) for given in sys.argv[1:4])
    listening.setblocking(False)
    with logged_as_json():
        return asyncio.run(_main(channel, connections, listening))


if __name__ == "__main__":
    sys.exit(main())

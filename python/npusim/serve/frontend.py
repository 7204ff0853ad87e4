"""One front end as the engine's process knows it: the process, and what it asks.

A front end says that it lives once a second at least, and hears that this process does. One that is
silent for long, though its process is there, is ended like one that is gone: its requests, too, and
its clients' connections.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from npusim import _runtime
from npusim.errors import DeviceError, Error, first_line
from npusim.serve.app import Limits
from npusim.serve.channel import (
    ACCEPTED,
    BEAT,
    CONNECTIONS,
    NUMBER,
    Kind,
    Messages,
    json_message,
    message,
    read_submission,
)
from npusim.serve.engine import Engine
from npusim.serve.own_processes import command_of, environment
from npusim.serve.remote_engine import facts_of

_log = logging.getLogger("npusim.serve")

_POLL = 0.2  # seconds that a thread waits for news before it looks around
_READ = 1 << 18  # bytes at a time
_STARTS = 120  # seconds that a front end may take to say its first word
_SLOW = 3  # signs of life that one misses before connections go to others


@dataclass(frozen=True)
class Served:
    """What all front ends of a server are told.

    Attributes:
        name: what the model is called.
        keys: those that are let in; none: everybody is.
        limits: what clients may ask.
        silent_seconds: how long a front end may say nothing, or leave what it is told unread;
            then it hangs, and is ended. As long it waits itself for the engine's process.
    """

    name: str
    keys: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    silent_seconds: float = 30


class FrontEnd:
    """One front end, as the engine's process knows it: the process, and what it asks.

    Args:
        reader: its number at the engine, never used before.
        served: what it is told.
        listening: where connections come from; it takes them itself while this process hangs.
        hear: is called by a thread of its own with each message that is about no request.
        ended: is called once, when it is gone.

    Attributes:
        is_ready: whether it answers requests.
    """

    def __init__(
        self,
        reader: int,
        served: Served,
        listening: socket.socket,
        hear: Callable[[FrontEnd, Kind, bytes], None],
        ended: Callable[[FrontEnd], None],
    ) -> None:
        self.reader, self.is_ready = reader, False
        self._handed, self._told = 0, (0, 0)  # connections; those it said it has, and took
        self._silent_seconds = served.silent_seconds
        self._missed, self._was_heard = 0, False  # signs of life; whether there was any
        self._hear, self._ended = hear, ended
        self._native: _runtime.Engine | None = None
        self._order = threading.Lock()  # nobody hears of a request before it was accepted
        try:
            self.process, self._channel, self._handing = _started(listening)
        except OSError as error:
            raise Error(f"A front end cannot be started: {first_line(error)}.") from error
        self._handing.setblocking(False)
        for option, seconds in (
            (socket.SO_SNDTIMEO, served.silent_seconds),
            (socket.SO_RCVTIMEO, BEAT),
        ):
            self._channel.setsockopt(socket.SOL_SOCKET, option, _timeval(seconds))
        hello = {
            "name": served.name,
            "keys": served.keys,
            "limits": asdict(served.limits),
            "silent_seconds": served.silent_seconds,
        }
        self.send(json_message(Kind.HELLO, hello))
        self._telling: threading.Thread | None = None
        self._last: bytes | None = None
        self._failure = ""  # as it was told
        self._is_gone = False
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def connections(self) -> int:
        """How many it has, and how many wait for it."""
        has, took = self._told
        return has + self._handed - took

    @property
    def is_slow(self) -> bool:
        """Whether it has been silent for longer than one that has nothing else to do."""
        return self._missed >= _SLOW

    def send(self, content: bytes) -> None:
        """Sends a message; one that is gone hears nothing."""
        with self._order:
            self._put(content)

    def end(self, content: bytes) -> None:
        """Sends a last message, after all news that there is now."""
        if self._telling is None:
            self.send(content)
        else:
            self._last = content

    def begin(self, engine: Engine, native: _runtime.Engine) -> None:
        """Serves its requests from now on."""
        self._native = native
        self.send(json_message(Kind.LOADED, facts_of(engine)))
        tell = partial(self._tell, native)
        self._telling = threading.Thread(target=self._or_end, args=(tell,), daemon=True)
        self._telling.start()

    def hand(self, connection: socket.socket) -> bool:
        """Gives it a connection; returns whether it can take one now."""
        if self._is_gone:  # perhaps still telling its clients so
            return False
        try:
            socket.send_fds(self._handing, [b"c"], [connection.fileno()])
        except OSError:  # gone, or busy with those that it has
            return False
        self._handed += 1
        return True

    def kill(self) -> None:
        """Ends it at once."""
        self.process.kill()

    def _put(self, content: bytes) -> None:
        try:
            self._channel.sendall(content)
        except BlockingIOError:  # part of it may have gone: nothing can follow
            self.kill()
        except OSError:
            pass

    def _tell(self, native: _runtime.Engine) -> None:
        """Sends news as it comes, all of a step in one message."""
        while not self._is_gone:
            last = self._last
            if packed := native.poll_packed(_POLL, self.reader):
                self.send(message(Kind.EVENTS, packed))
            self._tells_failure(native)
            if last is not None:
                self.send(last)
                return

    def _tells_failure(self, native: _runtime.Engine) -> bool:
        """Says that nothing is served, or is again, where that is new; returns whether so."""
        with self._order:
            why = native.failure()
            if why != self._failure:
                self._failure = why
                self._put(json_message(Kind.FAILED, why))
        return bool(why)

    def _listen(self) -> None:
        self._or_end(self._hear_all)
        self._is_gone = True
        if self._native is not None:
            self._native.leave(self.reader)
        self.process.wait()
        if self._telling is not None:
            self._telling.join()
        self._channel.close()
        self._handing.close()
        self._ended(self)

    def _or_end(self, work: Callable[[], None]) -> None:
        """Does what it waits for; it ends where that fails, as it would wait for ever."""
        try:
            work()
        except Exception:
            _log.exception("a defect of the server")
            self.kill()

    def _hear_all(self) -> None:
        messages = Messages()
        while news := self._news():
            self._missed, self._was_heard = 0, True
            for kind, content in messages.push(news):
                self._act(kind, content)

    def _news(self) -> bytes:
        """Returns what came; nothing when it is gone, or hangs and is ended."""
        while True:
            try:
                return self._channel.recv(_READ)
            except BlockingIOError:  # of waits, not of a clock: this process may have been stopped
                self._missed += 1
            except OSError:
                return b""
            silent = self._missed * BEAT
            if silent >= (self._silent_seconds if self._was_heard else _STARTS):
                facts = {"pid": self.process.pid, "silent_seconds": silent}
                _log.error("a front end hangs", extra={"facts": facts})
                self.kill()
                return b""

    def _act(self, kind: Kind, content: bytes) -> None:
        native = self._native
        if kind is Kind.SUBMIT and native is not None:
            self._submit(native, content)
        elif kind is Kind.CANCEL and native is not None:
            native.cancel(*NUMBER.unpack(content))
        elif kind is Kind.ALLOW and native is not None:
            (number,) = NUMBER.unpack_from(content)
            native.allow_packed(number, content[NUMBER.size :])
        elif kind is Kind.CONNECTIONS:
            self._told = CONNECTIONS.unpack(content)
            self.send(message(Kind.ALIVE))
        else:
            self._hear(self, kind, content)

    def _submit(self, native: _runtime.Engine, content: bytes) -> None:
        ticket, follows, tokens, options = read_submission(content)
        try:
            with self._order:
                number = native.submit(tokens, {**options, "follows": follows}, self.reader)
                self._put(message(Kind.ACCEPTED, ACCEPTED.pack(ticket, number)))
        except Exception as error:  # whatever it is, who asked must hear of it, and nobody else
            if not isinstance(error, Error):
                _log.exception("a defect of the server")
            has_failed = self._tells_failure(native)
            self.send(json_message(Kind.REFUSED, _refusal(native, ticket, error, has_failed)))


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def _started(
    listening: socket.socket,
) -> tuple[subprocess.Popen[bytes], socket.socket, socket.socket]:
    """Starts a front end; returns it, the channel to it, and what hands it connections."""
    command = command_of("npusim.serve.frontend_process")
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        passed, kept = [], []
        for _ in range(2):
            own, other = socket.socketpair()
            kept.append(ours.enter_context(own))
            passed.append(theirs.enter_context(other).fileno())
        passed.append(listening.fileno())
        process = subprocess.Popen(
            [*command, *map(str, passed)],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            env=environment(),
        )
        ours.pop_all()
    channel, handing = kept
    return process, channel, handing


def _refusal(
    native: _runtime.Engine, ticket: int, error: Exception, has_failed: bool
) -> dict[str, Any]:
    """Returns what a front end is told; one that drains has heard so before."""
    stats = native.stats()
    return {
        "ticket": ticket,
        "class": type(error).__name__,
        "message": str(error),
        "busy": isinstance(error, DeviceError) and not has_failed,
        "open": stats["running"] + stats["waiting"],
    }

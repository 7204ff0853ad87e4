"""One connection of HTTP: what a client may take before there is a request, and how it is refused.

uvicorn reads and writes; it bounds neither how long a head is (where httptools parses) nor how
long it may be in coming. Bodies are read, under limits, by `app`.
"""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING, Any

from npusim.serve.answers import to_json
from npusim.serve.fields import RequestError

_LONGEST_HEAD = 64 << 10  # bytes, besides those that came with its beginning; h11 has as many
_HEAD_SECONDS = 60.0  # in which a request has to begin, and its head to end; up to twice as long

if TYPE_CHECKING or importlib.util.find_spec("httptools") is not None:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class _Bounded(HttpToolsProtocol):
        """Refuses heads that do not end, which httptools keeps."""

        _is_head, _head = False, 0

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._is_head, self._head = True, -1  # what comes with it may be of bodies before it

        def on_headers_complete(self) -> None:
            self._is_head = False
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self._is_head or self.transport.is_closing():
                return
            self._head = 0 if self._head < 0 else self._head + len(data)
            if self._head > _LONGEST_HEAD:
                self.send_400_response(f"The head has more than {_LONGEST_HEAD} bytes.")

else:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Bounded


class Connection(_Bounded):
    """Ends a connection whose client sends no request, or a head that does not end."""

    head_seconds = _HEAD_SECONDS

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._seen: object = self  # the request that had ended at the last look
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no request, as requests are refused."""
        content = to_json(RequestError(msg).body)
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        self.transport.close()

    def _look(self) -> None:
        """Closes the connection if nothing was asked since the last look."""
        ended = self.cycle is None or self.cycle.response_complete
        if ended and self._seen is self.cycle:
            self.transport.close()
            return
        self._seen = self.cycle if ended else self
        self._timer = self.loop.call_later(self.head_seconds, self._look)

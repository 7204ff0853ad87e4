"""One streamed request over HTTP, timed as its events arrive."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httptools
import httpx

from npusim.errors import Error, first_line

_CONNECT = 60.0  # seconds
_READ = 1 << 16  # bytes at a time


@dataclass
class Timing:
    """What became of one request; times in seconds.

    Attributes:
        success: whether the answer came whole.
        error: why not.
        start: when it was sent, of `time.perf_counter`.
        ttft: until the first event with text.
        itl: between such events.
        latency: until the last of them.
        prompt_len, output_tokens: as the server counted.
    """

    success: bool = False
    error: str = ""
    start: float = 0.0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    latency: float = 0.0
    prompt_len: int = 0
    output_tokens: int = 0


class LoadClient:
    """Where requests go; any number at a time, for as long as they take.

    Args:
        url: of the server, such as `http://127.0.0.1:8000`.
        key: an API key, or None.

    Raises:
        Error: the URL is none of HTTP.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        try:
            parts = httpx.URL(url)
        except httpx.InvalidURL:
            parts = httpx.URL()
        if parts.scheme not in ("http", "https") or not parts.host:
            raise Error(f"{url!r} is no URL such as http://127.0.0.1:8000.")
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._url, self._headers = parts, headers
        self._client = httpx.AsyncClient(
            base_url=parts,
            headers=headers,
            timeout=httpx.Timeout(None, connect=_CONNECT),
            trust_env=False,  # no proxy between the two
        )

    async def __aenter__(self) -> LoadClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> dict[str, Any]:
        """Returns a JSON object; Error where there is none."""
        place = f"{self._client.base_url}{path.lstrip('/')}"
        try:
            answer = await self._client.get(path)
            value = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Error(f"{place} cannot be read: {_said(error)}.") from error
        if answer.status_code != 200 or not isinstance(value, dict):
            raise Error(f"{place} answers {answer.status_code}.")
        return value

    async def stream(self, path: str, body: Mapping[str, Any]) -> Timing:
        """Sends a request and times its answer; what goes wrong stands in the result."""
        timing = Timing(start=time.perf_counter())
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await self._connect()
            writer.write(self._request(path, body))
            await _time(reader, timing)
        except (OSError, ValueError, asyncio.TimeoutError, httptools.HttpParserError) as error:
            timing.error = _said(error)
        finally:
            if writer is not None:
                writer.close()
        timing.success = timing.success and not timing.error
        return timing

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        secure = self._url.scheme == "https"
        port = self._url.port or (443 if secure else 80)
        opening = asyncio.open_connection(self._url.host, port, ssl=secure or None)
        return await asyncio.wait_for(opening, _CONNECT)

    def _request(self, path: str, body: Mapping[str, Any]) -> bytes:
        content = json.dumps(body).encode()
        headers = {
            "host": self._url.netloc.decode("ascii"),
            "content-type": "application/json",
            "content-length": str(len(content)),
            "connection": "close",
            **self._headers,
        }
        where = self._url.raw_path.decode("ascii").rstrip("/") + path
        lines = [f"POST {where} HTTP/1.1", *(f"{name}: {of}" for name, of in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


class _Answer:
    """What the parser of an answer calls.

    Attributes:
        content: of the body, what nobody has taken yet.
        is_whole: whether that was all.
    """

    def __init__(self) -> None:
        self.content = bytearray()
        self.is_whole = False

    def on_body(self, content: bytes) -> None:
        self.content += content

    def on_message_complete(self) -> None:
        self.is_whole = True

    def take_lines(self) -> list[bytes]:
        """Takes the lines that ended."""
        lines, end, rest = self.content.rpartition(b"\n")
        if end:
            self.content = rest
        return bytes(lines).splitlines()


async def _time(reader: asyncio.StreamReader, timing: Timing) -> None:
    """Reads an answer of server-sent events."""
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    while not answer.is_whole:
        news = await reader.read(_READ)
        if not news:
            break
        parser.feed_data(news)
        if parser.get_status_code() != 200:
            continue
        for line in answer.take_lines():
            _note(line, timing)
            if timing.success or timing.error:
                return
    status = parser.get_status_code()
    if status not in (0, 200):
        timing.error = f"{status}: {answer.content.decode('utf-8', 'replace')[:300]}"
    timing.error = timing.error or "the stream ended early"


def _note(line: bytes, timing: Timing) -> None:
    """Takes a line of a stream; an event with text is what counts as news."""
    data = line.strip().removeprefix(b"data:").strip()
    if not data:
        return
    if data == b"[DONE]":
        timing.success = True
        return
    event = json.loads(data)
    if "error" in event:
        timing.error = str(event["error"].get("message", event["error"]))
        return
    latency = time.perf_counter() - timing.start
    if _says(event.get("choices") or ()):
        if timing.ttft == 0.0:
            timing.ttft = latency
        else:
            timing.itl.append(latency - timing.latency)
        timing.latency = latency
    if usage := event.get("usage"):
        timing.prompt_len = usage["prompt_tokens"]
        timing.output_tokens = usage["completion_tokens"]


def _says(choices: Sequence[Mapping[str, Any]]) -> bool:
    """Tells whether an event has text; who speaks, and why it ended, are no tokens."""
    return any(c.get("text") or (c.get("delta") or {}).get("content") for c in choices)

"""One streamed request over HTTP, timed as its events arrive."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from npusim.errors import Error, first_line


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
        self._client = httpx.AsyncClient(
            base_url=parts,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(None, connect=60.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
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
        try:
            async with self._client.stream("POST", path, json=body) as answer:
                if answer.status_code == 200:
                    await _time(answer.aiter_lines(), timing)
                else:
                    text = (await answer.aread()).decode("utf-8", "replace")
                    timing.error = f"{answer.status_code}: {text[:300]}"
        except (httpx.HTTPError, ValueError) as error:
            timing.error = _said(error)
        timing.success = timing.success and not timing.error
        return timing


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


async def _time(lines: AsyncIterator[str], timing: Timing) -> None:
    """Reads server-sent events; an event with text is what counts as news."""
    latest = timing.start
    async for line in lines:
        data = line.strip().removeprefix("data:").strip()
        if not data:
            continue
        if data == "[DONE]":
            timing.success = True
            return
        event = json.loads(data)
        if "error" in event:
            timing.error = str(event["error"].get("message", event["error"]))
            return
        now = time.perf_counter()
        if _says(event.get("choices") or ()):
            if timing.ttft == 0.0:
                timing.ttft = now - timing.start
            else:
                timing.itl.append(now - latest)
            latest = now
            timing.latency = now - timing.start
        if usage := event.get("usage"):
            timing.prompt_len = usage["prompt_tokens"]
            timing.output_tokens = usage["completion_tokens"]
    timing.error = timing.error or "the stream ended early"


def _says(choices: Sequence[Mapping[str, Any]]) -> bool:
    """Tells whether an event has text; who speaks, and why it ended, are no tokens."""
    return any(c.get("text") or (c.get("delta") or {}).get("content") for c in choices)

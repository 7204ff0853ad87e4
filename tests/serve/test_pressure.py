"""An engine over pages without enough of something: pages, room to wait, a device, a reader."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import npusim.serve.engine as engines
from npusim.errors import DeviceError, Error
from npusim.serve.app import Limits, Server
from npusim.serve.engine import Engine, Stream
from npusim.serve.generation import Generator
from npusim.serve.requests import Backend, BusyError, Event, Piece, Sampling

from . import model

Make = Callable[..., Engine]
DRAWN: dict[str, Any] = {"max_tokens": 180, "temperature": 1.0, "logprobs": 1, "ignore_eos": True}


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    """Loads engines; all are closed at the end."""
    made: list[Engine] = []

    def load(weights: str = "random", **options: Any) -> Engine:
        made.append(Engine(folder / "paged.npubin", folder / weights, threads=1, **options))
        return made[-1]

    yield load
    for engine in made:
        engine.close()


async def whole(stream: Stream) -> Piece:
    piece = Piece()
    async for news in stream:
        piece.add(news)
    return piece


def all_pages_are_free(engine: Engine) -> bool:
    stats = engine.stats()
    return stats["free_pages"] == stats["pages"]


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come about")


def test_what_gives_its_pages_away_goes_on_with_the_same_bits(make: Make) -> None:
    engine = make()
    asked = [([97 + n, *range(40 + n)], Sampling(seed=n, **DRAWN)) for n in range(12)]

    async def together() -> list[Piece]:
        return await asyncio.gather(*(whole(engine.submit(*one)) for one in asked))

    async def alone(place: int) -> Piece:
        return await whole(engine.submit(*asked[place]))

    pieces = asyncio.run(together())
    assert engine.stats()["preemptions"] > 0 and all_pages_are_free(engine)
    for place in (0, 10, 11):  # the last ones are put back first
        assert asyncio.run(alone(place)) == pieces[place]
        assert len(pieces[place].tokens) == len(pieces[place].logprobs) == 180


def test_ten_thousand_wait_and_the_next_one_hears_when_to_come_again(make: Make) -> None:
    engine = make(max_waiting=10_000)
    sampling = Sampling(max_tokens=300, ignore_eos=True)

    async def run() -> None:
        streams: list[Stream] = []
        with pytest.raises(BusyError) as refused:
            for _ in range(12_000):
                streams.append(engine.submit([1, 2, 3], sampling))
        assert len(streams) >= 10_000 and 1 <= refused.value.retry_after <= 60
        for stream in streams[3:-1]:
            stream.close()
        pieces = await asyncio.gather(*map(whole, (*streams[:3], streams[-1])))
        assert all(piece == pieces[0] and len(piece.tokens) == 300 for piece in pieces)
        await until(lambda: all_pages_are_free(engine) and engine.stats()["waiting"] == 0)

    asyncio.run(run())


class Faulty:
    """A backend whose device fails when it is told to."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self.is_gone = backend, False
        self.max_context, self.vocab_size = backend.max_context, backend.vocab_size
        self.eos_token_ids, self.max_batch = backend.eos_token_ids, backend.max_batch
        self.open: set[int] = set()
        self.fails = threading.Event()

    def submit(self, tokens: Sequence[int], sampling: Sampling, follows: int | None = None) -> int:
        number = self._backend.submit(tokens, sampling, follows)
        self.open.add(number)
        return number

    def poll(self, timeout: float) -> list[Event]:
        events = self._backend.poll(timeout)
        if self.is_gone:
            raise RuntimeError("the device is gone")
        if not self.fails.is_set():
            return events
        self.fails.clear()
        failed, self.open = self.open, set()
        for number in failed:
            self._backend.cancel(number)
        return [Event(number, Piece(), DeviceError("The device has failed.")) for number in failed]

    def cancel(self, request: int) -> None:
        self._backend.cancel(request)

    def stats(self) -> Mapping[str, float]:
        return self._backend.stats()

    def failure(self) -> str:
        return self._backend.failure()

    def close(self) -> None:
        self._backend.close()


class Client:
    """Calls an ASGI app in this process.

    Args:
        reads: whether it takes what is sent; one that does not never lets `send` return.
    """

    def __init__(self, app: Any, path: str, body: Any = None, reads: bool = True) -> None:
        self.status, self.text, self.begun = 0, "", asyncio.Event()
        self._reads, self._body = reads, None if body is None else json.dumps(body).encode()
        self._is_asked = False
        scope = {
            "type": "http", "method": "GET" if body is None else "POST", "path": path,
            "headers": [], "query_string": b"", "client": ("here", 1), "http_version": "1.1",
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._is_asked:
            await asyncio.Event().wait()
        self._is_asked = True
        return {"type": "http.request", "body": self._body or b"", "more_body": False}

    async def _send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.text += message.get("body", b"").decode()
        self.begun.set()
        if not self._reads:
            await asyncio.Event().wait()


def served(engine: Engine, limits: Limits | None = None) -> Server:
    server = Server("model", limits=limits)
    server.generator = Generator(engine, "model")
    return server


def test_a_device_that_fails_in_the_middle_ends_what_ran_and_no_more(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = engines.make_backend
    monkeypatch.setattr(engines, "make_backend", lambda *given: Faulty(plain(*given)))
    engine = make("spoken")
    faulty: Any = engine._backend
    server = served(engine)
    body = {"prompt": "0", "max_tokens": 340}
    path = "/v1/completions"

    async def run() -> None:
        stream = Client(server.app, path, {**body, "stream": True})
        answer = Client(server.app, path, body)
        await stream.begun.wait()
        faulty.fails.set()
        await asyncio.gather(stream.task, answer.task)
        assert answer.status == 500 and "has failed" in answer.text
        events = [line for line in stream.text.split("\n\n") if line]
        assert json.loads(events[-1][6:])["error"]["type"] == "server_error"
        assert stream.status == 200 and "[DONE]" not in stream.text
        again = Client(server.app, path, {**body, "max_tokens": 5})
        await again.task
        assert again.status == 200 and '"12345"' in again.text, "the next one is served"
        assert all_pages_are_free(engine)

        last = Client(server.app, path, {**body, "stream": True})
        await last.begun.wait()
        faulty.is_gone = True
        await last.task
        assert '"code": "unavailable"' in last.text or '"code":"unavailable"' in last.text
        for place, content in ((path, body), ("/health", None)):
            refused = Client(server.app, place, content)
            await refused.task
            assert refused.status == 503 and "is gone" in refused.text

    try:
        asyncio.run(run())
    finally:
        server.generator.close()  # type: ignore[union-attr]
    with pytest.raises(Error, match="is gone"):
        engine.check()


def test_a_client_that_does_not_read_holds_no_page_and_is_left(make: Make) -> None:
    engine = make("spoken")
    server = served(engine, Limits(write_seconds=0.5))
    body = {"prompt": "0", "max_tokens": 200, "n": 3, "stream": True}

    async def run() -> None:
        silent = Client(server.app, "/v1/completions", body, reads=False)
        await silent.begun.wait()
        other = Client(server.app, "/v1/completions", {"prompt": "0", "max_tokens": 3})
        await other.task
        assert other.status == 200 and '"123"' in other.text
        await until(lambda: all_pages_are_free(engine))
        await asyncio.wait_for(silent.task, 30)
        assert server.counts == {200: 1, 499: 1}
        assert len(silent.text) < 1000, "what it was sent first, and nothing after it"

    asyncio.run(run())
    server.generator.close()  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [model.CONTEXT, model.CONTEXT + 1, 100_000])
def test_prompts_too_long_are_refused_by_their_lengths(make: Make, count: int) -> None:
    engine = make()
    with pytest.raises(Error, match=rf"holds {model.CONTEXT} tokens; the prompt has {count}"):
        engine.submit([1] * count, Sampling())

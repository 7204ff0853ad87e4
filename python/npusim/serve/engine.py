"""The asyncio face of what computes: requests in, pieces of answers out.

One thread polls the backend; the event loop gets all news of a poll in one call. A reader that is
slow finds everything since its last look in one piece, so nothing piles up but the tokens.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from npusim import _runtime
from npusim.errors import DeviceError, Error, first_line
from npusim.language_model import LanguageModel
from npusim.language_model.model import check_tokens
from npusim.runtime.weights import Progress, WeightSource
from npusim.serve.paged import PagedBackend
from npusim.serve.requests import Backend, BusyError, Event, Piece, Sampling, TooLongError
from npusim.serve.sessions import SessionBackend

if TYPE_CHECKING:
    import os

    from typing_extensions import Self

    from npusim.language_model import Tokenizer
    from npusim.runtime.native import ProgramLike

_log = logging.getLogger(__name__)

_POLL = 0.1  # seconds that a poll waits for news
_LAST_POLL = 10.0  # seconds that the last one may take when the process ends
_STEP = 0.5  # seconds that prompts may make a step, about, beside those that generate
_MOST_WAIT = 60  # seconds that a full queue tells a client to stay away, at most


class Stream:
    """The answer to one request, as an asynchronous iterator of pieces.

    Leave it early by `close`, or by leaving `async with`: the request then ends.

    Args:
        ends: ends a request.

    Attributes:
        prompt: the request's tokens.
        number: the request's.
    """

    def __init__(self, ends: Callable[[int], None], number: int, prompt: Sequence[int]) -> None:
        self.prompt, self.number = prompt, number
        self._ends = ends
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._piece: Piece | None = None
        self._error: Error | None = None
        self._ended = False

    async def __anext__(self) -> Piece:
        while self._piece is None and self._error is None and not self._ended:
            self._news.clear()
            await self._news.wait()
        piece, self._piece = self._piece, None
        if piece is not None:
            return piece
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise StopAsyncIteration

    def __aiter__(self) -> Stream:
        return self

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the request, if it has not ended."""
        self._ends(self.number)
        self._ended = True
        self._news.set()

    def take(self, event: Event) -> None:
        """Keeps what came; in the loop's thread."""
        if event.error is not None:
            self._error = event.error
        elif self._piece is None:
            self._piece = event.piece
        else:
            self._piece.add(event.piece)
        self._ended = (
            self._ended or event.error is not None or event.piece.finish_reason is not None
        )
        self._news.set()


class Engine:
    """A loaded language model that serves many requests.

    Requests may come from any event loop. `start` loads without blocking one.

    Args:
        program: what `npusim.compile` made of `npusim.extract_llm`, or the path of it.
        weights: as `npusim.load_weights` takes them; most often the model's folder.
        tokenizer: a `tokenizer.json` or its folder; by default where the weights are.
        device: a device or its name.
        threads: workers of the device, when it is given by name; 0: one a physical core.
        max_batch: requests that run at a time, at most.
        max_waiting: requests that wait, at most; more are refused by `BusyError`.
        step_timeout: seconds that a step over pages may take before its engine counts as hung:
            requests fail, and more are refused until it has ended after all. 0: for ever.
        copy: as `npusim.load_weights` has it.
        progress: as `npusim.load_weights` has it.

    Attributes:
        model: the loaded LanguageModel.
        most_open: requests that run or wait, at most.
        taken: how many requests there were so far.

    Raises:
        Error: as `npusim.LanguageModel.load`.
    """

    def __init__(
        self,
        program: ProgramLike,
        weights: WeightSource | None = None,
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        device: str | _runtime.Device = "cpu",
        threads: int = 0,
        max_batch: int = 256,
        max_waiting: int = 1024,
        step_timeout: float = 600,
        copy: bool = False,
        progress: Progress | None = None,
    ) -> None:
        if max_batch < 1 or max_waiting < 0:
            raise Error(
                f"max_batch is {max_batch} and max_waiting {max_waiting}; they must be at least 1 "
                "and 0."
            )
        if not step_timeout >= 0:
            raise Error(f"step_timeout is {step_timeout}; it must be 0, for ever, or more.")
        self.model = LanguageModel.load(
            program, weights, tokenizer, device, threads, copy=copy, progress=progress
        )
        self._backend = make_backend(self.model, max_batch, max_waiting, step_timeout)
        self.most_open = self._backend.max_batch + max_waiting
        self._lock = threading.Lock()
        self._streams: dict[int, Stream] = {}
        self._failed: Error | None = None
        self._closed = self._draining = False
        self._seconds = 1.0  # how long a request took lately
        self.taken = 0
        self._started: dict[int, float] = {}
        self._thread = threading.Thread(target=self._poll, name="npusim-engine", daemon=True)
        self._thread.start()
        _open_engines.add(self)

    @classmethod
    async def start(
        cls,
        program: ProgramLike,
        weights: WeightSource | None = None,
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        device: str | _runtime.Device = "cpu",
        threads: int = 0,
        max_batch: int = 256,
        max_waiting: int = 1024,
    ) -> Self:
        """Loads an engine in another thread: as the constructor."""
        return await asyncio.to_thread(
            cls,
            program,
            weights,
            tokenizer=tokenizer,
            device=device,
            threads=threads,
            max_batch=max_batch,
            max_waiting=max_waiting,
        )

    @property
    def max_context(self) -> int:
        """How many tokens a prompt and its answer have together, at most."""
        return self._backend.max_context

    @property
    def max_batch(self) -> int:
        """How many requests run at a time, at most."""
        return self._backend.max_batch

    @property
    def native(self) -> _runtime.Engine | None:
        """The native engine, whose requests other processes may have; None where sessions serve."""
        return self._backend.native if isinstance(self._backend, PagedBackend) else None

    @property
    def open(self) -> int:
        """How many requests have not ended."""
        return len(self._streams)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; Error where there is none."""
        return self.model.tokenizer

    def submit(
        self, prompt: Sequence[int], sampling: Sampling, follows: Stream | None = None
    ) -> Stream:
        """Takes a request; returns its answer as a stream. To be called in an event loop.

        Args:
            follows: the stream of a request with the same prompt, which is then computed once.

        Raises:
            BusyError: too many requests wait.
            Error: the prompt is empty or too long, a token is outside the vocabulary, an option is
                out of range, or the engine is closed or has failed.
        """
        check_request(prompt, sampling, self.max_context, self._backend.vocab_size)
        with self._lock:
            self._check_open()
            if len(self._streams) >= self.most_open:
                raise BusyError(
                    f"{len(self._streams)} requests are being served or wait, as many as may.",
                    retry_after=self._retry_after(),
                    hint="Try again later.",
                )
            before = None if follows is None else follows.number
            number = self._backend.submit(prompt, sampling, before)
            stream = self._streams[number] = Stream(self._end, number, prompt)
            self._started[number] = time.monotonic()
            self.taken += 1
        return stream

    async def ask(
        self, prompt: Sequence[int], sampling: Sampling, follows: Stream | None = None
    ) -> Stream:
        """As `submit`, in the words of `AnyEngine`."""
        return self.submit(prompt, sampling, follows)

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> AsyncIterator[Piece]:
        """Yields the pieces of an answer; raises as `submit`, or Error where it fails later."""
        async with self.submit(prompt, sampling) as stream:
            async for piece in stream:
                yield piece

    def check(self) -> None:
        """Raises Error if the engine cannot serve: it failed, is draining or closed."""
        with self._lock:
            self._check_open()

    def stats(self) -> Mapping[str, float]:
        """Returns counts: `running`, `waiting`, and what else the backend can tell."""
        return self._backend.stats()

    async def drain(self, timeout: float) -> bool:
        """Refuses new requests, waits for the others and ends those that are left; tells whether
        none was.

        Args:
            timeout: seconds to wait.
        """
        with self._lock:
            self._draining = True
        until = time.monotonic() + timeout
        while self._streams and time.monotonic() < until:
            await asyncio.sleep(0.02)
        with self._lock:
            left = list(self._streams)
        self._tell([Event(n, Piece(), Error("The server shuts down.")) for n in left])
        for number in left:
            self._backend.cancel(number)
        return not left

    def poll_no_more(self) -> None:
        """Ends the thread that polls, and nothing else: for the end of the process."""
        self._closed = True
        if self._thread is not threading.current_thread():
            self._thread.join(_LAST_POLL)

    def close(self) -> None:
        """Ends all requests and frees the model; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            left = list(self._streams)
        self._tell([Event(n, Piece(), Error("The engine was closed.")) for n in left])
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._backend.close()

    def _check_open(self) -> None:
        if self._failed is not None:
            raise DeviceError(f"The engine has failed: {self._failed}")
        if why := self._backend.failure():
            raise DeviceError(why)
        if self._closed or self._draining:
            raise Error("The engine takes no more requests: it is shutting down.")

    def _retry_after(self) -> int:
        return retry_after(self._seconds, len(self._streams), self.max_batch)

    def _end(self, number: int) -> None:
        with self._lock:
            known = self._streams.pop(number, None)
            self._started.pop(number, None)
        if known is not None:
            self._backend.cancel(number)

    def _poll(self) -> None:
        while not self._closed:
            try:
                events = self._backend.poll(_POLL)
            except Exception as error:  # whatever it is, requests must hear of it
                _log.exception("the engine failed")
                events = self._fail(error)
            self._tell(events)
            if self._failed is not None:
                return

    def _fail(self, error: Exception) -> list[Event]:
        failed = error if isinstance(error, Error) else DeviceError(f"{first_line(error)}.")
        with self._lock:
            self._failed = failed
            return [Event(number, Piece(), failed) for number in self._streams]

    def _tell(self, events: Sequence[Event]) -> None:
        """Hands events to the loops of their streams, one call a loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Event]]] = defaultdict(list)
        now = time.monotonic()
        with self._lock:
            for event in events:
                ends = event.error is not None or event.piece.finish_reason is not None
                stream = self._streams.get(event.request)
                if stream is None:
                    continue
                by_loop[stream._loop].append((stream, event))
                if ends:
                    del self._streams[event.request]
                    took = now - self._started.pop(event.request, now)
                    self._seconds += 0.1 * (took - self._seconds)
        for loop, news in by_loop.items():
            try:
                loop.call_soon_threadsafe(_take_all, news)
            except RuntimeError:  # the loop is closed: nobody waits
                for stream, _ in news:
                    stream.close()


_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _end_polls() -> None:
    """Python ends threads that wait in native code by unwinding them, which no C++ survives."""
    for engine in list(_open_engines):
        engine.poll_no_more()


def check_request(
    prompt: Sequence[int], sampling: Sampling, max_context: int, vocab_size: int
) -> None:
    """Raises Error for a request that can never be served."""
    if not prompt:
        raise Error("The prompt has no tokens.", hint="Give at least one.")
    count, most = len(prompt), sampling.max_tokens
    if count + (1 if most is None else most) > max_context:
        asked = "" if most is None else f" and max_tokens {most}"
        raise TooLongError(
            f"The context holds {max_context} tokens; the prompt has {count}{asked}.",
            hint="Shorten the prompt, or ask for fewer tokens.",
        )
    check_tokens(prompt, vocab_size)
    sampling.check(vocab_size)


def retry_after(seconds: float, requests: int, max_batch: int) -> int:
    """Returns when to come again, in seconds.

    Args:
        seconds: that a request took lately.
        requests: that run or wait.
        max_batch: requests that run at a time.
    """
    return min(_MOST_WAIT, max(1, math.ceil(seconds * requests / max_batch / 2)))


def make_backend(
    model: LanguageModel, max_batch: int, max_waiting: int, step_timeout: float
) -> Backend:
    """Returns what serves a model best: steps over pages, or sessions that take turns."""
    if not model.native.has_step:
        return SessionBackend(model, min(max_batch, 4))
    native = _runtime.Engine.of_model(
        model.native,
        max_requests=max_batch,
        max_waiting=max_waiting,
        step_seconds=_STEP,
        most_step_seconds=step_timeout,
    )
    return PagedBackend(native, model.eos_token_ids)


def _take_all(news: Sequence[tuple[Stream, Event]]) -> None:
    for stream, event in news:
        stream.take(event)

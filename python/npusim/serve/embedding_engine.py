"""Vectors of texts: requests of tokens in, vectors out, by one session that a thread calls.

Texts of one length go into a call together, whoever asked; none is padded. So a text's vector does
not depend on what else is asked: a call's rows are those of each text alone, to the bit.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import json
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from npusim.errors import DeviceError, Error, ProgramFormatError, ShapeError, first_line
from npusim.language_model.model import check_tokens, fitting_tokenizer, tokenizer_of
from npusim.runtime import load
from npusim.runtime.native import native_program
from npusim.runtime.weights import Progress, WeightSource
from npusim.serve.engine import retry_after
from npusim.serve.requests import BusyError, TooLongError

if TYPE_CHECKING:
    import os

    from npusim import _runtime
    from npusim.language_model import Tokenizer
    from npusim.runtime.native import ProgramLike

_log = logging.getLogger(__name__)

_FACTS = "text_encoder"
_METHOD = "embed"
_FAILURES = 3  # calls that fail one after the other; then nothing is taken any more
_LAST = 10.0  # seconds that the last call may take when the process ends


@dataclass(frozen=True)
class TextEncoder:
    """What a program says of its encoder, as `npusim.extract_encoder` writes it.

    Attributes:
        max_tokens: of a text.
        max_texts: of a call.
        vocab_size: how many tokens there are.
        size: elements of a vector.
        prompt: what goes before each text.
    """

    max_tokens: int
    max_texts: int
    vocab_size: int
    size: int
    prompt: str

    @classmethod
    def of(cls, metadata: str) -> TextEncoder | None:
        """Returns that of a program's metadata; None where it has no encoder.

        Raises:
            ProgramFormatError: what it says makes no sense.
        """
        facts = json.loads(metadata).get(_FACTS)
        if facts is None:
            return None
        names = ("max_tokens", "max_texts", "vocab_size", "size")
        known: Mapping[str, Any] = facts if isinstance(facts, dict) else {}
        numbers: dict[str, Any] = {name: known.get(name) for name in names}
        if not all(type(n) is int and 0 < n < 2**31 for n in numbers.values()):
            raise ProgramFormatError(f"The program's {_FACTS} lacks one of {', '.join(names)}.")
        prompt = known.get("prompt", "")
        if not isinstance(prompt, str):
            raise ProgramFormatError(f"The program's {_FACTS} has a prompt that is no text.")
        return cls(**numbers, prompt=prompt)


@dataclass
class _Asked:
    """A request: what its texts became, and who waits."""

    vectors: NDArray[np.float32]
    left: int
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    began: float = field(default_factory=time.monotonic)
    is_over: bool = False


@dataclass(frozen=True)
class _Text:
    asked: _Asked
    place: int
    order: int
    tokens: Sequence[int]


class EmbeddingEngine:
    """A loaded text encoder that serves many requests.

    Args:
        program: what `npusim.compile` made of `npusim.extract_encoder`, or the path of it.
        weights: as `npusim.load_weights` takes them; most often the model's folder.
        tokenizer: a `tokenizer.json` or its folder; by default where the weights are.
        device: a device or its name.
        threads: workers of the device, when it is given by name; 0: one a physical core.
        max_waiting: requests that wait, at most; more are refused by `BusyError`.
        copy, progress: as `npusim.load_weights` has them.

    Attributes:
        encoder: what the program says of itself.
        taken: how many requests there were so far.

    Raises:
        ShapeError: the program is no text encoder.
        Error: as `npusim.load`.
    """

    def __init__(
        self,
        program: ProgramLike,
        weights: WeightSource | None = None,
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        device: str | _runtime.Device = "cpu",
        threads: int = 0,
        max_waiting: int = 1024,
        copy: bool = False,
        progress: Progress | None = None,
    ) -> None:
        native = native_program(program)
        encoder = TextEncoder.of(native.metadata)
        if encoder is None or _METHOD not in native.methods:
            raise ShapeError(
                "The program is no text encoder.", hint="Make one with npusim.extract_encoder."
            )
        self.encoder = encoder
        # A device that is given has its threads.
        workers = (threads or None) if isinstance(device, str) else None
        self._session = load(
            program, weights, device, workers, _METHOD, copy=copy, progress=progress
        )
        found = tokenizer_of(tokenizer, weights)
        self._tokenizer = None if found is None else fitting_tokenizer(found, encoder.vocab_size)
        self.most_open = encoder.max_texts + max_waiting
        self._changed = threading.Condition()
        self._waiting: dict[int, deque[_Text]] = {}  # by length, each in the order of coming
        self._orders = itertools.count()
        self._asked: dict[int, _Asked] = {}
        self._closed = self._draining = False
        self._failed: Error | None = None
        self._seconds = 1.0  # how long a request took lately
        self.taken = 0
        self._counts = {"steps": 0, "scheduled_tokens": 0}
        self._running = 0
        self._thread = threading.Thread(target=self._serve, name="npusim-embed", daemon=True)
        self._thread.start()
        _open_engines.add(self)

    @property
    def max_context(self) -> int:
        """How many tokens a text has, at most."""
        return self.encoder.max_tokens

    @property
    def max_batch(self) -> int:
        """How many texts a call has, at most."""
        return self.encoder.max_texts

    @property
    def open(self) -> int:
        """How many requests have not ended."""
        return len(self._asked)

    @property
    def tokenizer(self) -> Tokenizer:
        """The encoder's tokenizer; Error where there is none."""
        if self._tokenizer is None:
            raise Error(
                "This text encoder has no tokenizer.",
                hint="Give the folder of a tokenizer.json, or work with token ids.",
            )
        return self._tokenizer

    def encode(self, text: str) -> list[int]:
        """Returns a text's tokens, with what the model puts before and around it; Error where
        there is no tokenizer, or the text holds a lone surrogate."""
        return self.tokenizer.encode(self.encoder.prompt + text)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raises Error for a text that has no tokens, too many, or one that is unknown."""
        if not tokens:
            raise Error("A text has no tokens.", hint="Give at least one.")
        if len(tokens) > self.max_context:
            raise TooLongError(
                f"A text may have {self.max_context} tokens; one has {len(tokens)}.",
                hint="Shorten it, or divide it into several.",
            )
        check_tokens(tokens, self.encoder.vocab_size)

    async def embed(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Returns the vectors [texts, size] of texts, given by tokens, as `encode` makes them.

        Where the task is cancelled, what was not computed yet never is.

        Raises:
            BusyError: too many requests wait.
            TooLongError, Error: as `check_tokens`; or the engine is closed or has failed.
        """
        for text in texts:
            self.check_tokens(text)
        vectors = np.empty((len(texts), self.encoder.size), np.float32)
        if not texts:
            return vectors
        loop = asyncio.get_running_loop()
        asked = _Asked(vectors, len(texts), loop, loop.create_future())
        with self._changed:
            self._check_open()
            if len(self._asked) >= self.most_open:
                raise BusyError(
                    f"{len(self._asked)} requests are being served or wait, as many as may.",
                    retry_after=retry_after(
                        self._seconds, len(self._asked), 1
                    ),  # one call at a time
                    hint="Try again later.",
                )
            self._asked[id(asked)] = asked
            self.taken += 1
            for place, tokens in enumerate(texts):
                waits = _Text(asked, place, next(self._orders), tokens)
                self._waiting.setdefault(len(tokens), deque()).append(waits)
            self._changed.notify()
        try:
            await asked.done
        finally:
            with self._changed:
                asked.is_over = True
                self._asked.pop(id(asked), None)
        return vectors

    def check(self) -> None:
        """Raises Error if the engine cannot serve: it failed, is draining or closed."""
        with self._changed:
            self._check_open()

    def stats(self) -> Mapping[str, float]:
        """Returns counts: `running` and `waiting` requests, `steps`, `scheduled_tokens`."""
        running = min(self._running, len(self._asked))
        return {"running": running, "waiting": len(self._asked) - running, **self._counts}

    async def drain(self, timeout: float) -> bool:
        """Refuses new requests, waits for the others and ends those that are left; tells whether
        none was.

        Args:
            timeout: seconds to wait.
        """
        with self._changed:
            self._draining = True
        until = time.monotonic() + timeout
        while self._asked and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return not self._end_all(Error("The server shuts down."))

    def close(self) -> None:
        """Ends all requests and the thread; a second call does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify()
        self._end_all(Error("The engine was closed."))
        self._thread.join()

    def end_thread(self) -> None:
        """Ends the thread, and nothing else: for the end of the process."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_LAST)

    def _check_open(self) -> None:
        if self._failed is not None:
            raise DeviceError(f"The engine has failed: {self._failed}")
        if self._closed or self._draining:
            raise Error("The engine takes no more requests: it is shutting down.")

    def _serve(self) -> None:
        failures = 0
        while texts := self._next():
            self._running = len({id(text.asked) for text in texts})
            try:
                vectors = self._compute(texts)
                failures = 0
            except Exception as error:  # whatever it is, those who wait must hear of it
                _log.exception("a call of the encoder failed")
                failures += 1
                told = error if isinstance(error, Error) else DeviceError(f"{first_line(error)}.")
                self._fail(texts, told, for_good=failures >= _FAILURES)
            else:
                self._tell(texts, vectors)
            self._running = 0

    def _next(self) -> list[_Text]:
        """Returns texts of one length, that of the one which waits longest; none at the end."""
        with self._changed:
            while True:
                while not self._closed and not self._waiting:
                    self._changed.wait()
                if self._closed:
                    return []
                length = min(self._waiting, key=lambda one: self._waiting[one][0].order)
                queue = self._waiting[length]
                chosen: list[_Text] = []
                while queue and len(chosen) < self.max_batch:
                    text = queue.popleft()
                    if not text.asked.is_over:
                        chosen.append(text)
                if not queue:
                    del self._waiting[length]
                if chosen:
                    return chosen

    def _compute(self, texts: Sequence[_Text]) -> NDArray[np.float32]:
        tokens = np.array([text.tokens for text in texts], np.int64)
        (vectors,) = self._session(tokens)
        self._counts["steps"] += 1
        self._counts["scheduled_tokens"] += tokens.size
        found: NDArray[np.float32] = np.asarray(vectors)
        return found

    def _tell(self, texts: Sequence[_Text], vectors: NDArray[np.float32]) -> None:
        for text, vector in zip(texts, vectors, strict=True):
            text.asked.vectors[text.place] = vector
            text.asked.left -= 1
            if text.asked.left == 0:
                self._seconds += 0.1 * (time.monotonic() - text.asked.began - self._seconds)
                _end(text.asked, None)

    def _fail(self, texts: Sequence[_Text], error: Error, *, for_good: bool) -> None:
        if for_good:
            with self._changed:
                self._failed = error
            self._end_all(error)
            return
        for asked in {id(text.asked): text.asked for text in texts}.values():
            asked.is_over = True
            _end(asked, error)

    def _end_all(self, error: Error) -> bool:
        """Tells all who wait of an error; returns whether there was anybody."""
        with self._changed:
            left = list(self._asked.values())
            self._waiting.clear()
        for asked in left:
            _end(asked, error)
        return bool(left)


def _end(asked: _Asked, error: Error | None) -> None:
    """Wakes who waits, in their loop; one that is closed waits no more."""

    def wake() -> None:
        if asked.done.done():
            return
        if error is None:
            asked.done.set_result(None)
        else:
            asked.done.set_exception(error)

    try:
        asked.loop.call_soon_threadsafe(wake)
    except RuntimeError:
        asked.is_over = True


_open_engines: weakref.WeakSet[EmbeddingEngine] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """Python ends threads that are in native code by unwinding them, which no C++ survives."""
    for engine in list(_open_engines):
        engine.end_thread()

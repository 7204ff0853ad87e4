"""Files of requests: OpenAI's batch format in, a file of answers out, in the order of the requests.

While it runs, answers that are there lie in a journal beside the file to be, so that a run that was
ended goes on where it was. Rows that fail are rows that say so.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from npusim.errors import Error
from npusim.files import printable_path, write_parts
from npusim.serve.fields import Fields, RequestError, parse_object
from npusim.serve.generation import Generator, Record
from npusim.serve.response_answer import response_to

_JOURNAL = ".partial"  # after the name of the file of answers
_AHEAD = 2  # requests under way for each that can run: none of them waits for us
_NEWLINE = b"\n"

Report = Callable[[int, int], None]


@dataclass
class Outcome:
    """What became of a file of requests.

    Attributes:
        answered, failed: how many rows.
        resumed: how many of them an earlier run had answered.
        prompt_tokens, completion_tokens: of this run.
    """

    answered: int = 0
    failed: int = 0
    resumed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class _Row:
    """A line of the file of requests.

    Attributes:
        line: its number, from 1.
        custom_id: what its owner calls it; None for a line that has no such.
        body, url: what is asked of which path.
        wrong: why it is no request, or None.
    """

    line: int
    custom_id: str | None
    url: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    wrong: RequestError | None = None


async def answer_file(
    generator: Generator, requests: Path, answers: Path, report: Report | None = None
) -> Outcome:
    """Answers every request of a file; writes the answers, whole or not at all.

    Args:
        generator: what answers.
        requests: a JSON object a line: `custom_id`, `method` "POST", `url` (/v1/completions,
            /v1/chat/completions or /v1/responses), `body`.
        answers: the file to be; beside it lies the journal while the work goes on.
        report: told how many rows are done, of how many.

    Raises:
        Error: the file has no requests, the journal is of another one, or the engine failed; what
            was answered until then is kept for the next run.
    """
    content = requests.read_bytes()
    rows = list(_rows(content))
    if not rows:
        raise Error(f"{printable_path(requests)} has no requests.")
    journal = _Journal(answers.with_name(answers.name + _JOURNAL), _key(content, generator))
    outcome = Outcome()
    with journal:
        outcome.resumed = len(journal.done)
        await _answer_rows(generator, rows, journal, outcome, report)
        failed = sum(not _is_answer(journal.done[row.line]) for row in rows)
        outcome.answered, outcome.failed = len(rows) - failed, failed
        write_parts(answers, (_line(journal.done[row.line]) for row in rows))
    journal.path.unlink()
    return outcome


async def _answer_rows(
    generator: Generator,
    rows: Sequence[_Row],
    journal: _Journal,
    outcome: Outcome,
    report: Report | None,
) -> None:
    """Answers the rows that the journal lacks, several at a time; the first failure ends it."""
    left = iter([row for row in rows if row.line not in journal.done])

    async def work() -> None:
        for row in left:
            record = Record()
            journal.add(row.line, await _answer(generator, row, record))
            outcome.prompt_tokens += record.usage.prompt
            outcome.completion_tokens += record.usage.completion
            if report is not None:
                report(len(journal.done), len(rows))

    workers = [asyncio.create_task(work()) for _ in range(_AHEAD * generator.engine.max_batch)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _answer(generator: Generator, row: _Row, record: Record) -> dict[str, Any]:
    """Returns a row of the answers; Error where the engine, and no request, failed."""
    told: dict[str, Any] = {"id": f"batch_req_{row.line}", "custom_id": row.custom_id}
    try:
        if row.wrong is not None:
            raise row.wrong
        begins: dict[str, Callable[..., Any]] = {
            "/v1/completions": generator.completion,
            "/v1/chat/completions": generator.chat,
            "/v1/responses": partial(response_to, generator),
        }
        status, body = 200, await _whole(generator, begins[row.url], row.body, record)
    except RequestError as error:
        if error.status == 503:
            raise Error(f"The engine failed: {error}", hint="Run it again to go on.") from error
        status, body = error.status, error.body
    response = {"status_code": status, "request_id": f"req_{row.line}", "body": body}
    return {**told, "response": response, "error": None}


async def _whole(
    generator: Generator, begin: Callable[..., Any], body: Mapping[str, Any], record: Record
) -> dict[str, Any]:
    """Returns an answer, however often it has to be asked for."""
    while True:
        try:
            generation = await begin({**body, "stream": False}, record)
        except RequestError as error:
            waits = error.status == 429 and generator.engine.stats()["running"] > 0
            if not waits:
                raise
            await asyncio.sleep(0.05)
            continue
        whole: dict[str, Any] = await generation.whole()
        return whole


def _rows(content: bytes) -> Iterator[_Row]:
    """Yields the lines that are not empty; an id that was there before is wrong."""
    seen: set[str] = set()
    for number, line in enumerate(content.split(_NEWLINE), 1):
        if not line.strip():
            continue
        row = _row(number, line)
        if row.custom_id in seen:
            wrong = RequestError(f"custom_id {row.custom_id!r} is there twice.", param="custom_id")
            row = _Row(number, row.custom_id, wrong=wrong)
        if row.custom_id is not None:
            seen.add(row.custom_id)
        yield row


def _row(number: int, line: bytes) -> _Row:
    custom_id: str | None = None
    try:
        fields = Fields(parse_object(line))
        custom_id = fields.text("custom_id")
        if custom_id is None:
            fields.refuse("custom_id", "a string")
        if fields.raw("method") not in (None, "POST"):
            fields.refuse("method", '"POST"')
        url = fields.text("url")
        if url not in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
            fields.refuse("url", '"/v1/completions", "/v1/chat/completions" or "/v1/responses"')
        body = fields.raw("body")
        if not isinstance(body, dict):
            fields.refuse("body", "an object")
        if body.get("stream"):
            raise RequestError("Answers of a batch are not streamed.", param="stream")
    except RequestError as error:
        return _Row(number, custom_id, wrong=error)
    return _Row(number, custom_id, url, body)


class _Journal:
    """The answers so far, on disk.

    Args:
        path: where.
        key: what the answers depend on.

    Attributes:
        path: as given.
        done: the rows of answers, by line of the request.

    Raises:
        Error: the file is of other requests, of another model, no journal, or another run's.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self._key = path, key
        self.done: dict[int, dict[str, Any]] = {}
        self._file: IO[bytes] | None = None
        self._whole = 0  # bytes; what follows was cut off in the middle

    def __enter__(self) -> _Journal:
        self._file = self.path.open("a+b")
        try:
            self._lock(self._file)
            self._file.seek(0)
            self._read(self._file.read())
            self._file.truncate(self._whole)
            if self._whole == 0:
                self._write({"journal": self._key})
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        with suppress(OSError):  # what could not be written, `_write` said
            self._file.close()

    def _lock(self, file: IO[bytes]) -> None:
        """Keeps other runs away, until the file is closed."""
        if sys.platform == "win32":
            return
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Error(
                f"{printable_path(self.path)} is another run's, which has not ended.",
                hint="Wait for it, or write to another file.",
            ) from None
        except OSError:  # a file system without locks
            return

    def add(self, line: int, row: dict[str, Any]) -> None:
        """Keeps an answer."""
        self._write({"line": line, "row": row})
        self.done[line] = row

    def _write(self, value: Mapping[str, Any]) -> None:
        assert self._file is not None
        try:
            self._file.write(_line(value))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            what = f"{printable_path(self.path)} cannot be written: {error.strerror}."
            raise Error(what, hint="Run it again to go on.") from error

    def _read(self, content: bytes) -> None:
        head, *lines = content.split(_NEWLINE)
        if not lines and _line({"journal": self._key}).startswith(head):  # nothing, or cut off
            return
        if _line({"journal": self._key}) != head + _NEWLINE:
            raise Error(
                f"{printable_path(self.path)} has answers to other requests, or of another model, "
                "or is no journal.",
                hint="Remove it, or write to another file.",
            )
        self._whole = len(head) + 1
        for line in lines[:-1]:
            kept = _kept(line)
            if kept is None:
                return
            self.done[kept[0]] = kept[1]
            self._whole += len(line) + 1


def _kept(line: bytes) -> tuple[int, dict[str, Any]] | None:
    """Returns a row of a journal, by the line of its request; None for what is none."""
    try:
        value = parse_object(line)
    except RequestError:
        return None
    number, row = value.get("line"), value.get("row")
    if not isinstance(number, int) or not isinstance(row, dict):
        return None
    response = row.get("response")
    if not isinstance(response, dict) or not isinstance(response.get("status_code"), int):
        return None
    return number, row


def _key(content: bytes, generator: Generator) -> str:
    """Returns what answers depend on, as far as it can be told: the requests and the model."""
    model = generator.engine.model
    facts = f"{generator.name} {model.vocab_size} {generator.engine.max_context}"
    return hashlib.sha256(content + facts.encode()).hexdigest()


def _is_answer(row: Mapping[str, Any]) -> bool:
    return bool(row["response"]["status_code"] == 200)


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + _NEWLINE

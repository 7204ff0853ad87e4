"""How answers of /v1/responses look: items, the events of a stream in their order, whole answers.

Both are made of the same events, so that a stream and a whole answer say the same.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any

from npusim.serve.answers import Usage, to_json
from npusim.serve.calls import ToolCall
from npusim.serve.fields import RequestError
from npusim.serve.generation import Generation, Generator, Record
from npusim.serve.openai import GenerationRequest
from npusim.serve.response_request import parse_response
from npusim.serve.text import Delta

Event = dict[str, Any]


async def response_to(
    generator: Generator, body: Mapping[str, Any], record: Record
) -> ResponseGeneration:
    """Begins to answer a body of /v1/responses.

    Raises:
        RequestError: it is refused, with the status to answer.
    """
    request = parse_response(body)
    try:
        generation = await generator.answer_chat(request.chat, record)
    except RequestError as error:
        if error.param == "messages":  # the template's: clients of this path know no such field
            error.param = "input"
        raise
    return ResponseGeneration(generation, request.told, generator.name)


class ResponseGeneration:
    """An answer that is being made: take it whole or as events, once. Close it in any case.

    Args:
        generation: the chat that answers.
        told: what the answer repeats of its request.
        model: its name.

    Attributes:
        request: what was asked of the model.
        record: what happened.
    """

    def __init__(self, generation: Generation, told: Mapping[str, Any], model: str) -> None:
        self.request: GenerationRequest = generation.request
        self.record: Record = generation.record
        self._generation, self._told, self._model = generation, told, model
        self._items = OutputItems(generation.told_logprobs)
        self._id = _id("resp")
        self._created = int(time.time())
        self._number = 0

    async def whole(self) -> dict[str, Any]:
        """Returns the whole answer.

        Raises:
            RequestError: it failed.
        """
        answer: dict[str, Any] = {}
        async for event in self._events():
            answer = event.get("response", answer)
        return answer

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yields the events of a stream, as they are sent.

        Raises:
            RequestError: it failed.
        """
        events = self._events()
        try:
            async for event in events:
                yield self._numbered(event)
        finally:
            await events.aclose()

    @staticmethod
    def framed(event: bytes) -> bytes:
        """Returns an event as it is sent, which it is already: each has a name of its own."""
        return event

    def last_event(self, error: RequestError | None) -> bytes:
        """Returns what a stream ends with: nothing more, or that it failed."""
        if error is None:
            return b""
        told = {"code": error.code or error.type, "message": str(error)}
        return self._numbered(self._of_response("failed", "failed", error=told))

    def close(self) -> None:
        """Ends what has not ended."""
        self._generation.close()

    def _numbered(self, event: Event) -> bytes:
        numbered = {"type": event["type"], "sequence_number": self._number, **event}
        self._number += 1
        return b"event: " + event["type"].encode() + b"\ndata: " + to_json(numbered) + b"\n\n"

    async def _events(self) -> AsyncGenerator[Event, None]:
        yield self._of_response("created", "in_progress")
        yield self._of_response("in_progress", "in_progress")
        cut = False
        deltas = self._generation.deltas()
        try:
            async for delta in deltas:
                for event in self._items.push(delta):
                    yield event
                cut = delta.finish_reason == "length"
        finally:
            await deltas.aclose()
        for event in self._items.finish(cut):
            yield event
        if cut:
            yield self._of_response("incomplete", "incomplete")
        else:
            yield self._of_response("completed", "completed")

    def _of_response(self, kind: str, status: str, error: Any = None) -> Event:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        response = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": error,
            "incomplete_details": cut,
            "model": self._model,
            "output": list(self._items.done),
            "usage": None if status == "in_progress" else _usage(self.record.usage),
            **self._told,
        }
        return {"type": f"response.{kind}", "response": response}


class OutputItems:
    """The items of an answer, and the events that tell of them: what is said, and calls.

    White space before a call is nothing that is said.

    Args:
        logprobs: returns the records of the tokens of a delta.

    Attributes:
        done: the items that are whole.
    """

    def __init__(self, logprobs: Callable[[Delta], list[dict[str, Any]]]) -> None:
        self.done: list[dict[str, Any]] = []
        self._logprobs = logprobs
        self._message: str | None = None  # its id, while it is said
        self._text, self._records = "", list[dict[str, Any]]()
        self._held, self._held_records = "", list[dict[str, Any]]()
        self._cut_call = False

    def push(self, delta: Delta) -> Iterator[Event]:
        """Takes what the answer gained; yields the events of it."""
        self._held += delta.text
        self._held_records += self._logprobs(delta)
        if self._held and (self._message is not None or self._held.strip()):
            yield from self._say()
        if not delta.calls:
            return
        yield from self._end_message("completed")
        self._held, self._held_records = "", []
        for call in delta.calls:
            self._cut_call = delta.finish_reason == "length" and call is delta.calls[-1]
            yield from self._call(call, "incomplete" if self._cut_call else "completed")

    def finish(self, cut: bool) -> Iterator[Event]:
        """Yields the events that end the items.

        Args:
            cut: whether the answer ended at its limit of tokens.
        """
        if not self.done or (self._held and not self._cut_call):
            yield from self._say()
        yield from self._end_message("incomplete" if cut else "completed")

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message, "output_index": len(self.done), "content_index": 0}

    def _said(self, status: str, *content: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._message,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": list(content),
        }

    def _say(self) -> Iterator[Event]:
        """Tells of the text that is held; begins a message where there is none."""
        if self._message is None:
            self._message = _id("msg")
            item = self._said("in_progress")
            yield _item_event("added", item, len(self.done))
            yield {
                "type": "response.content_part.added",
                **self._place(),
                "part": _part("", []),
            }
        if self._held:
            yield {
                "type": "response.output_text.delta",
                **self._place(),
                "delta": self._held,
                "logprobs": self._held_records,
            }
        self._text += self._held
        self._records += self._held_records
        self._held, self._held_records = "", []

    def _end_message(self, status: str) -> Iterator[Event]:
        if self._message is None:
            return
        part = _part(self._text, self._records)
        yield {
            "type": "response.output_text.done",
            **self._place(),
            "text": self._text,
            "logprobs": self._records,
        }
        yield {"type": "response.content_part.done", **self._place(), "part": part}
        item = self._said(status, part)
        self.done.append(item)
        self._message, self._text, self._records = None, "", []
        yield _item_event("done", item, len(self.done) - 1)

    def _call(self, call: ToolCall, status: str) -> Iterator[Event]:
        place = {"item_id": _id("fc"), "output_index": len(self.done)}
        item = {
            "id": place["item_id"],
            "type": "function_call",
            "status": "in_progress",
            "call_id": call.id,
            "name": call.name,
            "arguments": "",
        }
        yield _item_event("added", item, len(self.done))
        of_arguments = "response.function_call_arguments"
        yield {"type": f"{of_arguments}.delta", **place, "delta": call.arguments}
        yield {"type": f"{of_arguments}.done", **place, "name": call.name,
               "arguments": call.arguments}  # fmt: skip
        item = {**item, "status": status, "arguments": call.arguments}
        self.done.append(item)
        yield _item_event("done", item, len(self.done) - 1)


def _item_event(kind: str, item: dict[str, Any], place: int) -> Event:
    return {"type": f"response.output_item.{kind}", "output_index": place, "item": item}


def _part(text: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": records}


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(24)}"


def _usage(usage: Usage) -> dict[str, Any]:
    """Returns OpenAI's object; what was found in the cache is not told apart."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }

"""How answers look to OpenAI's clients: objects for whole ones, chunks for streams.

Owns names and places of fields; what the values are comes from `generation.py`.
"""

from __future__ import annotations

import codecs
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from npusim.language_model import Tokenizer
from npusim.serve.requests import TokenLogprob
from npusim.serve.text import Delta
from npusim.serve.tool_use import told_calls

_TO_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def to_json(value: Any) -> bytes:
    """Returns an answer as it is sent."""
    return _TO_JSON.encode(value).encode("utf-8", "replace")


class TextTemplate:
    """JSON that differs in one text alone: that of most events of a stream.

    Args:
        made: returns the value with a text at its place, and nowhere else.
    """

    def __init__(self, made: Callable[[str], Any]) -> None:
        mark = secrets.token_hex(16)
        self._before, self._behind = to_json(made(mark)).split(b'"' + mark.encode() + b'"')

    def with_text(self, text: str) -> bytes:
        """Returns `to_json(made(text))`."""
        return self._before + to_json(text) + self._behind


@dataclass
class Usage:
    """How many tokens a request has had so far."""

    prompt: int = 0
    completion: int = 0

    def as_dict(self) -> dict[str, int]:
        """Returns OpenAI's object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }


class Form(Protocol):
    """What completions and chats say differently."""

    whole: str
    chunk: str
    prefix: str

    def choice(
        self, delta: Delta, prompt: Sequence[int], echo: str, index: int | None = None
    ) -> dict[str, Any]:
        """Returns what a choice of a whole answer has, beside index and reasons; with an index the
        echo that a stream's choice begins with, which its pieces follow."""

    def begin(self, index: int) -> dict[str, Any] | None:
        """Returns what a stream's choice begins with, or None."""

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        """Returns what a stream's choice gains."""

    def end(self, delta: Delta) -> dict[str, Any]:
        """Returns what stands beside the reasons in a choice's last chunk."""


class CompletionForm:
    """/v1/completions.

    Args:
        tokenizer: the model's.
        logprobs: how many tokens beside each one are told; None: no log-probabilities.
        echo: whether they begin with the prompt's.
    """

    whole = chunk = "text_completion"
    prefix = "cmpl-"

    def __init__(self, tokenizer: Tokenizer, logprobs: int | None, echo: bool = False) -> None:
        self._tokenizer, self._logprobs, self._echo = tokenizer, logprobs, echo
        self._offsets: dict[int, _Offsets] = {}

    def choice(
        self, delta: Delta, prompt: Sequence[int], echo: str, index: int | None = None
    ) -> dict[str, Any]:
        """Returns the text, after the prompt's where it is to be echoed."""
        offsets = _Offsets(self._tokenizer)
        if index is not None:
            self._offsets[index] = offsets
        return {
            "text": echo + delta.text,
            "logprobs": self._records(delta, offsets, first=prompt[:1]),
        }

    def begin(self, index: int) -> dict[str, Any] | None:
        """Streams of texts begin with text."""
        return None

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        """Returns more text."""
        offsets = self._offsets.setdefault(index, _Offsets(self._tokenizer))
        return {"text": delta.text, "logprobs": self._records(delta, offsets)}

    def end(self, delta: Delta) -> dict[str, Any]:
        """Returns no text."""
        return {"text": "", "logprobs": None}

    def _records(
        self, delta: Delta, offsets: _Offsets, first: Sequence[int] = ()
    ) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        of_prompt = delta.prompt_logprobs if self._echo else None
        rows: list[TokenLogprob | None] = [*(of_prompt or ()), *delta.logprobs]
        tokens = [row.token for row in rows if row is not None]
        if of_prompt is not None:  # of its first token nothing can be told
            tokens, rows = [*first, *tokens], [None, *rows]
        return {
            "text_offset": [offsets.before(token) for token in tokens],
            "token_logprobs": [None if row is None else row.logprob for row in rows],
            "tokens": [_shown(self._tokenizer, token) for token in tokens],
            "top_logprobs": [self._top(row) for row in rows] if self._logprobs else None,
        }

    def _top(self, row: TokenLogprob | None) -> dict[str, float] | None:
        """Returns the most probable tokens and the one that came; of equal texts the likelier."""
        if row is None:
            return None
        top: dict[str, float] = {}
        for token, logprob in (*row.top[: self._logprobs], (row.token, row.logprob)):
            top.setdefault(_shown(self._tokenizer, token), logprob)
        return top


class ChatForm:
    """/v1/chat/completions.

    Args:
        tokenizer: the model's.
        logprobs: how many tokens beside each one are told; None: no log-probabilities.
    """

    whole, chunk = "chat.completion", "chat.completion.chunk"
    prefix = "chatcmpl-"

    def __init__(self, tokenizer: Tokenizer, logprobs: int | None) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs

    def choice(
        self, delta: Delta, prompt: Sequence[int], echo: str, index: int | None = None
    ) -> dict[str, Any]:
        """Returns the assistant's message."""
        message: dict[str, Any] = {"role": "assistant", "content": delta.text, "refusal": None}
        if delta.calls:
            message["content"] = delta.text if delta.text.strip() else None
            message["tool_calls"] = told_calls(delta.calls, indexed=False)
        return {"message": message, "logprobs": self._records(delta)}

    def begin(self, index: int) -> dict[str, Any] | None:
        """Returns who speaks."""
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        """Returns more of what is said."""
        gained: dict[str, Any] = {"content": delta.text}
        if delta.calls:
            gained = gained if delta.text else {}
            gained["tool_calls"] = told_calls(delta.calls, indexed=True)
        return {"delta": gained, "logprobs": self._records(delta)}

    def end(self, delta: Delta) -> dict[str, Any]:
        """Returns an empty delta: clients drop text of the last chunk."""
        return {"delta": {}, "logprobs": None}

    def _records(self, delta: Delta) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        rows = [
            {
                **self._record(row.token, row.logprob),
                "top_logprobs": [self._record(*pair) for pair in row.top],
            }
            for row in delta.logprobs
        ]
        return {"content": rows, "refusal": None}

    def _record(self, token: int, logprob: float) -> dict[str, Any]:
        content = self._tokenizer.bytes_of(token)
        return {
            "token": _shown(self._tokenizer, token),
            "logprob": logprob,
            "bytes": None if content is None else list(content),
        }


class _Offsets:
    """Where in the text of an answer tokens begin, in characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def before(self, token: int) -> int:
        """Returns where this token begins; it is taken to be the next one."""
        at = self._length
        self._length += len(self._decoder.decode(self._tokenizer.bytes_of(token) or b""))
        return at


def _shown(tokenizer: Tokenizer, token: int) -> str:
    """Returns a token as text; one that is half a character as its bytes, as OpenAI writes them."""
    content = tokenizer.bytes_of(token)
    if content is None:
        return tokenizer.decode([token])
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def prompt_records(
    tokenizer: Tokenizer, rows: Sequence[TokenLogprob], count: int
) -> list[dict[str, Any] | None]:
    """Returns the field `prompt_logprobs`, as vLLM has it: null for the first token; for each other
    the `count` most probable ones and the one that came, by their ids.

    The rank of a token that is not among those that were computed is null.
    """
    records: list[dict[str, Any] | None] = [None]
    for row in rows:
        ranks = {token: rank for rank, (token, _) in enumerate(row.top, 1)}
        records.append(
            {
                str(token): {
                    "logprob": logprob,
                    "rank": ranks.get(token),
                    "decoded_token": _shown(tokenizer, token),
                }
                for token, logprob in (*row.top[:count], (row.token, row.logprob))
            }
        )
    return records


def reasons(delta: Delta) -> dict[str, Any]:
    """Returns why a choice ended."""
    return {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}

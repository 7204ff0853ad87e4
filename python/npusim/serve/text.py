"""The text of one answer, out of the pieces of a stream: whole characters, stop strings, records.

What is held back (half a character, what may become a stop string) is held back with its tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from npusim.language_model.tokenizer import StopStrings, TextStream, Tokenizer
from npusim.serve.calls import ToolCall
from npusim.serve.requests import Piece, TokenLogprob


@dataclass
class Delta:
    """What an answer gained.

    Attributes:
        text: whole characters.
        tokens: those that came.
        logprobs: one for each token, where they were asked for.
        finish_reason: "stop", "length" or "tool_calls" in the last delta, else None.
        stop_reason: the stop string or token that ended the answer; None: the model's own end.
        prompt_logprobs: as in `Piece`.
        calls: of tools, that were taken out of the text.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    calls: list[ToolCall] = field(default_factory=list)

    def add(self, later: Delta) -> None:
        """Puts what came after it behind it."""
        self.text += later.text
        self.tokens += later.tokens
        self.logprobs += later.logprobs
        self.calls = self.calls + later.calls
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs


class AnswerText:
    """Turns the pieces of one answer into text.

    Args:
        tokenizer: the model's; None: tokens are all there is.
        stops: strings; the text ends before the first one.
        own_ends: the model's own end tokens, which are no reason to name.
        min_tokens: stop strings end nothing before there are so many tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stops: Sequence[str] = (),
        own_ends: Collection[int] = (),
        min_tokens: int = 0,
    ) -> None:
        self._stream = None if tokenizer is None else TextStream(tokenizer)
        self._stops = StopStrings(stops)
        self._may_stop = bool(stops)
        self._own_ends = own_ends
        self._min_tokens = min_tokens
        self._count = 0

    def push(self, piece: Piece) -> Delta:
        """Takes the next piece; returns what is certain now. Nothing may follow a finish."""
        if not self._may_stop and piece.finish_reason is None:
            said = "" if self._stream is None else self._stream.push_all(piece.tokens)
            return Delta(said, piece.tokens, piece.logprobs, prompt_logprobs=piece.prompt_logprobs)
        delta = Delta(prompt_logprobs=piece.prompt_logprobs)
        for place, token in enumerate(piece.tokens):
            delta.tokens.append(token)
            delta.logprobs += piece.logprobs[place : place + 1]
            self._count += 1
            ends = piece.stop_token is not None and place == len(piece.tokens) - 1
            if not ends:
                delta.text += self._said(token)
            if self._stops.found:
                delta.finish_reason, delta.stop_reason = "stop", self._stops.which
                return delta
        if piece.finish_reason is not None:
            delta.text += self._rest()
            delta.finish_reason = piece.finish_reason
            own = piece.stop_token in self._own_ends
            delta.stop_reason = None if own else piece.stop_token
            if self._stops.found:
                delta.finish_reason, delta.stop_reason = "stop", self._stops.which
        return delta

    def _said(self, token: int) -> str:
        if self._stream is None:
            return ""
        text = self._stream.push(token)
        if self._count <= self._min_tokens:  # as nothing may end here, nothing is held back
            return text
        return self._stops.push(text)

    def _rest(self) -> str:
        if self._stream is None:
            return ""
        text = self._stops.push(self._stream.finish())
        return text if self._stops.found else text + self._stops.finish()

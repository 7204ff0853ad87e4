"""LanguageSession: one conversation with a model, and what can be done with it."""

from __future__ import annotations

import operator
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from npusim import _runtime
from npusim.errors import Error
from npusim.language_model.generation import (
    Limits,
    Sampling,
    TextGeneration,
    TokenGeneration,
    check_stops,
    make_sampler,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from npusim.language_model.model import LanguageModel

Prompt = str | Sequence[int]


class LanguageSession:
    """The tokens of one conversation, and the cache they left.

    Made by `LanguageModel.new_session`. Sessions are independent of each other; one thread at a
    time may use one, and sessions of a model take turns on its device.

    Attributes:
        model: the LanguageModel.
    """

    def __init__(
        self, model: LanguageModel, native: _runtime.LanguageSession | None = None
    ) -> None:
        self.model = model
        self._native = native or _runtime.LanguageSession(model.native)

    @property
    def position(self) -> int:
        """How many tokens there are."""
        return self._native.position

    @property
    def tokens(self) -> list[int]:
        """All tokens, of prompts and answers."""
        return self._native.tokens

    @property
    def logits(self) -> NDArray[np.float32]:
        """The scores of the next token, one for each of the vocabulary; a copy.

        Raises:
            Error: the session has no tokens.
        """
        return self._native.logits

    def append(self, prompt: Prompt) -> None:
        """Puts tokens, or text, after what there is, and runs them.

        Ctrl-C takes effect between two chunks and leaves the session as it was.

        Raises:
            Error: more tokens than the context holds, or one outside the vocabulary.
        """
        self._native.append(self._ids(prompt))

    def generate(
        self,
        prompt: Prompt = (),
        *,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        return_logits: bool = False,
        **sampling: Unpack[Sampling],
    ) -> TextGeneration:
        """Continues the conversation; returns an iterator of pieces of text.

        Args:
            prompt: what to append first, text or tokens.
            max_new_tokens: None: as many as the context holds.
            stop: strings; the text ends before the first one.
            stop_token_ids: tokens that end the text, besides the model's own.
            ignore_eos: go on after the model's own end of text.
            return_logits: keep the scores that each token was drawn from.
            **sampling: see `Sampling`; by default the most probable token is taken.

        Raises:
            Error: an option is out of range, the prompt does not fit into the context, or there is
                no tokenizer.
        """
        stops = check_stops(stop)
        tokenizer = self.model.tokenizer
        tokens = self.generate_tokens(
            prompt,
            max_new_tokens=max_new_tokens,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
            return_logits=return_logits,
            **sampling,
        )
        return TextGeneration(tokens, tokenizer, stops)

    def generate_tokens(
        self,
        prompt: Prompt = (),
        *,
        max_new_tokens: int | None = None,
        stop_token_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        return_logits: bool = False,
        **sampling: Unpack[Sampling],
    ) -> TokenGeneration:
        """As `generate`, but yields tokens; needs no tokenizer for a prompt of tokens."""
        if max_new_tokens is not None and max_new_tokens < 0:
            raise Error(f"max_new_tokens is {max_new_tokens}, it must be 0 or more.")
        sampler = make_sampler(sampling)
        ids = self._ids(prompt)
        self._check_prompt(ids)
        own = () if ignore_eos else self.model.eos_token_ids
        limits = Limits(max_new_tokens, frozenset((*own, *stop_token_ids)), return_logits)
        return TokenGeneration(self, ids, sampler, limits, self.model.max_context)

    def fork(self) -> LanguageSession:
        """Returns another session that continues from here on its own."""
        return LanguageSession(self.model, self._native.fork())

    def rewind(self, position: int) -> None:
        """Goes back to when there were `position` tokens."""
        self._native.rewind(position)

    def reset(self) -> None:
        """Forgets all tokens."""
        self._native.reset()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the session to a safetensors file; whole or not at all."""
        self._native.save(Path(path))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replaces the session by a saved one of the same program.

        That the weights are the same, too, is the caller's to ensure.

        Raises:
            ProgramFormatError: the file is damaged, or another program saved it.
            Error: the file cannot be read.
        """
        self._native.load(Path(path))

    def __copy__(self) -> LanguageSession:
        return self.fork()

    def __deepcopy__(self, memo: object) -> LanguageSession:
        return self.fork()

    def __reduce__(self) -> tuple[Any, ...]:
        # By the model and what `save` writes.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "session.safetensors"
            self.save(path)
            return _session_of, (self.model, path.read_bytes())

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.model.tokenizer.encode(prompt, begins=self.position == 0)
        try:
            ids = [operator.index(token) for token in prompt]
        except TypeError:
            raise Error("A prompt is a string or a flat sequence of token ids.") from None
        self.model.check_tokens(ids)
        return ids

    def _check_prompt(self, ids: list[int]) -> None:
        position, limit = self.position, self.model.max_context
        if not ids and position == 0:
            raise Error("The prompt has no tokens.", hint="Give at least one.")
        if position + len(ids) > limit:
            raise Error(
                f"The context holds {limit} tokens; {position} are there and {len(ids)} more do "
                "not fit.",
                hint="Shorten the prompt, or extract the model with a larger max_context.",
            )

    def __repr__(self) -> str:
        return f"LanguageSession({self.position} of {self.model.max_context} tokens)"


def _session_of(model: LanguageModel, content: bytes) -> LanguageSession:
    session = LanguageSession(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "session.safetensors"
        path.write_bytes(content)
        session.load(path)
    return session

"""What answers need of an engine, wherever it is: in this process, or in the one beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from npusim.language_model import Tokenizer
from npusim.serve.engine import Stream
from npusim.serve.requests import Sampling


class AnyModel(Protocol):
    """What is known of the model: as `npusim.LanguageModel` has it."""

    eos_token_ids: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer."""

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raises Error for the first token outside the vocabulary."""


class Checked(Protocol):
    """What can say whether it serves."""

    def check(self) -> None:
        """Raises Error if it cannot serve."""


class AnyEngine(Checked, Protocol):
    """What serves requests: as `npusim.serve.Engine` has it."""

    @property
    def model(self) -> AnyModel:
        """The model."""

    @property
    def max_context(self) -> int:
        """How many tokens a prompt and its answer have together, at most."""

    @property
    def max_batch(self) -> int:
        """How many requests run at a time, at most."""

    @property
    def most_open(self) -> int:
        """How many requests run or wait, at most."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; Error where there is none."""

    async def ask(
        self, prompt: Sequence[int], sampling: Sampling, follows: Stream | None = None
    ) -> Stream:
        """Takes a request; returns its answer, as `npusim.serve.Engine.submit` does."""

    def stats(self) -> Mapping[str, float]:
        """Returns counts, where they are known here."""

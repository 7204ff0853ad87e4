"""Answers of a given form: JSON schemas, regular expressions and grammars as masks over tokens.

Owns the use of the `llguidance` package, which does the work. It follows rules that name rules by
calling itself, and ends the process where the stack ends; so a grammar is limited in length and
read by a thread whose stack has room for the deepest one of that length.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.errors import Error, first_line
from npusim.language_model import Tokenizer
from npusim.serve.fields import RequestError

_LONGEST = 64 << 10  # characters of a schema or grammar
_STACK = 256 << 20  # bytes: 11,000 rules, each of which names the next one, at 4 KiB each, and more
_AT_ONCE = 2  # grammars that are prepared; others wait, so that texts find threads


@dataclass(frozen=True)
class GrammarSpec:
    """What an answer must look like.

    Attributes:
        kind: "json" (a schema), "regex", "choice" (texts) or "grammar" (Lark).
        value: the schema, expression, texts or grammar.
        field: of the request, which refusals name.
    """

    kind: str
    value: Any
    field: str = "response_format"


class GrammarCompiler:
    """Makes constraints for the tokens of one model.

    Args:
        tokenizer: the model's.
        vocab_size: how many scores a step has.
        ends: tokens that may end an answer.

    Raises:
        Error: the package llguidance is missing, or it cannot read the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ends: Sequence[int]) -> None:
        try:
            import llguidance
        except ImportError:
            raise Error(
                "Answers of a given form need the llguidance package.",
                hint="pip install 'npusim[serve]'",
            ) from None
        if not ends:
            raise Error("Answers of a given form need a model with an end-of-text token.")
        try:
            self._tokens = llguidance.LLTokenizer(
                tokenizer.as_json(), n_vocab=vocab_size, eos_token=list(ends)
            )
        except Exception as error:  # the package raises whatever it meets
            raise Error(f"The tokenizer cannot be constrained: {first_line(error)}.") from error
        self._library = llguidance
        self._vocab_size, self._ends = vocab_size, tuple(ends)
        self._turns = threading.Semaphore(_AT_ONCE)

    async def compiled(self, spec: GrammarSpec, seconds: float) -> TokenMatcher:
        """Returns a constraint as `compile` does; asyncio.TimeoutError when that takes longer."""
        made = _in_deep_thread(self._turns, lambda: self.compile(spec))
        return await asyncio.wait_for(asyncio.wrap_future(made), seconds)

    def compile(self, spec: GrammarSpec) -> TokenMatcher:
        """Returns a constraint for one answer.

        Raises:
            RequestError: the schema, expression or grammar is wrong, or too large.
        """
        try:
            grammar = self._grammar(spec)
        except Exception as error:  # as above
            raise _unusable(spec, error) from None
        if len(grammar) > _LONGEST:
            raise RequestError(
                f"The {spec.kind} has more than {_LONGEST} characters.", param=spec.field
            )
        matcher = self._library.LLMatcher(self._tokens, grammar, log_level=0)
        if matcher.is_error():
            raise _unusable(spec, Error(matcher.get_error()))
        made = TokenMatcher(matcher, self._vocab_size, self._ends, spec.field)
        made.allowed()  # of all masks it may take longest by far
        return made

    def _grammar(self, spec: GrammarSpec) -> str:
        library = self._library.LLMatcher
        if spec.kind == "json":
            schema = spec.value if isinstance(spec.value, str) else json.dumps(spec.value)
            return str(library.grammar_from_json_schema(schema))
        if spec.kind == "regex":
            return str(library.grammar_from_regex(spec.value))
        if spec.kind == "choice":
            texts = (json.dumps(text, ensure_ascii=False) for text in spec.value)
            return str(library.grammar_from_lark(f"start: {' | '.join(texts)}"))
        return str(library.grammar_from_lark(spec.value))


def _unusable(spec: GrammarSpec, error: Exception) -> RequestError:
    why = f"The {spec.kind} cannot be used: {first_line(error)}."
    return RequestError(why, param=spec.field)


def _in_deep_thread(turns: threading.Semaphore, work: Callable[[], TokenMatcher]) -> Future[Any]:
    """Returns what the work will return, in a thread of its own that keeps no process from ending;
    nobody waits for the work of one whose turn comes when it is cancelled."""
    made: Future[Any] = Future()

    def run() -> None:
        with turns:
            if not made.set_running_or_notify_cancel():
                return
            try:
                made.set_result(work())
            except Exception as error:
                made.set_exception(error)

    before = threading.stack_size(_STACK)
    try:
        threading.Thread(target=run, name="npusim-grammar", daemon=True).start()
    finally:
        threading.stack_size(before)
    return made


class TokenMatcher:
    """Which tokens may come next in one answer: `Constraint`."""

    def __init__(self, matcher: Any, vocab_size: int, ends: Sequence[int], field: str) -> None:
        self._matcher, self._vocab_size, self._field = matcher, vocab_size, field
        self._ends = list(ends)

    def allowed(self) -> NDArray[np.bool_]:
        """Returns bool[vocab]; only end tokens once the answer is complete.

        Raises:
            RequestError: the grammar grew beyond what the library allows.
        """
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(packed, bitorder="little")[: self._vocab_size].astype(np.bool_)

    def accept(self, token: int) -> bool:
        """Takes the token that came; returns whether the answer is complete."""
        if token in self._ends:
            return True
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            why = first_line(Error(self._matcher.get_error()))
            raise RequestError(f"The form of the answer failed: {why}.", param=self._field)

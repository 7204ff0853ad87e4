"""The engine as a machine with rules: whatever is asked, ended and read in whatever order, each
request has the tokens that a list of its own gives, and no page is left.

After tokens comes their sum, modulo the vocabulary, read from the pages (paged_model.PagedSum): a
page that holds what another request wrote is another sum. Ten prompts begin alike, so pages are
shared; four requests of forty tokens need more pages than there are, so some are put back.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="needs the extra dev")

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

import npusim
from npusim import _runtime
from npusim.runtime.native import native_program

VOCABULARY, CONTEXT, PAGES = 48, 40, 24
PROGRAM = Path(__file__).parents[1] / "cpp" / "programs" / "paged_sum.npubin"
BEGINNINGS = [[3] * 17, [1, 2, 3, 4, 5, 6, 7, 8, 9]]
tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=20)


@dataclass
class Asked:
    """What a request is to give, and what came of it."""

    sequence: list[int]  # prompt and answer, as far as it came
    most: int
    made: int = 0
    ended: bool = False


class EngineMachine(RuleBasedStateMachine):
    """Requests to one engine, and what each would make alone."""

    asked = Bundle("asked")

    @initialize(
        requests=st.integers(1, 4), prefix_cache=st.booleans(), step_tokens=st.integers(4, 16)
    )
    def start(self, requests: int, prefix_cache: bool, step_tokens: int) -> None:
        self.known: dict[int, Asked] = {}
        self.engine = _runtime.Engine(
            native_program(PROGRAM), npusim.Device("cpu", threads=1), None,
            max_requests=requests, max_step_tokens=step_tokens, prefix_cache=prefix_cache,
            patience=2, max_waiting=20,
        )  # fmt: skip

    @rule(
        target=asked,
        beginning=st.sampled_from([[], *BEGINNINGS]),
        more=tokens,
        most=st.integers(0, CONTEXT),
        salt=st.sampled_from(["", "", "other"]),
        priority=st.integers(-1, 1),
        masked=st.sampled_from([False, False, False, True]),
    )
    def submit(
        self, beginning: list[int], more: list[int], most: int, salt: str, priority: int,
        masked: bool,
    ) -> Any:  # fmt: skip
        """Asks for tokens; what the context cannot hold is refused."""
        prompt = [*beginning, *more]
        options = {"max_tokens": most, "ignore_eos": True, "salt": salt, "priority": priority,
                   "masked": masked}  # fmt: skip
        try:
            number = self.engine.submit(prompt, options)
        except npusim.Error as error:
            fits = len(prompt) > 0 and len(prompt) + most <= CONTEXT
            assert not fits or "queue is full" in str(error), error
            return multiple()
        self.known[number] = Asked(prompt, most)
        if masked:
            self._allow(number)
        return number

    @rule(number=consumes(asked))
    def cancel(self, number: int) -> None:
        """Ends a request; nothing tells of it afterwards."""
        self.engine.cancel(number)
        self.engine.cancel(number)
        self.known.pop(number, None)

    @rule(first=asked, most=st.integers(1, 9), target=asked)
    def follow(self, first: int, most: int) -> Any:
        """Asks for another answer to a prompt that may be under way, or over."""
        if first not in self.known:
            return multiple()
        of = self.known[first]
        prompt = of.sequence[: len(of.sequence) - of.made]
        most = min(most, CONTEXT - len(prompt))
        try:
            number = self.engine.submit(
                prompt, {"max_tokens": most, "ignore_eos": True, "follows": first}
            )
        except npusim.Error as error:
            assert "queue is full" in str(error), error
            return multiple()
        self.known[number] = Asked(list(prompt), most)
        return number

    @rule(seconds=st.sampled_from([0.0, 0.0, 0.001]))
    def read(self, seconds: float) -> None:
        """Reads what came, and holds it to the sums."""
        for number, made, _, _, ending, error, _ in self.engine.poll(seconds):
            assert error is None, error
            asked = self.known[number]  # nobody else's
            assert not asked.ended, "something came behind the end"
            for token in made:
                assert token == sum(asked.sequence) % VOCABULARY
                asked.sequence.append(token)
                asked.made += 1
            assert asked.made <= asked.most
            asked.ended = ending is not None
            assert asked.ended == (asked.made == asked.most), (asked, ending)
            if made and not asked.ended:
                self._allow(number)

    @invariant()
    def pages_add_up(self) -> None:
        """No page is counted twice, whatever runs."""
        if not hasattr(self, "engine"):
            return
        stats = self.engine.stats()
        assert stats["pages"] == PAGES and 0 <= stats["free_pages"] <= PAGES
        assert stats["kept_pages"] <= stats["free_pages"] and stats["failed_steps"] == 0

    def teardown(self) -> None:
        """Everybody has its answer, and every page is free."""
        if not hasattr(self, "engine"):
            return
        rounds = 0
        while any(not asked.ended for asked in self.known.values()):
            self.read(0.05)
            rounds += 1
            assert rounds < 1000, "a request never ends"
        assert self.engine.drain(5)
        stats = self.engine.stats()
        assert stats["free_pages"] == PAGES and stats["running"] == stats["waiting"] == 0
        self.engine.close()

    def _allow(self, number: int) -> None:
        self.engine.allow(number, np.ones(VOCABULARY, np.bool_))


def _settings(examples: int) -> settings:
    slow = [HealthCheck.too_slow]
    return settings(
        max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=slow
    )


class TestEngine(EngineMachine.TestCase):
    settings = _settings(10)


@pytest.mark.long
class TestEngineForLong(EngineMachine.TestCase):
    settings = _settings(1000)

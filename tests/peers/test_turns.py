"""Taking turns: processes that answer, fail or print, and differences between outputs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from npusim.errors import Error
from npusim.peers.process import Process
from npusim.peers.turns import Standing, relative_difference, take_turns

INF, NAN = float("inf"), float("nan")


def _command(body: str) -> list[str]:
    """What starts a process whose `load` is `body`."""
    lines = "\n".join("    " + line for line in body.splitlines())
    text = f"from npusim.peers.process import answer\ndef load():\n{lines}\nanswer(load)\n"
    return [sys.executable, "-c", text]


def test_a_process_answers_whatever_it_prints() -> None:
    body = "import os\nprint('{noise}')\nos.system('echo more')\n"
    body += "return {'load_s': 1.0}, lambda request: {'seconds': [float(len(request))]}"
    with Process("noisy", _command(body)) as one:
        assert one.facts == {"load_s": 1.0}
        assert one.ask("burst") == {"seconds": [5.0]}
        assert take_turns([one], 2) == {"noisy": ((5.0,), (5.0,))}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('no such layer\\nmore')", "no such layer"),
        ("raise MemoryError", "MemoryError"),
        ("import os\nos._exit(7)", "ended with 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "ended with -9"),
        ("import os, sys\nprint('out of luck', file=sys.stderr, flush=True)\nos._exit(1)", "luck"),
    ],
)
def test_a_process_that_cannot_load_says_why(body: str, said: str) -> None:
    with pytest.raises(Error, match=said):
        Process("peer", _command(body))


def test_a_process_that_ends_in_the_middle_says_so() -> None:
    body = "import os\nreturn {}, lambda request: os._exit(3)"
    with Process("peer", _command(body)) as one:
        with pytest.raises(Error, match="peer ended with 3"):
            one.ask("burst")
        with pytest.raises(Error, match="peer ended with 3"):
            one.ask("burst")


def test_ratios_are_of_the_same_round() -> None:
    mine = Standing("a", seconds=((2.0, 4.0, 3.0), (10.0,)))
    theirs = Standing("b", seconds=((1.0,), (20.0, 20.0)))
    assert mine.ratios(theirs) == [3.0, 0.5]
    assert mine.calls == [2.0, 4.0, 3.0, 10.0]


@pytest.mark.parametrize(
    ("got", "wanted", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([INF, NAN, -INF], [INF, NAN, -INF], 0.0),
        ([INF, 1.0], [INF, 2.0], 0.5),
        ([0.0], [0.0], 0.0),
        ([1.0], [0.0], INF),
        ([], [], 0.0),
        ([INF], [1.0], NAN),
        ([1.0], [NAN], NAN),
        ([1.0], [1.0, 1.0], NAN),
    ],
)
def test_differences(got: Sequence[float], wanted: Sequence[float], difference: float) -> None:
    found = relative_difference(np.array(got), np.array(wanted))
    assert found == difference or (math.isnan(found) and math.isnan(difference))

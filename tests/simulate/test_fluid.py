"""Why DRAM's rate is shared in order and not as a fluid: a fluid makes faster machines slower.

Both ways to share it as plainly as they can be said, in fractions: DMA channels take their copies
in order, a copy begins when those that it waits for have ended, and none before the one issued
before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

import pytest

Number = Fraction | int


@dataclass(frozen=True)
class Copy:
    """Bytes that pass a channel, at most at its own rate, after others and what they are for.

    Attributes:
        after: numbers of earlier copies, each with the time of what is computed between.
    """

    nbytes: Number
    most: Number
    channel: int
    after: tuple[tuple[int, Number], ...] = ()


def begin(copies: list[Copy], at: int, begins: list[Fraction], ends: list[Fraction]) -> Fraction:
    """When a copy begins, whose earlier ones are known."""
    copy = copies[at]
    waits = [ends[other] + computed for other, computed in copy.after]
    waits += [ends[other] for other in range(at) if copies[other].channel == copy.channel]
    return max([Fraction(0), *begins[:at], *waits])


def queue(copies: list[Copy], rate: Number) -> list[Fraction]:
    """When copies end that pass in the order in which they are issued, as the model has it."""
    begins: list[Fraction] = []
    ends: list[Fraction] = []
    served = Fraction(0)
    for at, copy in enumerate(copies):
        begins.append(begin(copies, at, begins, ends))
        served = max(served, begins[at]) + Fraction(copy.nbytes) / rate
        ends.append(max(begins[at] + Fraction(copy.nbytes) / copy.most, served))
    return ends


def shares(most: dict[int, Number], rate: Number) -> dict[int, Fraction]:
    """Max-min fair shares: as much for each, but no more than it takes."""
    left, found = Fraction(rate), {}
    for many, (at, own) in enumerate(sorted(most.items(), key=lambda item: item[1])):
        found[at] = min(Fraction(own), left / (len(most) - many))
        left -= found[at]
    return found


def fluid(copies: list[Copy], rate: Number) -> list[Fraction]:
    """When copies end that share the rate fairly at every instant."""
    never = Fraction(10**9)
    ends = [never for _ in copies]
    left = [Fraction(copy.nbytes) for copy in copies]
    now = Fraction(0)
    while never in ends:
        begins: list[Fraction] = []
        for at in range(len(copies)):
            begins.append(begin(copies, at, begins, ends))
        active = {
            at: copies[at].most
            for at in range(len(copies))
            if begins[at] <= now and ends[at] == never
        }
        got = shares(active, rate)
        ahead = [now + left[at] / got[at] for at in active]
        ahead += [start for start in begins if now < start < never]
        following = min(ahead)
        for at in active:
            left[at] -= got[at] * (following - now)
            if not left[at]:
                ends[at] = following
        now = following
    return ends


# One copy takes 3/4 byte a cycle at most. Beside it another takes the rest; when that one has
# ended, three more begin: the operands of the next tile and a result. More bandwidth ends it
# sooner, so that the three are there before the first copy has ended, and leave it less than 3/4.
CROWD = [
    Copy(3, Fraction(3, 4), 0),
    Copy(5, 9, 1),
    *(Copy(4, 9, channel, ((1, 0),)) for channel in (1, 2, 3)),
]


def test_more_bandwidth_makes_a_copy_of_a_fluid_later() -> None:
    slow, fast = fluid(CROWD, 2), fluid(CROWD, Fraction(5, 2))
    assert slow[0] == slow[1] == 4
    assert fast[1] == Fraction(20, 7) and fast[0] == Fraction(148, 35) > slow[0]
    # What is computed of it for long makes the whole run slower by as much.
    computed = 100
    assert max(*slow, slow[0] + computed) < max(*fast, fast[0] + computed)


def test_so_does_a_faster_channel_of_another_copy() -> None:
    pair = lambda most: [Copy(4, 1, 0), Copy(4, most, 1)]  # noqa: E731
    slow, fast = (fluid(pair(most), Fraction(3, 2)) for most in (Fraction(1, 2), 1))
    assert slow[0] == 4 < fast[0]


@pytest.mark.parametrize("seed", range(3))
def test_in_order_nothing_that_is_faster_makes_anything_later(seed: int) -> None:
    draw = random.Random(seed)
    slower = 0
    for _ in range(60):
        copies = []
        for at in range(draw.randint(2, 7)):
            others = draw.sample(range(at), draw.randint(0, min(2, at)))
            after = tuple((other, draw.randint(0, 3)) for other in others)
            most = Fraction(draw.randint(1, 8), 4)
            copies.append(Copy(draw.randint(1, 9), most, draw.randint(0, 3), after))
        rate = Fraction(draw.randint(2, 12), 4)
        more = rate * Fraction(draw.randint(5, 8), 4)
        assert all(a >= b for a, b in zip(queue(copies, rate), queue(copies, more), strict=True))
        faster = [Copy(c.nbytes, 2 * c.most, c.channel, c.after) for c in copies]
        assert all(a >= b for a, b in zip(queue(copies, rate), queue(faster, rate), strict=True))
        pairs = zip(fluid(copies, rate), fluid(faster, rate), strict=True)
        slower += any(a < b for a, b in pairs)
    assert slower  # of a fluid


def test_a_copy_alone_takes_the_same_in_both() -> None:
    for most in (Fraction(1, 2), 3):
        alone = [Copy(6, most, 0)]
        assert fluid(alone, 2) == queue(alone, 2) == [max(Fraction(6) / most, Fraction(3))]

"""Times in whole ticks, and what each tick is due to: the parts sum to the whole exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CAUSES = ("compute", "vector", "bank", "dram", "noc", "dma", "dispatch", "dependency")
Causes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Event:
    """What a unit does from tick `start` to tick `end`, counted from its command's begin.

    Attributes:
        busy: ticks in which it is at work, of several times in a row, `count` of them.
    """

    lane: str
    start: int
    end: int
    busy: int
    count: int = 1

    def later(self, ticks: int) -> Event:
        """Returns the same, so many ticks later."""
        return Event(self.lane, self.start + ticks, self.end + ticks, self.busy, self.count)


@dataclass(frozen=True, slots=True)
class Timed:
    """A command on a machine.

    Attributes:
        start: tick of the run at which it begins, its dispatch included.
        ticks: until the next one may begin.
        causes: of these ticks, by `CAUSES`; what is not there is 0.
        dram_bytes, sram_bytes: that it moves.
        energy: joules by part, without what passes at rest.
        events: of its units, neighbours as one where there are many; all together `units`.
    """

    start: int
    ticks: int
    causes: Causes
    dram_bytes: int
    sram_bytes: int
    energy: Mapping[str, float] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    units: int = 0


@dataclass(frozen=True, slots=True)
class Walked:
    """All commands of a run.

    Attributes:
        rate: ticks a second.
        call: ticks before the first command, which are dispatch.
        commands: in order.
    """

    rate: float
    call: int
    commands: tuple[Timed, ...]

    @property
    def ticks(self) -> int:
        """Of the whole run."""
        return self.call + sum(one.ticks for one in self.commands)

    @property
    def causes(self) -> dict[str, int]:
        """Ticks of the run by cause; they sum to `ticks`."""
        found = dict.fromkeys(CAUSES, 0)
        found["dispatch"] = self.call
        for one in self.commands:
            for cause, ticks in one.causes.items():
                found[cause] += ticks
        return found


def add(*parts: Causes) -> dict[str, int]:
    """Returns the sum of times by cause."""
    found: dict[str, int] = {}
    for part in parts:
        for cause, ticks in part.items():
            if ticks:
                found[cause] = found.get(cause, 0) + ticks
    return found

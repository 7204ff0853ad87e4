"""How commands reach a described machine, one class a mode; times are ticks.

From one program: *loose*, the host rings a doorbell for each command and reads a register until it
has ended; *tight*, commands wait in a queue that the host fills ahead. No command of a tight run
begins later than in a loose one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque

from npusim.errors import Error
from npusim.targets.hardware import Dispatch

MODES = ("loose", "tight")


class Commands(ABC):
    """The commands of a run, started one after another.

    Args:
        dispatch: of the machine.
        cycle, ns: ticks of a cycle and of a nanosecond.
        start: tick from which on the host starts commands.
    """

    def __init__(self, dispatch: Dispatch, cycle: int, ns: float, start: int) -> None:
        self.overhead = math.ceil(dispatch.overhead_ns * ns)
        self.issue = dispatch.issue_cycles * cycle
        self.doorbell = dispatch.doorbell_cycles * cycle
        self.poll = dispatch.poll_cycles * cycle
        self.depth = dispatch.queue_depth

    @abstractmethod
    def begin(self, now: int) -> int:
        """Returns when the machine begins with the next command, which may not be before `now`."""

    @abstractmethod
    def end(self, begun: int, ended: int) -> int:
        """Returns from when on the next command may begin."""


class Loose(Commands):
    """A doorbell and polling for each command."""

    def begin(self, now: int) -> int:
        """After the host's overhead, the doorbell, and taking the command."""
        return now + self.overhead + self.doorbell + self.issue

    def end(self, begun: int, ended: int) -> int:
        """After the first read of the register that begins when the command has ended."""
        if not self.poll:
            return ended
        return begun + (-(-(ended - begun) // self.poll) + 1) * self.poll


class Tight(Commands):
    """A queue, which the host fills while it has room."""

    def __init__(self, dispatch: Dispatch, cycle: int, ns: float, start: int) -> None:
        super().__init__(dispatch, cycle, ns, start)
        self.queued = start  # when the host has put the last command there
        self.ends: deque[int] = deque(maxlen=self.depth)

    def begin(self, now: int) -> int:
        """When the command has reached the queue, the one before has ended, and it is taken."""
        room = self.ends[0] if len(self.ends) == self.depth else 0
        self.queued = max(self.queued, room) + self.overhead
        return max(now, self.queued) + self.issue

    def end(self, begun: int, ended: int) -> int:
        """At once."""
        self.ends.append(ended)
        return ended


def commands_of(mode: str, dispatch: Dispatch, cycle: int, ns: float, start: int) -> Commands:
    """Returns how commands are started in a mode.

    Raises:
        Error: there is no such mode.
    """
    kinds: dict[str, type[Commands]] = {"loose": Loose, "tight": Tight}
    if mode not in kinds:
        raise Error(f"There is no mode '{mode}'.", hint=f"Choose from: {', '.join(MODES)}.")
    return kinds[mode](dispatch, cycle, ns, start)

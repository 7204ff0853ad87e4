"""Profile: the times of a method's commands, beside what each moves and computes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from npusim.abi.kernels import Params
from npusim.profile.reuse import Reuse

KEYS = ("op", "kernel", "command", "module")


@dataclass(frozen=True, slots=True)
class CommandProfile:
    """One command: where it comes from, what it costs, how long it took.

    Attributes:
        index: its place in the method.
        kernel: the stem of its kernel.
        library: what computes it instead, with its version; empty where the kernel does.
        node, op: the graph node it computes, and that node's operator.
        module: the path of the model's module that the node came from; may be empty.
        source: file and line of the model's code; may be empty.
        bytes_read, bytes_written: of its operands, at least; `npusim.abi.kernel_cost` says how it
            counts.
        operations: of arithmetic, by the kernel's definition.
        seconds: the median of its times.
        params: its kernel's fields (`npusim.abi.KERNELS`) that are not 0, at the sizes that ran.
        reuse: what it finds in caches; None: unknown.
    """

    index: int
    kernel: str
    library: str
    node: str
    op: str
    module: str
    source: str
    bytes_read: int
    bytes_written: int
    operations: int
    seconds: float
    params: Params = field(default_factory=dict, hash=False)
    reuse: Reuse | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Commands that share a name: how many, their time in seconds, their bytes and operations."""

    name: str
    count: int
    seconds: float
    bytes: int
    operations: int

    @property
    def bytes_per_second(self) -> float:
        """The rate at which their operands were read and written; 0 where no time was seen."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def operations_per_second(self) -> float:
        """The rate at which they computed; 0 where no time was seen."""
        return self.operations / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Profile:
    """The profile of one method.

    Attributes:
        model, method: what ran.
        target, device: for which target it was compiled, and where it ran (the description).
        context: tokens before the run, for a language model; 0 for others.
        repeats: how often everything was timed.
        commands: in order.
        run_seconds: the median time of a whole run that nobody observes.
        limits: what the device was seen to reach: bytes a second under "read", operations a second
            under dtypes. Empty where that was not measured.
    """

    model: str
    method: str
    target: str
    device: str
    context: int
    repeats: int
    commands: tuple[CommandProfile, ...]
    run_seconds: float
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def commands_seconds(self) -> float:
        """The sum over the commands. Not what a run takes: each was timed by itself."""
        return sum(command.seconds for command in self.commands)

    def groups(self, by: str = "op") -> list[Group]:
        """Returns the commands in groups, those that take longest first.

        Args:
            by: "op", "kernel", "command" (each by itself), or "module": the module's path, with
                `*` for the numbers in it, so that a model's layers fall together.

        Raises:
            ValueError: none of these.
        """
        groups = (_group(name, commands) for name, commands in self._by(by).items())
        return sorted(groups, key=lambda group: -group.seconds)

    def commands_of(self, name: str, by: str = "op") -> list[CommandProfile]:
        """Returns the commands of a group, by its name; ValueError and KeyError: no such group."""
        return self._by(by)[name]

    def _by(self, by: str) -> dict[str, list[CommandProfile]]:
        if by not in KEYS:
            raise ValueError(f"{by!r} is none of {', '.join(KEYS)}")
        found: dict[str, list[CommandProfile]] = {}
        for command in self.commands:
            found.setdefault(_NAMES[by](command), []).append(command)
        return found

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a Chrome trace, which ui.perfetto.dev opens; whole or not at all.

        Raises:
            Error: the file cannot be written.
        """
        from npusim.profile.trace import save_trace

        save_trace(self, path)

    def save_roofline(self, path: str | os.PathLike[str]) -> None:
        """Writes the commands under the roofs of the machine, as .svg, .png or a page, .html.

        Raises:
            Error: another ending, no limits, resvg-py is not installed (.png), or the file cannot
                be written.
        """
        from npusim.profile.roofline import save_roofline

        save_roofline(self, path)


def _group(name: str, commands: Iterable[CommandProfile]) -> Group:
    rows = [(c.seconds, c.bytes_read + c.bytes_written, c.operations) for c in commands]
    seconds, sizes, operations = zip(*rows, strict=True)
    return Group(name, len(rows), sum(seconds), sum(sizes), sum(operations))


def _command_name(command: CommandProfile) -> str:
    return f"{command.index} {command.node}"


def _module_name(command: CommandProfile) -> str:
    return re.sub(r"\b\d+\b", "*", command.module) or "(none)"


_NAMES: dict[str, Callable[[CommandProfile], str]] = {
    "op": lambda command: command.op,
    "kernel": lambda command: command.kernel,
    "command": _command_name,
    "module": _module_name,
}

"""Options of verbs that run a program: where, with how much, and whose weights."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

import npusim

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_BYTES = re.compile(r"([1-9][0-9]{0,17})([KMGT]?)(?:i?B)?", re.IGNORECASE)


class ByteCount(click.ParamType):
    """A number of bytes such as 4096, 512M or 2GiB; units are powers of 1024."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the number; a usage error for anything else."""
        found = _BYTES.fullmatch(str(value))
        count = int(found[1]) * _UNITS[found[2].upper()] if found else 0
        if not 0 < count < 1 << 63:
            self.fail(f"{value!r} is no number of bytes, such as 4096, 512M or 2G.", param, ctx)
        return count


@dataclass(frozen=True)
class Running:
    """How a verb runs a program.

    Attributes:
        device: the name of a device; None: the program's own.
        threads: workers of a cpu device; None: one a core.
        max_work: the most steps that a method may take; None: any number.
        max_memory: the most bytes that a program may declare; None: any number.
        copy_weights: whether nothing is used where it lies in the checkpoint.
    """

    device: str | None
    threads: int | None
    max_work: int | None
    max_memory: int | None
    copy_weights: bool

    def open(self, default: str) -> npusim.Device:
        """Returns the device that was asked for, or the default one, with its limits."""
        return npusim.Device(
            self.device or default,
            threads=self.threads,
            max_work=self.max_work,
            max_memory=self.max_memory,
        )


_OPTIONS = (
    click.option("--device", help="Default: the device of the program's target."),
    click.option("--threads", type=click.IntRange(min=1), help="Default: one a core."),
    click.option(
        "--max-work",
        type=click.IntRange(min=1),
        metavar="STEPS",
        help="Refuse a program of which a method takes more on the cpu; `npusim info` counts them.",
    ),
    click.option(
        "--max-memory",
        type=ByteCount(),
        metavar="BYTES",
        help="Refuse a program that declares more, such as 512M; `npusim info` counts them.",
    ),
    click.option(
        "--copy-weights",
        is_flag=True,
        help="Do not depend on the checkpoint while the program runs.",
    ),
)
_NAMES = ("device", "threads", "max_work", "max_memory", "copy_weights")


def running_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a verb, which gets them together as `running`."""

    @functools.wraps(verb)
    def gathered(**given: Any) -> Any:
        return verb(running=Running(*(given.pop(name) for name in _NAMES)), **given)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered

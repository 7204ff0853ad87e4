"""Progress of long work, on a terminal only. Owns nothing that a verb's answer depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Report = Callable[..., None]


@contextmanager
def progress(title: str) -> Iterator[Report]:
    """Shows what is going on on stderr while the block runs; silent where that is no terminal.

    Yields `report(stage, done=None, total=None)`: the stage's name, and how far the whole is.
    """
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        task = bars.add_task(title, total=None)

        def report(stage: str, done: int | None = None, total: int | None = None) -> None:
            description = f"{title}: {stage}"
            bars.update(task, description=description, completed=done or 0, total=total or None)

        yield report

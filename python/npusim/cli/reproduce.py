"""`npusim reproduce`: does the failure of a repro folder still happen?"""

from __future__ import annotations

from pathlib import Path

import click

from npusim.cli.answer import Answer, Verb
from npusim.cli.factory import require_torch
from npusim.cli.progress import progress


@click.command(cls=Verb)
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def reproduce(folder: Path) -> Answer:
    """Run what `npusim reduce` left in a folder. The answer is no while it fails."""
    require_torch()
    from npusim.verify.reduce import run_isolated
    from npusim.verify.repro import Repro

    with progress("Reproducing"):
        failure = run_isolated(Repro.load(folder))
    if failure is None:
        return Answer({"failure": None}, [f"{folder}: does not fail here"])
    data = {"failure": {"kind": failure.kind, "message": failure.message}}
    return Answer(data, [f"{folder}: fails ({failure.kind})", failure.message], ok=False)

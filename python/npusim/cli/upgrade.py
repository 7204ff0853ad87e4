"""`npusim upgrade`: older files are rewritten in the form of this npusim."""

from __future__ import annotations

from pathlib import Path

import click

from npusim.cli.answer import Answer, Verb
from npusim.cli.artifact import readable
from npusim.errors import Error
from npusim.files import write_atomic
from npusim.upgrade import Upgrade
from npusim.upgrade import upgrade as upgraded


@click.command("upgrade", cls=Verb)
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Of one file; default: in its place."
)
def upgrade(files: tuple[Path, ...], output: Path | None) -> Answer:
    """Rewrite older graphs, programs and plans in the form of this npusim, all or none."""
    if output is not None and len(files) != 1:
        raise Error("-o names one output, and there are several files.", hint="Leave it out.")
    rows, lines = [], []
    for path in files:
        before, made = _read(path, in_place=output is None)
        changed = made.content != before
        if changed or output is not None:
            write_atomic(output or path, made.content)
        rows.append(
            {
                "path": str(output or path),
                "kind": made.kind,
                "changed": changed,
                "compiled": list(made.compiled),
            }
        )
        lines.append(f"{output or path}: {made.kind}, {_said(made, changed)}")
    return Answer({"files": rows}, lines)


def _read(path: Path, *, in_place: bool) -> tuple[bytes, Upgrade]:
    """Returns what a file holds, and what it is to hold; errors begin with its name."""
    before = readable(path, kept=not in_place).read_bytes()
    try:
        return before, upgraded(before)
    except Error as error:
        raise type(error)(f"{path}: {error}") from error


def _said(made: Upgrade, changed: bool) -> str:
    if not changed:
        return "current"
    if not made.compiled:
        return "rewritten"
    return f"compiled again for {', '.join(made.compiled)}; sums may round in another order"

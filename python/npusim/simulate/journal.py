"""The finished rows of a sweep while it goes on: one that was stopped begins where it was.

A file of lines of JSON beside the table: first which sweep it is of, then a row each, written as
soon as it is known. A last line that was not written whole is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from npusim.errors import Error
from npusim.files import write_atomic
from npusim.partition.plan import PartitionPlan
from npusim.partition.plan_file import write_plan
from npusim.program.program import CompiledProgram
from npusim.targets import TargetConfig
from npusim.targets.override import file_data
from npusim.version import __version__

if TYPE_CHECKING:
    from npusim.simulate.sweep import Row

SCHEMA = "npusim-sweep/1"


def identity(
    program: CompiledProgram | PartitionPlan,
    target: TargetConfig,
    combined: Sequence[Mapping[str, str]],
    asked: Mapping[str, Any],
) -> str:
    """Returns what two sweeps have in common that find the same rows: a digest, in hexadecimal."""
    told = [__version__, file_data(target), list(map(dict, combined)), dict(asked)]
    text = json.dumps(told, sort_keys=True, default=repr)
    image = program.to_bytes() if isinstance(program, CompiledProgram) else write_plan(program)
    return sha256(image + text.encode()).hexdigest()


class Journal:
    """Rows in a file, in the order of the sweep; used with `with`, which deletes it at the end.

    It stays where the sweep is stopped, by an error or by a person.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self._identity = path, identity
        self._file: IO[str] | None = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
        if kind is None:
            self.path.unlink(missing_ok=True)

    def rows(self, combined: Sequence[Mapping[str, str]]) -> list[Row]:
        """Returns the rows that were found before, the first ones of the sweep.

        Raises:
            Error: the file is of another sweep, or is none of a sweep.
        """
        from npusim.simulate.sweep import Row

        lines = self._lines()
        if not lines:
            return []
        if not isinstance(lines[0], dict) or lines[0].get("schema") != SCHEMA:
            raise Error(
                f"'{self.path}' holds no rows of a sweep.",
                hint="Move it away, or write the table to another place.",
            )
        if lines[0].get("identity") != self._identity:
            raise Error(
                f"'{self.path}' holds the rows of another sweep that was stopped: another program, "
                "target, setting or version.",
                hint="Delete it to start anew, or write the table to another place.",
            )
        try:
            rows = [Row(**line) for line in lines[1:]]
        except TypeError as error:
            raise self._damaged() from error
        if [dict(row.settings) for row in rows] != [dict(c) for c in combined[: len(rows)]]:
            raise self._damaged()
        return rows

    def add(self, row: Row) -> None:
        """Keeps a row, behind those that are there."""
        if self._file is None:
            whole = self._whole()
            first = json.dumps({"schema": SCHEMA, "identity": self._identity})
            write_atomic(self.path, "".join(f"{line}\n" for line in whole or [first]).encode())
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(json.dumps(asdict(row)) + "\n")
        self._file.flush()

    def _whole(self) -> list[str]:
        """Returns the lines that were written whole."""
        if not self.path.exists():
            return []
        try:
            return self.path.read_text(encoding="utf-8").split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise Error(f"'{self.path}' is no text.", hint="Move it away.") from error

    def _lines(self) -> list[Any]:
        try:
            return [json.loads(line) for line in self._whole()]
        except ValueError as error:
            raise self._damaged() from error

    def _damaged(self) -> Error:
        return Error(f"'{self.path}' is damaged.", hint="Delete it to start anew.")

"""`python -m tests.zoo`: runs the zoo, prints a line an entry, and writes docs/models.md.

With names it runs only those and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path

from tests.zoo import ENTRIES, table
from tests.zoo.measure import Row, measure


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help="entries, or families; by default all")
    parser.add_argument(
        "--rows", type=Path, help="a file that keeps finished rows; what it has is not run again"
    )
    args = parser.parse_args()
    names = [n for n, e in ENTRIES.items() if not args.names or {n, e.family} & set(args.names)]
    rows = _kept(args.rows) if args.rows else {}
    for row in _measured([name for name in names if name not in rows]):
        rows[row.name] = row
        if args.rows:
            with args.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    if not args.names:
        page = table.render([rows[name] for name in ENTRIES])
        table.PATH.write_text(page, encoding="utf-8")
    return 0


def _measured(names: Sequence[str]) -> Iterator[Row]:
    """Measures entries in a process of their own, so that a crash is one row's."""
    pool = ProcessPoolExecutor(1)
    for name in names:
        try:
            row = pool.submit(_measure, name).result()
        except BrokenProcessPool:
            pool = ProcessPoolExecutor(1)
            row = Row(name, ENTRIES[name].family, problem="the process died")
        except Exception as error:  # a defect of npusim's or of the entry's: it has a row too
            row = Row(name, ENTRIES[name].family, problem=f"{type(error).__name__}: {error}")
        print(_short(row), flush=True)
        yield row


def _measure(name: str) -> Row:
    return measure(ENTRIES[name])


def _short(row: Row) -> str:
    others = " ".join(f"{count}x{op}" for op, count in row.fallback)
    error = "-" if row.error is None else f"{row.error:.1e}"
    share = f"{row.native}/{row.nodes}"
    text = f"{row.name:26} {table.outcome(row):8} {share:>9} {error:>8} {row.seconds:5.1f} s"
    return f"{text} {others} {row.problem}".rstrip()


def _kept(path: Path) -> dict[str, Row]:
    """Returns the rows of a file, by name; none when there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {row.name: row for row in map(_row, lines)}


def _row(line: str) -> Row:
    fields = json.loads(line)
    fields["fallback"] = tuple((op, count) for op, count in fields["fallback"])
    return Row(**fields)


if __name__ == "__main__":
    sys.exit(main())

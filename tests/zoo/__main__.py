"""`python -m tests.zoo`: runs the zoo, prints a line an entry, and writes docs/models.md.

With `--dynamic` it opens batches and lengths, and writes docs/dynamic-models.md. With `--decoders`
it generates with every decoder of transformers, and writes that section of docs/models.md. With
names it runs only those and writes nothing. With `--served` it runs decoders as servers do, in
steps of many requests, prints a line each, and ends with 1 where one differs.
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
from typing import Any

from tests.zoo import ENTRIES, decoder_table, decoders, dynamic, dynamic_table, serving, table
from tests.zoo.decoding import DTYPES
from tests.zoo.measure import Row, measure

AnyRow = Row | dynamic.Row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help="entries, or families; by default all")
    parser.add_argument(
        "--rows", type=Path, help="a file that keeps finished rows; what it has is not run again"
    )
    parser.add_argument("--dynamic", action="store_true", help="open batches and lengths")
    parser.add_argument(
        "--decoders", action="store_true", help="generate with all decoders of transformers"
    )
    parser.add_argument("--served", action="store_true", help="run decoders in steps")
    parser.add_argument(
        "--dtype", action="append", choices=DTYPES, help="of decoders; by default all"
    )
    args = parser.parse_args()
    if args.decoders:
        return decoders.run(args.names, args.rows, args.dtype or tuple(DTYPES))
    if args.served:
        return serving.run(args.names, args.dtype or ("float32",))
    kind: type[AnyRow] = dynamic.Row if args.dynamic else Row
    every = list(dynamic.NAMES if args.dynamic else ENTRIES)
    names = [n for n in every if not args.names or {n, ENTRIES[n].family} & set(args.names)]
    rows = _kept(args.rows, kind) if args.rows else {}
    for row in _measured([name for name in names if name not in rows], kind):
        rows[row.name] = row
        if args.rows:
            with args.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    if not args.names:
        page = dynamic_table if args.dynamic else table
        text = page.render([rows[name] for name in every])
        if page is table:
            text = decoder_table.put(text, decoder_table.section(table.PATH.read_text("utf-8")))
        page.PATH.write_text(text, encoding="utf-8")
    return 0


def _measured(names: Sequence[str], kind: type[AnyRow]) -> Iterator[Any]:
    """Measures entries in a process of their own, so that a crash is one row's."""
    pool = ProcessPoolExecutor(1)
    for name in names:
        try:
            row = pool.submit(_measure, name, kind).result()
        except BrokenProcessPool:
            pool = ProcessPoolExecutor(1)
            row = kind(name, ENTRIES[name].family, problem="the process died")
        except Exception as error:  # a defect of npusim's or of the entry's: it has a row too
            row = kind(name, ENTRIES[name].family, problem=f"{type(error).__name__}: {error}")
        print(_short(row), flush=True)
        yield row


def _measure(name: str, kind: type[AnyRow]) -> AnyRow:
    return (measure if kind is Row else dynamic.measure)(ENTRIES[name])


def _short(row: AnyRow) -> str:
    error = "-" if row.error is None else f"{row.error:.1e}"
    if isinstance(row, dynamic.Row):
        result, sizes = dynamic_table.outcome(row), " ".join(row.sizes)
        text = f"{row.name:26} {result:8} {sizes:16} {error:>8} {row.seconds:5.1f} s"
        return f"{text} {len(row.skipped) or ''} {row.problem}".rstrip()
    others = " ".join(f"{count}x{op}" for op, count in row.fallback)
    share = f"{row.native}/{row.nodes}"
    text = f"{row.name:26} {table.outcome(row):8} {share:>9} {error:>8} {row.seconds:5.1f} s"
    return f"{text} {others} {row.problem}".rstrip()


def _kept(path: Path, kind: type[AnyRow]) -> dict[str, Any]:
    """Returns the rows of a file, by name; none when there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {row.name: row for row in (_row(line, kind) for line in lines)}


def _row(line: str, kind: type[AnyRow]) -> AnyRow:
    fields = {key: _tuples(value) for key, value in json.loads(line).items()}
    return kind(**fields)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())

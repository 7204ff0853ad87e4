"""`python -m tests.zoo [names]`: runs the zoo, prints a line an entry, and writes docs/models.md."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tests.zoo import ENTRIES
from tests.zoo.measure import Row, measure


def _measure(name: str) -> Row:
    return measure(ENTRIES[name])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-k", default="")
    args = parser.parse_args()
    names = args.names or [n for n, e in ENTRIES.items() if args.k in (e.family, n, "")]
    pool = ProcessPoolExecutor(1)
    for name in names:
        try:
            row = pool.submit(_measure, name).result()
        except BrokenProcessPool:
            pool = ProcessPoolExecutor(1)
            print(name, "CRASH", flush=True)
            continue
        except Exception as e:
            print(name, "BUILD", type(e).__name__, str(e)[:300].replace("\n", " "), flush=True)
            continue
        fb = " ".join(f"{n}x{o}" for o, n in row.fallback)
        print(
            f"{name:22} {row.native}/{row.nodes} err={row.error if row.error is None else format(row.error, '.1e')} {row.seconds:.1f}s exp={row.exportable} {fb} {row.problem[:600]}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.soak`: runs everything and prints the table of docs/reliability.md."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

from tests.soak import inside, served, verbs

PARTS = ("inside", "served", "verbs")
FLAT_KIB = 4096  # growth within the noise of allocators


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the counts")
    parser.add_argument("--only", default="", help="sections whose name has this")
    parser.add_argument("--part", choices=PARTS, help="one of them alone")
    args = parser.parse_args()
    failed = False
    start = time.monotonic()
    print("| What | Times | Memory grew by | Seconds |\n|---|---|---|---|")
    sections = [
        part.run(args.scale, args.only)
        for name, part in (("inside", inside), ("served", served))
        if args.part in (None, name)
    ]
    for name, count, growth in itertools.chain(*sections):
        failed |= growth > FLAT_KIB
        print(
            f"| {name} | {count:,} | {growth:,} KiB | {time.monotonic() - start:.0f} |", flush=True
        )
        start = time.monotonic()
    if args.part in (None, "verbs"):
        print("\n| Condition | Runs of verbs | Faults | Seconds |\n|---|---|---|---|")
        with tempfile.TemporaryDirectory() as folder:
            for name, count, problems in verbs.run(args.scale, args.only, Path(folder)):
                failed |= bool(problems)
                seconds = time.monotonic() - start
                print(f"| {name} | {count} | {len(problems)} | {seconds:.0f} |", flush=True)
                print("\n".join(f"    {p}" for p in problems), file=sys.stderr, flush=True)
                start = time.monotonic()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

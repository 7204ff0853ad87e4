"""`python -m tests.fuzz TARGET --runs N`: the long runs; docs/fuzzing.md has what they found.

Every seed makes one file. A seed that crashes the process stands last in the file of `--log`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
import warnings
from collections import Counter
from pathlib import Path

from tests.fuzz.harness import TARGETS, Finding, trial


def main() -> int:
    """Runs a target and prints counts; returns 1 when there was a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--log", type=Path, help="where the seed under way is written down")
    parser.add_argument("--trace", action="store_true", help="show where findings come from")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.runs):
        if options.log is not None:
            options.log.write_text(f"{options.target} {seed}\n")
        try:
            counts[trial(TARGETS[options.target], seed)] += 1
        except Finding as finding:
            counts["findings"] += 1
            kind = _kind(finding)
            kinds[kind] += 1
            if kinds[kind] <= 3:
                print(finding, "|", kind, file=sys.stderr, flush=True)
                if options.trace:
                    traceback.print_exception(finding.__cause__)
    print(options.target, dict(counts))
    for kind, count in kinds.most_common():
        print(f"{count:6} {kind}")
    return 1 if kinds else 0


def _kind(finding: Finding) -> str:
    """Returns what findings of one cause share: the line of npusim that an error came from."""
    cause = finding.__cause__
    if cause is None:
        return "results" if "not" in str(finding) else "time"
    frames = [f for f in traceback.extract_tb(cause.__traceback__) if "/npusim/" in f.filename]
    where = f"{frames[-1].filename.rpartition('/npusim/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(cause).__name__} {where}"


if __name__ == "__main__":
    sys.exit(main())

"""Runs a repro folder: `python -m npusim.verify.reproduce FOLDER`, for a process of its own.

Prints the kind of the failure, the outputs that differ, and the message; nothing when all is well.
"""

from __future__ import annotations

import sys

from npusim.errors import Error
from npusim.verify.repro import Repro


def main() -> None:
    """Runs the folder named on the command line."""
    # Messages name files, whose names need not be text.
    reconfigure = getattr(sys.stdout, "reconfigure", lambda **_: None)
    reconfigure(encoding="utf-8", errors="replace")
    try:
        failure = Repro.load(sys.argv[1]).run()
    except Error as error:
        sys.exit(f"error: {error}")
    if failure is not None:
        print(failure.kind, " ".join(failure.outputs), failure.message, sep="\n")


if __name__ == "__main__":
    main()

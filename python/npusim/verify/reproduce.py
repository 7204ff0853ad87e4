"""Runs a repro folder: `python -m npusim.verify.reproduce FOLDER`, for a process of its own.

Prints the kind of the failure, the outputs that differ, and the message; nothing when all is well.
"""

from __future__ import annotations

import sys

from npusim.errors import Error
from npusim.verify.repro import Repro


def main() -> None:
    """Runs the folder named on the command line."""
    try:
        failure = Repro.load(sys.argv[1]).run()
    except Error as error:
        sys.exit(f"error: {error}")
    if failure is not None:
        print(failure.kind, " ".join(failure.outputs), failure.message, sep="\n")


if __name__ == "__main__":
    main()

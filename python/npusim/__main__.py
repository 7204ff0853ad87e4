"""`python -m npusim`: the `npusim` command, and `--cmake-dir` for builds of native programs.

    cmake -S . -B build -Dnpusim_DIR=$(python -m npusim --cmake-dir)

`--cmake-dir` needs nothing but the base installation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Prints the folder of CMake's package, or runs the command; returns the exit code."""
    if list(arguments) != ["--cmake-dir"]:
        from npusim.cli import main as run_command

        return run_command(arguments)
    from npusim.binding import cmake_dir
    from npusim.errors import Error

    try:
        print(cmake_dir())
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

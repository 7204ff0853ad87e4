"""The `npusim` command. Owns how verbs are found, what they print and the exit codes.

    0    yes, done
    1    the answer is no: a verification failed, predictions disagree, something needed is missing
    2    bad input: the sentence on stderr says what to change
    3    a defect of npusim itself
    130  interrupted with Ctrl-C; nothing half-written is left behind
    129, 143  stopped by SIGHUP or SIGTERM, likewise

One file a verb; this file only starts them, so that it works where the command's own
dependencies (extra `cli`) are not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_NEEDS = ("click", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code; `arguments` defaults to the process's."""
    try:
        try:
            from npusim.cli.app import run_command
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _NEEDS:
                raise
            print(
                f"error: The npusim command needs {' and '.join(_NEEDS)}: "
                "pip install 'npusim[cli]'",
                file=sys.stderr,
            )
            return 2
        return run_command(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130

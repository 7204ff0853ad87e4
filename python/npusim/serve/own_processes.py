"""How a server starts processes of its own: with this npusim, and nothing of the current folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import npusim


def command_of(module: str) -> list[str]:
    """Returns the command that runs a module of npusim."""
    return [sys.executable, "-m", module]


def environment() -> dict[str, str]:
    """Returns the environment for `command_of`.

    Python looks in the current folder first for what `-m` needs: a file there that is called as one
    of ours or of the standard library would be run. Python 3.10 cannot be told not to.
    """
    paths = (str(Path(npusim.__file__).parents[1]), os.environ.get("PYTHONPATH"))
    given = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONSAFEPATH": "1"}
    return {**os.environ, **given}

"""Running other programs, and giving up on one wheel without giving up on the others."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Failed(Exception):
    """Something that could be done here went wrong; the text is the sentence to print."""


class Missing(Exception):
    """A tool or a machine is not here; the text says which, and how to get it."""


def run(
    command: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    limit: float = 3600,
) -> str:
    """Returns what a command prints on both streams; raises `Failed` with its end."""
    words = [str(part) for part in command]
    try:
        done = subprocess.run(
            words, check=False, cwd=cwd, timeout=limit, env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Failed(f"no end after {limit:.0f} s: {' '.join(words)}") from error
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise Failed(f"exit status {done.returncode}: {' '.join(words)}\n{said[-3000:]}")
    return said

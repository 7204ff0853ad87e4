"""A peer in a process of its own, which answers requests one JSON line at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any


class Worker:
    """A running peer.

    Attributes:
        name: the peer's.
        facts: what it said once it was loaded.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.name = name
        self.facts = self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)  # type: ignore[no-any-return]
        raise RuntimeError(f"{self.name} ended without an answer")

    def ask(self, request: str) -> dict[str, Any]:
        """Sends a request and returns the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return self._read()

    def end(self) -> None:
        """Ends the process and waits until its memory is free."""
        self.process.terminate()
        self.process.wait()


def answer_requests(loaded: dict[str, Any], answer: Callable[[str], dict[str, Any]]) -> None:
    """The worker's side: says what it knows once loaded, then answers until the input ends."""
    print(json.dumps(loaded), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), flush=True)

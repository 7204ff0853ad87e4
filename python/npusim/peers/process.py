"""A runtime in a process of its own, which answers requests, one JSON line at a time.

Idle thread pools disturb nobody there, peak memory is its own, and what it prints goes elsewhere:
both sides talk over the pipes that standard input and output were when the process began.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from npusim.errors import Error, first_line


class Process:
    """A runtime's process, which has loaded its model.

    Args:
        name: of the runtime.
        command: what starts it; the program calls `answer`.

    Raises:
        Error: it ended, or could not load; says why.

    Attributes:
        name: of the runtime.
        facts: what it said once it was loaded.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (`end` closes it)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True
        )
        try:
            self.facts = self._read()
        except BaseException:
            self.end()
            raise

    def ask(self, request: str) -> dict[str, Any]:
        """Sends a request and returns the answer. Raises Error, as the class does."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # reading has the words for it
        return self._read()

    def end(self) -> None:
        """Ends the process and waits until its memory is free."""
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._stderr.seek(0)
            said = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
            raise Error(f"{self.name} ended with {code}" + (f": {said[-1]}" if said else "."))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Error(f"{self.name}: {answer['error']}")
        return answer


def answer(load: Callable[[], tuple[dict[str, Any], Callable[[str], dict[str, Any]]]]) -> None:
    """The other side: loads, says what it knows, and answers until nobody asks any more.

    Args:
        load: returns the facts, and what answers a request.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what libraries print is no answer
        try:
            facts, answered = load()
            print(json.dumps(facts), file=out, flush=True)
            for line in sys.stdin:
                print(json.dumps(answered(line.strip())), file=out, flush=True)
        except Exception as error:  # whatever a runtime raises on what it cannot run
            said = first_line(error) or type(error).__name__
            print(json.dumps({"error": said}), file=out, flush=True)

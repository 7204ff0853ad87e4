"""Chat templates under limits of time and memory.

A template is a program that came with the weights, and a conversation is what it runs on. Jinja's
sandbox keeps it from the system, not from running forever or filling the memory, so it runs in a
process of its own (`template_process.py`) that may be ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import npusim
from npusim.errors import Error
from npusim.language_model import ChatTemplate
from npusim.language_model.chat import Message

_START = 60.0  # seconds for the process to be there
_LENGTH = 8  # bytes that say how long a message is


class LimitedTemplate:
    """A chat template that runs in a process of its own, one conversation at a time.

    Args:
        template: what is rendered.
        seconds: how long one conversation may take.
        memory: bytes that rendering may take beside what the process has.
    """

    def __init__(
        self, template: ChatTemplate, *, seconds: float = 5.0, memory: int = 256 << 20
    ) -> None:
        self._setup = {"source": template.source, "special": template.special, "memory": memory}
        self._seconds = seconds
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def render(
        self, messages: Sequence[Message], *, answer: bool, variables: Mapping[str, Any]
    ) -> str:
        """Returns the conversation as one text: `ChatTemplate.render`.

        Raises:
            Error: the template refuses the conversation, or takes too much time or memory for it.
        """
        asked = {"messages": list(messages), "answer": answer, "variables": dict(variables)}
        async with self._turn:
            process = await self._started()
            try:
                told = await asyncio.wait_for(_ask(process, asked), self._seconds)
            except BaseException as error:
                self.close()  # whatever it is at, or writes later, is of this conversation
                if isinstance(error, asyncio.TimeoutError):
                    what = f"more than {self._seconds:g} s"
                elif isinstance(error, (OSError, EOFError)):
                    what = "more memory than it may"
                else:
                    raise
                raise Error(f"The chat template takes {what} for this conversation.") from None
        if "error" in told:
            raise Error(str(told["error"]))
        return str(told["text"])

    def close(self) -> None:
        """Ends the process; another one is started when it is needed."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            where = str(Path(npusim.__file__).parents[1])
            paths = [where, *filter(None, [os.environ.get("PYTHONPATH")])]
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "npusim.serve.template_process"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C is for the server, which ends it
            )
            try:
                told = await asyncio.wait_for(_ask(self._process, self._setup), _START)
            except (OSError, EOFError, asyncio.TimeoutError):
                self.close()
                raise Error("The process of the chat template cannot be started.") from None
            if "error" in told:
                self.close()
                raise Error(str(told["error"]))
        return self._process


async def _ask(process: asyncio.subprocess.Process, question: Mapping[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    content = json.dumps(question).encode()
    process.stdin.write(len(content).to_bytes(_LENGTH, "big") + content)
    await process.stdin.drain()
    length = int.from_bytes(await process.stdout.readexactly(_LENGTH), "big")
    told: dict[str, Any] = json.loads(await process.stdout.readexactly(length))
    return told

"""Chat templates under limits of time and memory.

A template is a program that came with the weights, and a conversation is what it runs on. Jinja's
sandbox keeps it from the system, not from running forever or filling the memory, and constants are
computed when it is compiled. So all of it happens in a process of its own (`template_process.py`)
that may be ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any

from npusim.errors import Error
from npusim.language_model.chat import Message
from npusim.serve.own_processes import command_of, environment

_START = 60.0  # seconds for the process to be there
_LENGTH = 8  # bytes that say how long a message is


class LimitedTemplate:
    """A chat template that runs in a process of its own, one conversation at a time.

    Args:
        source: the template's text, Jinja.
        special: tokens it may name.
        seconds: how long one conversation may take.
        memory: bytes that rendering may take beside what the process has.
    """

    def __init__(
        self,
        source: str,
        special: Mapping[str, str],
        *,
        seconds: float = 5.0,
        memory: int = 256 << 20,
    ) -> None:
        self._setup = {"source": source, "special": dict(special)}
        self._memory = memory
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
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
            told = await self._ask(process, asked, self._seconds)
        return str(told["text"])

    def close(self) -> None:
        """Ends the process; another one is started when it is needed."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # what was not sent yet
                    if pipe is not None:
                        pipe.close()

    async def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                command_of("npusim.serve.template_process"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(),
                start_new_session=True,  # Ctrl-C is for the server, which ends it
            )
            await self._ask(self._process, {"memory": self._memory}, _START)
            await self._ask(self._process, self._setup, self._seconds)
        return self._process

    async def _ask(
        self, process: subprocess.Popen[bytes], question: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        """Returns the answer to a question; without one in time, the process ends."""
        asked = asyncio.ensure_future(asyncio.to_thread(_exchange, process, question))
        try:
            told = await asyncio.wait_for(asyncio.shield(asked), seconds)
        except BaseException as error:
            process.kill()  # whatever it is at, or writes later, belongs to this question
            await asyncio.gather(asked, return_exceptions=True)
            self.close()
            if isinstance(error, asyncio.TimeoutError):
                what = f"more than {seconds:g} s"
            elif isinstance(error, (OSError, EOFError)):
                what = "more memory than it may"
            else:
                raise
            raise Error(f"The chat template takes {what} for this conversation.") from None
        if "error" in told:
            if question is self._setup:
                self.close()
            raise Error(str(told["error"]))
        return told


def _exchange(process: subprocess.Popen[bytes], question: Mapping[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    content = json.dumps(question).encode()
    process.stdin.write(len(content).to_bytes(_LENGTH, "big") + content)
    process.stdin.flush()
    length = int.from_bytes(_read(process.stdout, _LENGTH), "big")
    told: dict[str, Any] = json.loads(_read(process.stdout, length))
    return told


def _read(pipe: IO[bytes], count: int) -> bytes:
    content = pipe.read(count)
    if len(content) < count:
        raise EOFError
    return content

"""The process in which a chat template runs: `templates.py` talks to it over its pipes.

Messages are JSON behind their length in 8 bytes; the first one brings the limit of memory, the
second one the template.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from npusim.errors import Error
from npusim.language_model.chat import ChatTemplate

_LENGTH = 8


def main() -> None:
    """Answers questions until the pipe is closed."""
    template: ChatTemplate | None = None
    while (question := _read()) is not None:
        try:
            if "memory" in question:
                _limit(question["memory"])
                _write({})
                continue
            if template is None:
                template = ChatTemplate(question["source"], question["special"])
                _write({})
                continue
            text = template.render(
                question["messages"], answer=question["answer"], variables=question["variables"]
            )
            _write({"text": text})
        except MemoryError:
            _write({"error": "The chat template takes more memory than it may."})
        except (Error, RecursionError) as error:
            _write({"error": str(error)})
        except Exception as error:  # a template can raise whatever Python does
            _write({"error": f"The chat template fails: {type(error).__name__}."})


def _limit(memory: int) -> None:
    """Lets the process take `memory` bytes more than it has; where the system knows such limits."""
    try:
        import resource
        from pathlib import Path

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        most = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (ImportError, OSError, ValueError):
        return


def _read() -> dict[str, Any] | None:
    head = sys.stdin.buffer.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    question: dict[str, Any] = json.loads(sys.stdin.buffer.read(int.from_bytes(head, "big")))
    return question


def _write(told: Mapping[str, Any]) -> None:
    content = json.dumps(told).encode()
    sys.stdout.buffer.write(len(content).to_bytes(_LENGTH, "big") + content)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

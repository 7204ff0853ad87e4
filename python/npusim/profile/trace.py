"""The Chrome trace of a profile: JSON that ui.perfetto.dev and chrome://tracing open.

One track holds the commands, one after another, each with its median time; a second one the
whole run as it is when nobody observes it, for comparison.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npusim.files import write_atomic
from npusim.profile.profile import CommandProfile, Profile

_PROCESS, _COMMANDS, _RUN = 1, 1, 2


def save_trace(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Writes the trace; whole or not at all."""
    trace = {"traceEvents": list(events(profile)), "displayTimeUnit": "ns"}
    write_atomic(Path(path), json.dumps(trace, allow_nan=False).encode())


def events(profile: Profile) -> Iterator[dict[str, Any]]:
    """Yields the events of the trace; times are in microseconds."""
    title = f"{profile.model or 'program'}, method {profile.method}"
    yield _label("process_name", _COMMANDS, f"{title}, {profile.device}")
    yield _label("thread_name", _COMMANDS, "commands, each timed by itself")
    yield _label("thread_name", _RUN, "a whole run, not observed")
    start = 0.0
    for command in profile.commands:
        duration = 1e6 * command.seconds
        yield {
            **_event(command.op, start, duration, _COMMANDS),
            "cat": command.kernel,
            "args": _facts(command),
        }
        start += duration
    yield _event(title, 0.0, 1e6 * profile.run_seconds, _RUN)


def _label(kind: str, track: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": track, "args": {"name": text}}


def _event(name: str, start: float, duration: float, track: int) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": _PROCESS, "tid": track, "ts": start, "dur": duration}


def _facts(command: CommandProfile) -> dict[str, Any]:
    moved = command.bytes_read + command.bytes_written
    seconds = command.seconds
    return {
        "command": command.index,
        "kernel": command.kernel,
        "library": command.library,
        "node": command.node,
        "module": command.module,
        "source": command.source,
        "bytes read": command.bytes_read,
        "bytes written": command.bytes_written,
        "operations": command.operations,
        "GB/s": round(1e-9 * moved / seconds, 3) if seconds > 0 else 0.0,
        "TFLOP/s": round(1e-12 * command.operations / seconds, 6) if seconds > 0 else 0.0,
    }

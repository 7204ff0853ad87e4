"""Steps in a process of their own: one that crashes or never ends is told, and the rest goes on."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from npusim.errors import Error

WORKER = (sys.executable, "-m", "npusim.selftest.worker")
_OPENING_S = 300.0  # to import PyTorch and open the device


@dataclass(frozen=True)
class Wanted:
    """What a worker is to do.

    Attributes:
        device, options: as `Device` takes them.
        sections, match, quick: as `steps` takes them.
        first: the number of the first step.
    """

    device: str
    sections: tuple[str, ...]
    match: str
    quick: bool
    options: Mapping[str, object] = field(default_factory=dict)
    first: int = 0


def supervised(
    wanted: Wanted, count: int, time_limit_s: float, worker: Sequence[str] = WORKER
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (-1, what the device is), and then the number and the outcome of each step.

    Args:
        count: of all steps.
        time_limit_s: of one step.
        worker: the command that runs `worker.main`.

    Raises:
        Error: there is no such device, or no process gets as far as a step.
    """
    first, told = wanted.first, False
    while first < count or not told:
        begun = None
        for line in _lines(replace(wanted, first=first), time_limit_s, worker):
            if "error" in line:
                raise Error(line["error"])
            if "device" in line and not told:
                told = True
                yield -1, line
            elif "begin" in line:
                begun = line["begin"]
            elif "end" in line:
                yield line["end"], line["outcome"]
                first, begun = line["end"] + 1, None
            elif "ended" in line and begun is not None:
                yield begun, {"failure": line["ended"]}
                first = begun + 1
            elif "ended" in line and first < count:
                raise Error(f"The selftest's process cannot begin: {line['ended']}.")


def _lines(wanted: Wanted, time_limit_s: float, worker: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields what a worker says, and at last {"ended": why}."""
    process = subprocess.Popen([*worker, json.dumps(asdict(wanted))], stdout=subprocess.PIPE)
    said: queue.Queue[dict[str, Any] | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, said), daemon=True)
    reader.start()
    limit = _OPENING_S
    try:
        while (line := said.get(timeout=limit)) is not None:
            limit = time_limit_s if "begin" in line else _OPENING_S
            yield line
        yield {"ended": _ended(process.wait())}
    except queue.Empty:
        yield {"ended": f"it took more than {limit:g} s and was stopped"}
    finally:
        process.kill()
        process.wait()
        reader.join()


def _read(process: subprocess.Popen[bytes], said: queue.Queue[dict[str, Any] | None]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            said.put(json.loads(line))
    said.put(None)


def _ended(status: int) -> str:
    if status >= 0:
        return f"the process ended with status {status}"
    return f"the process was ended by {signal.Signals(-status).name}"

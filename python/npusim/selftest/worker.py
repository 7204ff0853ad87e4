"""The process that runs steps for `supervise.py`: what it does goes out a JSON line at a time.

`{"device", "description"}` once the device is open; `{"begin": number}` before a step and
`{"end": number, "outcome": {…}}` after it; `{"error", "hint"}` where there is no such device.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from npusim.errors import Error
from npusim.runtime.device import Device
from npusim.selftest.steps import steps
from npusim.targets import TargetConfig


def main() -> None:
    """Runs the steps that the argument names, as `supervise.Wanted` writes it."""
    wanted = json.loads(sys.argv[1])
    # Lines have an end of their own: whatever else prints goes to stderr.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**line: Any) -> None:
        print(json.dumps(line), file=lines, flush=True)

    try:
        device = Device(wanted["device"], **wanted["options"])
        target = TargetConfig.named(wanted["device"])
    except Error as error:
        say(error=str(error))
        return
    say(device=device.name, description=device.description)
    known = steps(wanted["sections"], wanted["match"], quick=wanted["quick"])
    for number in range(wanted["first"], len(known)):
        say(begin=number)
        say(end=number, outcome=known[number].outcome(target, device))


if __name__ == "__main__":
    main()

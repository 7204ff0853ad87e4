"""What ptxas says of kernels it compiles with `--ptxas-options=-v`."""

from __future__ import annotations

import re

# Bytes a thread, at most: ptxas puts a few values that no loop uses into memory, though registers
# are left, where that lets another block run beside. An array in memory takes more.
SPILLED = 40


def spilled(log: str) -> int:
    """Returns the most bytes that a kernel of a log stores for want of registers.

    Raises:
        AssertionError: the log says nothing of it.
    """
    found = [int(size) for size in re.findall(r"(\d+) bytes spill stores", log)]
    assert found, f"no log of ptxas: {log}"
    return max(found)

"""How much memory this process has taken."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path


def peak_rss() -> int:
    """Returns the most memory this process has had resident so far, in bytes; 0 if unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        # Not what getrusage says: that counts the process that started this one.
        status = Path("/proc/self/status").read_text("ascii")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

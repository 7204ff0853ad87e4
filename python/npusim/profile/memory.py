"""How much memory this process has taken."""

from __future__ import annotations

import sys


def peak_rss() -> int:
    """Returns the most memory this process has had resident so far, in bytes; 0 if unknown."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

"""The version, once: `pyproject.toml` and CMake read it from here.

Also owns what is said of a file from the future, which says itself which version reads it.
"""

from __future__ import annotations

import re

__version__ = "0.1.0"

_RELEASE = re.compile(r"(0|[1-9]\d{0,4})\.(0|[1-9]\d{0,4})\.(0|[1-9]\d{0,4})")


def release(text: object) -> tuple[int, int, int] | None:
    """Returns the three numbers of a release such as "0.4.0"; None for what is none."""
    found = _RELEASE.fullmatch(text) if isinstance(text, str) else None
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def install_hint(text: object = None) -> str:
    """Returns what to do about a file of a newer format, without a period.

    Args:
        text: the first release that reads the file, as the file says; anything else where it does
            not say.
    """
    if release(text) is None:
        return "Upgrade npusim"
    return f"Install npusim {text} or later (pip install 'npusim>={text}')"

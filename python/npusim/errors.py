"""Every error npusim raises on purpose. Owns the hierarchy and how a location is worded.

Anything else that escapes the public API is a defect of npusim, not of its input.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npusim.ir.graph import Source


class Error(Exception):
    """Base of all npusim errors; the message is one sentence a user can act on.

    Attributes:
        hint: what to do about it, or an empty string.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip() if hint else message)
        self.hint = hint


class ExportError(Error):
    """The frontend could not turn the model into a Graph (control flow on data, bad arguments)."""


class GraphError(Error):
    """A Graph breaks an invariant of the IR, or its JSON form is malformed."""


class UnsupportedOpError(Error):
    """The target has no kernel for some nodes; all of them are listed at once.

    Attributes:
        nodes: names of the nodes, where the error is about nodes of one graph.
    """

    def __init__(self, message: str, *, hint: str = "", nodes: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.nodes = nodes


class CoverageError(Error):
    """A target runs less of a model natively than was required."""


class SymbolicSizeError(Error):
    """A decision would have to be taken on a size that is known only at the call."""


class TargetConstraintError(Error):
    """A node or a configuration breaks a constraint of the target."""


class ProgramFormatError(Error):
    """A `.npubin` file is truncated, corrupt, of another version, or hostile."""


class WeightMismatchError(Error):
    """A checkpoint lacks a tensor, or has it with another shape or dtype."""


class ShapeError(Error):
    """An input has the wrong number, shape, dtype or device."""


class DeviceError(Error):
    """A device does not exist, is out of memory, or failed while running."""


def first_line(error: BaseException) -> str:
    """Returns what the error of another library says; after its first line stand traces of its own
    code and advice to its own callers."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def foreign(error: BaseException) -> str:
    """Returns what a user's code raised, in one line, with the last place in that code."""
    text = type(error).__name__ + (f": {first_line(error)}" if str(error).strip() else "")
    ours = (str(Path(__file__).parent), str(Path(traceback.__file__).parent), "<")
    frames = traceback.extract_tb(error.__traceback__)
    places = [f for f in frames if "site-packages" in f.filename or not f.filename.startswith(ours)]
    users = [f for f in places if "site-packages" not in f.filename]
    place = next(reversed(users or places), None)
    return f"{text} ({place.filename}:{place.lineno})" if place else text


def at(source: Source | None) -> str:
    """Returns ` (module.path, file.py:12)` for a node's source, or nothing when it is unknown."""
    if source is None:
        return ""
    parts = [source.module] if source.module else []
    if source.file:
        parts.append(f"{source.file}:{source.line}")
    return f" ({', '.join(parts)})" if parts else ""

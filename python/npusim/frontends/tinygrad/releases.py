"""What differs between the releases of tinygrad that are read: one adapter each.

Shapes and movement are read through properties that all of them have. Owns the encodings that
differ, and which UOps have no meaning here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from npusim.errors import Error, ExportError
from npusim.frontends.tinygrad.known import SCALAR
from npusim.frontends.tinygrad.terms import MOVEMENT

SAME = ("CONTIGUOUS", "CONTIGUOUS_BACKWARD", "DETACH", "COPY", "NOOP")  # their operand

_REFUSED = {
    "THREEFRY": "random numbers have no place in a graph; make them outside and pass them in",
    "MULTI": "a tensor spread over several devices; gather it first (`.to('CPU')`)",
    "UNSHARD": "a tensor spread over several devices; gather it first (`.to('CPU')`)",
    "MSELECT": "a tensor spread over several devices; gather it first (`.to('CPU')`)",
    "MSTACK": "a tensor spread over several devices; gather it first (`.to('CPU')`)",
    "ALLREDUCE": "a tensor spread over several devices; gather it first (`.to('CPU')`)",
    "CALL": "a call of a kernel or of a compiled function; import what it computes",
    "FUNCTION": "a function that tinygrad keeps whole; give the function that computes it",
    "GETTUPLE": "a function that tinygrad keeps whole; give the function that computes it",
    "CUSTOM_FUNCTION": "a kernel of its own; write it with tensors",
    "CUSTOM": "a kernel of its own; write it with tensors",
    "BUFFER_VIEW": "a view of a disk buffer; copy it to memory first",
}
_KNOWN = {"CONST", "BUFFER", "REDUCE", "CAST", "BITCAST", "STACK", "AFTER", "STORE"}
_KNOWN |= {op.upper() for op in (*MOVEMENT, *SCALAR)}
_KNOWN |= set(SAME)
_SYMBOLIC = (
    "a size or a position is a Variable, which is known only once the model runs; use a Python "
    "int, and import one graph for each"
)


class Release(ABC):
    """A release of tinygrad."""

    name = ""

    @abstractmethod
    def reduction(self, uop: Any) -> tuple[str, tuple[int, ...]]:
        """Returns a reduction's operation ("add", "max", "mul") and its axes in the source."""

    @abstractmethod
    def is_variable(self, uop: Any) -> bool:
        """Tells whether a UOp is a symbolic integer."""

    @abstractmethod
    def is_training(self) -> bool:
        """Tells whether dropout and batch statistics are switched on."""

    def refuse(self, uop: Any) -> None:
        """Raises ExportError for a UOp without a meaning here."""
        if self.is_variable(uop):
            raise ExportError(f"{_SYMBOLIC}{_place(uop)}.")
        op = uop.op.name
        if op in _REFUSED or op not in _KNOWN:
            reason = _REFUSED.get(op, "it has no meaning here")
            raise ExportError(f"UOp {op}{_place(uop)}: {reason}.")
        if op not in ("STORE", "BUFFER") and any(type(d) is not int for d in _shape(uop)):
            raise ExportError(f"{_SYMBOLIC}{_place(uop)}.")
        if op in ("PAD", "SHRINK") and any(type(n) is not int for pair in uop.marg for n in pair):
            raise ExportError(f"{_SYMBOLIC}{_place(uop)}.")


class Release013(Release):
    """0.13: reductions list their axes and keep them."""

    name = "0.13"

    def reduction(self, uop: Any) -> tuple[str, tuple[int, ...]]:
        """See `Release`."""
        operation, axes = uop.arg
        return operation.name.lower(), tuple(axes)

    def is_variable(self, uop: Any) -> bool:
        """See `Release`."""
        return uop.op.name in ("DEFINE_VAR", "BIND")

    def is_training(self) -> bool:
        """See `Release`."""
        from tinygrad import Tensor

        return bool(Tensor.training)


class Release014(Release):
    """0.14: reductions are over leading axes and drop them; a Variable is a buffer by name."""

    name = "0.14"

    def reduction(self, uop: Any) -> tuple[str, tuple[int, ...]]:
        """See `Release`."""
        operation, leading = uop.arg
        return operation.name.lower(), tuple(range(leading))

    def is_variable(self, uop: Any) -> bool:
        """See `Release`."""
        return uop.op.name == "BUFFER" and getattr(uop.arg, "name", None) is not None

    def is_training(self) -> bool:
        """See `Release`."""
        from tinygrad.helpers import TRAINING

        return bool(TRAINING)


_RELEASES = (Release013(), Release014())


def installed() -> Release:
    """Returns the adapter of the installed release.

    Raises:
        Error: tinygrad is not installed, or in a release that is not read.
    """
    try:
        version = metadata.version("tinygrad")
    except metadata.PackageNotFoundError:
        raise Error(
            "tinygrad is not installed.", hint="Install npusim[tinygrad] (Python 3.11 or newer)."
        ) from None
    return for_version(version)


def for_version(version: str) -> Release:
    """Returns the adapter for a version; Error when there is none."""
    for release in _RELEASES:
        if version.split(".")[:2] == release.name.split("."):
            return release
    known = " and ".join(r.name for r in _RELEASES)
    raise Error(
        f"tinygrad {version} has another graph than those that are read ({known}).",
        hint="Install 'tinygrad>=0.13,<0.15'.",
    )


def _place(uop: Any) -> str:
    """Returns ` (method)` for the method that made a UOp, if that is known."""
    return f" (in Tensor.{uop.metadata[0].name})" if uop.metadata else ""


def _shape(uop: Any) -> Sequence[Any]:
    try:
        return tuple(uop.shape)
    except RuntimeError:  # what has none
        return ()

"""Who computes a command: the own kernel, in one of its variants, or a library beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Choice:
    """Who computes a command.

    Attributes:
        library: a library's name, such as "cublaslt" or "cudnn", where it is there; empty: the own
            kernel.
        plan: which of the library's plans, of its version `version`; another version takes its
            first one.
        variant: the variant of the own kernel; empty: the one its rule chooses.
    """

    library: str = ""
    plan: int = 0
    version: int = 0
    variant: str = ""


Choices: TypeAlias = Mapping[tuple[str, bytes], Choice]  # by stem and parameters

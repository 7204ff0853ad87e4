"""What a code generator is asked for: the image of one kernel for one set of parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """What code generation needs besides parameters to make a kernel's image for other ones.

    Attributes:
        unwritten: a mask of `unwritten_operands` (bit i: operand i); 0 where the source does
            not ask for it.
        libraries: which commands may be a library's: `TargetConfig.libraries`.
        cast: the command has the operand that is cast for a library.
        batch_invariance: `TargetConfig.batch_invariance` in a method over pages, else "none".
    """

    unwritten: int
    libraries: str
    cast: bool
    batch_invariance: str = "none"


@dataclass(frozen=True, slots=True)
class WantedImage:
    """An image to be made: the kernel of a stem for these parameters.

    Attributes:
        unwritten: a mask of `unwritten_operands`.
        recipe: where the parameters depend on the sizes of a call.
    """

    stem: str
    params: bytes
    unwritten: int
    recipe: Recipe | None = None

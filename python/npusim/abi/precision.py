"""Precisions that a float32 model can be compiled in: what each stores and multiplies in 16 bits.

docs/numerics.md says what follows for the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.errors import TargetConstraintError

FLOAT16_MAX = 65504.0  # the greatest number of float16


@dataclass(frozen=True, slots=True)
class Precision:
    """How a model of float32 is computed.

    Attributes:
        dtype: of the operands of products, of 16 bits.
        stores: values between commands have that dtype as well, where they bear it; else those
            alone that nothing but products reads.
        saturates: a number beyond the dtype's greatest becomes that, instead of infinite.
    """

    dtype: str
    stores: bool
    saturates: bool = False

    @classmethod
    def parse(cls, name: str) -> Precision | None:
        """Returns the precision of a name; None for "float32", which leaves a model as it is.

        Raises:
            TargetConstraintError: there is no such precision; the message lists them.
        """
        if name == "float32":
            return None
        if name not in _PRECISIONS:
            raise TargetConstraintError(
                f"'{name}' is not a precision. Expected {', '.join(PRECISIONS)}."
            )
        return _PRECISIONS[name]


_PRECISIONS = {
    "bfloat16": Precision("bfloat16", stores=True),
    "float16": Precision("float16", stores=False, saturates=True),
    "mixed": Precision("bfloat16", stores=False),
}
PRECISIONS = ("float32", *_PRECISIONS)

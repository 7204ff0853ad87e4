"""Commands at given sizes: the parameters that patches make, and for which sizes to prepare code.

`cpp/runtime/sized_program.cpp` makes the same bytes at run time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from npusim.errors import ShapeError
from npusim.ir.symbolic import describe, evaluate
from npusim.program.program import Command, CompiledProgram, Method, PatchKind

Sizes = Mapping[str, int]  # values of symbols by their names

PREPARED = "prepared_sizes"  # member of the metadata: {method: [{symbol: size}, …]}

_FORMATS = {
    PatchKind.I32: "<i",
    PatchKind.I64: "<q",
    PatchKind.F32: "<f",
    PatchKind.F64: "<d",
}


def params_at(command: Command, sizes: Sizes) -> bytes:
    """Returns the parameters of a command for sizes of all symbols of its method.

    Raises:
        ShapeError: a number is more than the kernel can count.
    """
    data = bytearray(command.params)
    for patch in command.patches:
        if patch.kind is PatchKind.OPERAND:
            continue
        value = evaluate(patch.size, sizes)
        try:
            struct.pack_into(_FORMATS[patch.kind], data, patch.at, value)
        except struct.error:
            raise ShapeError(f"a size of {value} is more than a kernel can count.") from None
    return bytes(data)


def greatest_sizes(method: Method) -> dict[str, int]:
    """Returns the greatest value of each symbol."""
    return {symbol.name: symbol.high for symbol in method.symbols}


def combinations(method: Method, wanted: Iterable[Sizes]) -> list[dict[str, int]]:
    """Returns the sizes to prepare a method for: the greatest, and those wanted of it.

    Args:
        wanted: values of symbols; one that is not given takes its greatest value, one that the
            method does not have says nothing about it.
    """
    greatest = greatest_sizes(method)
    found = [greatest, *({s: w.get(s, high) for s, high in greatest.items()} for w in wanted)]
    return [sizes for i, sizes in enumerate(found) if sizes not in found[:i]]


def check_sizes(methods: Sequence[Method], wanted: Iterable[Sizes]) -> None:
    """Verifies that sizes to prepare are those of symbols, and within their bounds.

    Raises:
        ShapeError: an unknown symbol, or a value outside of its bounds.
    """
    known = {s for method in methods for s in method.symbols}
    for name, value in (item for sizes in wanted for item in sizes.items()):
        bounds = [s for s in known if s.name == name]
        if not bounds:
            raise ShapeError(
                f"The model has no symbolic size {name!r}; it has: {describe(known) or 'none'}."
            )
        if not all(s.low <= value <= s.high for s in bounds):
            raise ShapeError(f"{name} is {value}; possible is {describe(bounds)}.")


def prepared_sizes(program: CompiledProgram) -> list[Sizes]:
    """Returns the sizes that a program says it was prepared for; of all methods, as one list."""
    stored = program.metadata.get(PREPARED, {})
    lists = list(stored.values()) if isinstance(stored, dict) else []
    rows = [row for rows in lists if isinstance(rows, list) for row in rows]
    return [row for row in rows if isinstance(row, dict) and _are_ints(row)]


def _are_ints(row: Mapping[str, object]) -> bool:
    return all(type(value) is int for value in row.values())

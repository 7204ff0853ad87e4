"""The scalar program of a pointwise command as statements of a language like C.

Owns which instruction reads which value; how a language writes types, constants and calls stands in
its `Language`, so that another language brings a table and no printer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from npusim.abi.kernels import Params
from npusim.abi.scalar import OPCODES
from npusim.errors import UnsupportedOpError

_NAMES = {code: (name, arity) for name, (code, arity, _, _) in OPCODES.items()}
_DIVISIONS = frozenset(("div_trunc", "div_floor", "remainder", "fmod"))
_FLOAT, _DOUBLE, _INTEGER = range(3)  # compute classes, as parameters have them
_INSTRUCTION = 6  # numbers: opcode, destination, three operands, class


@dataclass(frozen=True, slots=True)
class Language:
    """How a language spells what scalar programs are made of; `{…}` stand for the parts.

    Attributes:
        name: for messages.
        types: of the classes float, double and int64_t; "" where it has no such numbers.
        load: a value from an element in memory: `{type}`, `{name}`, `{element}`.
        bind: a value from an expression: `{name}`, `{expression}`.
        call: an opcode's function: `{op}`, `{arguments}`.
        failure: the argument through which a division of integers reports a zero.
        powers: x to this power, in floats: `{0}`.
        float32, float64, int64: a constant expression of exactly this number.
        unsigned: the suffix of an unsigned literal of 64 bits.
    """

    name: str
    types: tuple[str, str, str]
    load: str
    bind: str
    call: str
    failure: str
    powers: Mapping[float, str]
    float32: Callable[[float], str]
    float64: Callable[[float], str]
    int64: Callable[[int], str]
    unsigned: str

    def type(self, cls: int) -> str:
        """Returns the type of a compute class.

        Raises:
            UnsupportedOpError: the language has none.
        """
        if not self.types[cls]:
            kind = ("float32", "float64", "int64")[cls]
            raise UnsupportedOpError(f"{self.name} has no numbers of {kind} to compute in.")
        return self.types[cls]


def can_fail(p: Params) -> bool:
    """Tells whether a program divides integers, which may fail."""
    return any(_divides(p, i) for i in range(p["n_instructions"]))


def statements(p: Params, elements: Sequence[str], language: Language) -> tuple[list[str], str]:
    """Returns the statements that compute one element, and the expression of the result.

    Args:
        p: of a `pointwise` command.
        elements: how each input's element is written.
    """
    lines = []
    values: dict[int, str] = {}
    for i, element in enumerate(elements):
        values[i] = f"r{i}"
        kind = language.type(p["x_class"][i])
        lines.append(language.load.format(type=kind, name=values[i], element=element))
    for index in range(p["n_instructions"]):
        _, dst, _, _ = _instruction(p, index)
        expression = _expression(p, index, values, language)
        values[dst] = f"t{index}"
        lines.append(language.bind.format(name=values[dst], expression=expression))
    return lines, values[p["result"]]


def _instruction(p: Params, index: int) -> tuple[str, int, tuple[int, ...], int]:
    """Returns an instruction's opcode name, destination, operands and class."""
    code, dst, *args, cls = p["code"][_INSTRUCTION * index : _INSTRUCTION * (index + 1)]
    name, arity = _NAMES[code]
    return name, dst, tuple(args[:arity]), cls


def _divides(p: Params, index: int) -> bool:
    name, _, _, cls = _instruction(p, index)
    return name in _DIVISIONS and cls == _INTEGER


def _expression(p: Params, index: int, values: Mapping[int, str], language: Language) -> str:
    name, _, args, cls = _instruction(p, index)
    language.type(cls)
    kinds = [_INTEGER if name == "where" and i == 0 else cls for i in range(len(args))]
    shown = [
        values[arg] if arg >= 0 else _constant(p, -1 - arg, kind, language)
        for arg, kind in zip(args, kinds, strict=True)
    ]
    if name == "pow" and args[1] < 0 and cls == _FLOAT:
        power = language.powers.get(p["constants"][-1 - args[1]])
        if power is not None:
            return power.format(shown[0])
    if _divides(p, index):
        shown.append(language.failure)
    return language.call.format(op=name, arguments=", ".join(shown))


def _constant(p: Params, index: int, cls: int, language: Language) -> str:
    if cls == _INTEGER:
        return language.int64(p["int_constants"][index])
    value = p["constants"][index]
    return language.float32(_as_float(value)) if cls == _FLOAT else language.float64(value)


def _as_float(value: float) -> float:
    """Rounds to float32."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return value * float("inf")

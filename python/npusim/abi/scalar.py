"""The scalar dialect: what one element of a pointwise chain or an epilogue can do.

Owns the opcode table (shared with kernels through the generated `kernels/shared/abi.h`) and
`ScalarProgram`, the form in which a fused chain stands in a graph. A backend turns it into a
vectorised bytecode loop (CPU) or into generated source (GPUs).

Every register belongs to a compute class: "f" (float32; holds float32/16, bfloat16), "d"
(float64) or "i" (int64; holds all integers, and bool as 0/1). Loads and stores convert between
storage dtype and class; storing "f"/"d" as an integer truncates toward zero, storing as bool
tests against zero, and integers wrap on narrowing, as in PyTorch. What PyTorch leaves to the
processor is settled here, for all interpreters: a float that does not fit int64 (NaN too) becomes
the least int64, of which uint8 takes the low bits; one that does not fit int32 becomes the least
int32, of which int16 and int8 do. That is what PyTorch makes of it on x86 (docs/numerics.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from npusim.abi.literals import literal_in
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import DTYPES, dtype_size, is_float

# name -> (code, arity, class of the result: "=" same as operands, else "i"; classes allowed)
# The codes are part of the file format: append, never renumber.
OPCODES: dict[str, tuple[int, int, str, str]] = {
    # unary, float
    "copy": (0, 1, "=", "fdi"),
    "neg": (1, 1, "=", "fdi"),
    "abs": (2, 1, "=", "fdi"),
    "exp": (3, 1, "=", "fd"),
    "expm1": (4, 1, "=", "fd"),
    "log": (5, 1, "=", "fd"),
    "log1p": (6, 1, "=", "fd"),
    "log2": (7, 1, "=", "fd"),
    "log10": (8, 1, "=", "fd"),
    "sqrt": (9, 1, "=", "fd"),
    "rsqrt": (10, 1, "=", "fd"),
    "reciprocal": (11, 1, "=", "fd"),
    "sin": (12, 1, "=", "fd"),
    "cos": (13, 1, "=", "fd"),
    "tan": (14, 1, "=", "fd"),
    "asin": (15, 1, "=", "fd"),
    "acos": (16, 1, "=", "fd"),
    "atan": (17, 1, "=", "fd"),
    "sinh": (18, 1, "=", "fd"),
    "cosh": (19, 1, "=", "fd"),
    "asinh": (20, 1, "=", "fd"),
    "acosh": (21, 1, "=", "fd"),
    "atanh": (22, 1, "=", "fd"),
    "tanh": (23, 1, "=", "fd"),
    "sigmoid": (24, 1, "=", "fd"),
    "erf": (25, 1, "=", "fd"),
    "floor": (26, 1, "=", "fd"),
    "ceil": (27, 1, "=", "fd"),
    "round": (28, 1, "=", "fd"),  # half to even
    "trunc": (29, 1, "=", "fd"),
    "sign": (30, 1, "=", "fdi"),
    "relu": (31, 1, "=", "fdi"),
    "gelu": (32, 1, "=", "fd"),  # exact, through erf
    "gelu_tanh": (33, 1, "=", "fd"),
    "silu": (34, 1, "=", "fd"),
    "hardswish": (35, 1, "=", "fd"),
    "hardsigmoid": (36, 1, "=", "fd"),
    "softplus": (37, 1, "=", "fd"),  # beta 1, threshold 20
    "mish": (38, 1, "=", "fd"),
    "isnan": (39, 1, "i", "fd"),
    "isinf": (40, 1, "i", "fd"),
    "logical_not": (41, 1, "i", "fdi"),
    "bitwise_not": (42, 1, "=", "i"),
    "exp2": (43, 1, "=", "fd"),
    # class conversions: unary, the result's class is in the name
    "to_f": (48, 1, "f", "fdi"),
    "to_d": (49, 1, "d", "fdi"),
    "to_i": (50, 1, "i", "fdi"),  # truncates toward zero; the least int64 where that does not fit
    "to_bool": (51, 1, "i", "fdi"),  # x != 0
    "to_i32": (52, 1, "i", "fd"),  # truncates toward zero; the least int32 where that does not fit
    "to_f16": (53, 1, "=", "f"),  # rounded to the nearest float16
    "to_bf16": (54, 1, "=", "f"),  # rounded to the nearest bfloat16
    # binary
    "add": (64, 2, "=", "fdi"),
    "sub": (65, 2, "=", "fdi"),
    "mul": (66, 2, "=", "fdi"),
    "div": (67, 2, "=", "fd"),
    "div_trunc": (68, 2, "=", "fdi"),
    "div_floor": (69, 2, "=", "fdi"),
    "remainder": (70, 2, "=", "fdi"),  # sign of the divisor (Python)
    "fmod": (71, 2, "=", "fdi"),  # sign of the dividend (C)
    "pow": (72, 2, "=", "fdi"),
    "maximum": (73, 2, "=", "fdi"),  # NaN wins
    "minimum": (74, 2, "=", "fdi"),  # NaN wins
    "atan2": (75, 2, "=", "fd"),
    "eq": (76, 2, "i", "fdi"),
    "ne": (77, 2, "i", "fdi"),
    "lt": (78, 2, "i", "fdi"),
    "le": (79, 2, "i", "fdi"),
    "gt": (80, 2, "i", "fdi"),
    "ge": (81, 2, "i", "fdi"),
    "logical_and": (82, 2, "i", "fdi"),
    "logical_or": (83, 2, "i", "fdi"),
    "logical_xor": (84, 2, "i", "fdi"),
    "bitwise_and": (85, 2, "=", "i"),
    "bitwise_or": (86, 2, "=", "i"),
    "bitwise_xor": (87, 2, "=", "i"),
    "shift_left": (88, 2, "=", "i"),
    "shift_right": (89, 2, "=", "i"),
    # ternary
    "where": (96, 3, "=", "fdi"),  # operand 0 is class "i", 1 and 2 (and the result) are equal
    "fma": (97, 3, "=", "fd"),  # a*b + c
    "clamp": (98, 3, "=", "fdi"),  # min(max(x, lo), hi); NaN stays
}


Arg: TypeAlias = "int | tuple[str, float | int]"  # see ScalarOp.args


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One instruction in single-assignment form.

    Attributes:
        op: a key of `OPCODES`.
        args: operands. A non-negative int is the value of that index: the program's inputs come
            first (0 … n_inputs-1), then one an instruction. A float/int literal is written as
            ("const", value).
        cls: compute class of the operands ("f", "d", "i").
    """

    op: str
    args: tuple[Arg, ...]
    cls: str


@dataclass(frozen=True, slots=True)
class ScalarProgram:
    """A pointwise function of `inputs` operands; the last instruction is the result.

    Attributes:
        inputs: compute class of each operand as loaded.
        body: the instructions.
    """

    inputs: tuple[str, ...]
    body: tuple[ScalarOp, ...]

    def to_attr(self) -> Any:
        """Returns the program as nested tuples, the form a node's attribute can hold."""
        return (self.inputs, tuple((o.op, o.args, o.cls) for o in self.body))

    @classmethod
    def from_attr(cls, attr: object) -> ScalarProgram:
        """Inverse of `to_attr`."""
        kinds, instructions = cast("tuple[Any, Any]", attr)
        return cls(tuple(kinds), tuple(ScalarOp(o, tuple(a), c) for o, a, c in instructions))


def compute_class(dtype: str) -> str:
    """Returns the compute class that holds a storage dtype."""
    if dtype == "float64":
        return "d"
    return "f" if dtype in ("float32", "float16", "bfloat16") else "i"


def result_class(op: ScalarOp) -> str:
    """Returns the compute class of an instruction's result."""
    result = OPCODES[op.op][2]
    return op.cls if result == "=" else result


def wrapping(dtype: str) -> tuple[tuple[str, int], ...]:
    """Returns the opcodes, with their right operands, that wrap an int64 to an integer dtype."""
    bits = 8 * dtype_size(dtype)
    if bits == 64:
        return ()
    if dtype.startswith("u"):
        return (("bitwise_and", 2**bits - 1),)
    return (("shift_left", 64 - bits), ("shift_right", 64 - bits))


def from_float(dtype: str) -> str:
    """Returns the opcode that makes a float an integer, before it wraps to an integer dtype."""
    return "to_i" if dtype in ("int64", "uint8") else "to_i32"


def holds(dtype: str, other: str) -> bool:
    """Tells whether every value of `other` is a value of `dtype`, both names of `DTYPES`."""
    if dtype == other or other == "bool":
        return True
    if is_float(other):  # in order of what they hold; neither of the halves holds the other
        wider = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}
        return wider.get(dtype, 0) > wider[other]
    digits = 8 * dtype_size(other) - (not other.startswith("u"))
    if is_float(dtype):
        return digits <= {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[dtype]
    signed = not dtype.startswith("u")
    return (
        DTYPES[dtype][2] == "int"
        and (signed or other.startswith("u"))
        and (digits <= 8 * dtype_size(dtype) - signed)
    )


_DTYPE_OF_CLASS = {"f": "float32", "d": "float64", "i": "int64"}


class ScalarBuilder:
    """Writes a ScalarProgram instruction by instruction; methods return value indices.

    Args:
        inputs: compute class of each operand.
        dtypes: what each is stored as, where `stored` shall know what fits another dtype.
    """

    def __init__(self, inputs: Sequence[str], dtypes: Sequence[str] = ()) -> None:
        self.inputs = tuple(inputs)
        self.classes = list(inputs)
        self.dtypes = tuple(dtypes)
        self.body: list[ScalarOp] = []

    def op(self, name: str, cls: str, *args: Arg) -> int:
        """Appends an instruction; integer and float literals are ("const", value)."""
        instruction = ScalarOp(name, args, cls)
        self.body.append(instruction)
        self.classes.append(result_class(instruction))
        return len(self.classes) - 1

    def to(self, arg: Arg, cls: str) -> Arg:
        """Returns the value converted to a class; literals and equal classes cost nothing."""
        if isinstance(arg, tuple):
            value = arg[1]
            if is_symbolic(value):  # a kernel gets it in every class
                return arg
            return ("const", literal_in(value, _DTYPE_OF_CLASS[cls]))
        if self.classes[arg] == cls:
            return arg
        return self.op(f"to_{cls}", self.classes[arg], arg)

    def stored(self, arg: Arg, dtype: str) -> Arg:
        """Returns a value as a store to `dtype` and a load from it would have converted it.

        Raises:
            GraphError: a literal that is infinite or NaN, for an integer dtype.
        """
        cls = compute_class(dtype)
        if isinstance(arg, tuple):
            return arg if is_symbolic(arg[1]) else ("const", literal_in(arg[1], dtype))
        if arg < len(self.dtypes) and holds(dtype, self.dtypes[arg]):
            return self.to(arg, cls)
        if dtype == "bool":
            return self.op("to_bool", self.classes[arg], arg)
        if cls != "i":
            value = self.to(arg, cls)
            rounding = {"float16": "to_f16", "bfloat16": "to_bf16"}.get(dtype)
            return value if rounding is None else self.op(rounding, cls, value)
        if self.classes[arg] != "i":
            arg = self.op(from_float(dtype), self.classes[arg], arg)
        for opcode, number in wrapping(dtype):
            arg = self.op(opcode, "i", arg, ("const", number))
        return arg

    def build(self, dtype: str) -> ScalarProgram:
        """Returns the program; the last value is converted to what `dtype` stores."""
        last = len(self.classes) - 1
        wanted = compute_class(dtype)
        if dtype == "bool" and self.classes[last] != "i":
            self.op("to_bool", self.classes[last], last)
        elif self.classes[last] != wanted:
            opcode = from_float(dtype) if wanted == "i" else f"to_{wanted}"
            self.op(opcode, self.classes[last], last)
        elif not self.body:
            self.op("copy", wanted, last)
        return ScalarProgram(self.inputs, tuple(self.body))

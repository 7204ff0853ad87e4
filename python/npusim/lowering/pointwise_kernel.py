"""ScalarPrograms on the `pointwise` kernel: register allocation, iteration space, parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npusim.abi.kernels import POINTWISE_INPUTS, POINTWISE_REGISTERS, RANK
from npusim.abi.scalar import OPCODES, Arg, ScalarOp, ScalarProgram, result_class, wrapping
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import dtype_code
from npusim.lowering.context import Lowering, Param
from npusim.lowering.view import View, collapse, in_parts

_CLASS_CODE = {"f": 0, "d": 1, "i": 2}


def _allocate(program: ScalarProgram) -> tuple[list[int], int]:
    """Gives each value a register (inputs keep theirs): returns them and the number in use.

    A register is free again after the last use of its value; a register belongs to no class.
    """
    n = len(program.inputs)
    last = {n + len(program.body) - 1: len(program.body)}
    for index, op in enumerate(program.body):
        last.update((a, index) for a in op.args if isinstance(a, int))
    register: list[int] = list(range(n))
    free: list[int] = []
    top = n
    dying: dict[int, list[int]] = {}
    for value, index in last.items():
        dying.setdefault(index, []).append(value)
    for index in range(len(program.body)):
        if free:
            chosen = free.pop()
        else:
            chosen, top = top, top + 1
        register.append(chosen)
        free.extend(register[v] for v in dying.get(index, ()))
        if n + index not in last:
            free.append(chosen)
    return register, top


def register_pressure(program: ScalarProgram) -> int:
    """Returns how many registers the program needs; the target has a limit."""
    return _allocate(program)[1]


_NARROW = ("int8", "uint8", "int16")  # integers that a float32 holds
_BYTES = ("int8", "uint8")


def in_floats(program: ScalarProgram, inputs: Sequence[str], y: str) -> ScalarProgram:
    """Returns a program that keeps narrow integers in floats, where it need not widen them.

    Integers that are only converted to floats are loaded as such; floats that are whole numbers of
    a byte are what they are converted to and back from; and a float that ends as a byte is stored
    as one, which truncates and wraps it, too.

    Args:
        inputs, y: dtypes in memory.
    """
    n, body = len(program.inputs), list(program.body)
    body = body[: len(body) - _conversions_to_bytes(body, n, y)]
    classes = list(program.inputs)
    for i, dtype in enumerate(inputs):
        reads = [op for op in body if i in op.args]
        if dtype in _NARROW and reads and all(op.op == "to_f" for op in reads):
            classes[i] = "f"
    same: dict[int, int] = {}  # values that are another one
    for index, op in enumerate(body, n):
        if op.op == "to_f" and op.cls == "i" and isinstance(op.args[0], int):
            source = _whole_byte(op.args[0], body, n)
            if source is None and op.args[0] < n and classes[op.args[0]] == "f":
                source = op.args[0]
            if source is not None:
                same[index] = same.get(source, source)
    return _without(body, classes, same)


def _whole_byte(value: int, body: Sequence[ScalarOp], n: int) -> int | None:
    """Returns the float behind integers of a byte, where it is one of these numbers already."""
    low, high = -(2.0**30), 2.0**30
    op = body[value - n] if value >= n else None
    if op is not None and op.op == "bitwise_and" and op.args[1] == ("const", 255):
        low, high, value = 0.0, 255.0, _index(op.args[0])
    elif op is not None and op.op == "shift_right" and op.args[1] == ("const", 56):
        low, high, value = -128.0, 127.0, _index(op.args[0])
        inner = body[value - n] if value >= n else None
        if inner is None or (inner.op, inner.args[1]) != ("shift_left", ("const", 56)):
            return None
        value = _index(inner.args[0])
    op = body[value - n] if value >= n else None
    if op is None or (op.op, op.cls) not in (("to_i", "f"), ("to_i32", "f")):
        return None
    source = _index(op.args[0])
    clamp = body[source - n] if source >= n else None
    if clamp is None or clamp.op != "clamp" or not _is_whole(source, body, n):
        return None
    bounds = [a[1] for a in clamp.args[1:] if isinstance(a, tuple)]
    return source if len(bounds) == 2 and low <= bounds[0] and bounds[1] <= high else None


def _index(arg: Arg) -> int:
    return arg if isinstance(arg, int) else -1


def _is_whole(arg: Arg, body: Sequence[ScalarOp], n: int) -> bool:
    """Tells whether a float is an integer by construction."""
    if isinstance(arg, tuple):
        return float(arg[1]).is_integer()
    op = body[arg - n] if arg >= n else None
    if op is None or op.op == "round":
        return op is not None
    return op.op in ("clamp", "add", "sub") and all(_is_whole(a, body, n) for a in op.args)


def _without(
    body: Sequence[ScalarOp], classes: Sequence[str], same: dict[int, int]
) -> ScalarProgram:
    """Returns a program without the values that are others, and without what is then unused."""
    n, last = len(classes), len(classes) + len(body) - 1
    used = {same.get(last, last)}
    for index in range(last, n - 1, -1):
        if index in used:
            args = (a for a in body[index - n].args if isinstance(a, int))
            used.update(same.get(a, a) for a in args)
    number = {i: i for i in range(n)}
    kept: list[ScalarOp] = []
    for index, op in enumerate(body, n):
        if index in used:
            number[index] = n + len(kept)
            renamed = (number[same.get(a, a)] if isinstance(a, int) else a for a in op.args)
            kept.append(ScalarOp(op.op, tuple(renamed), op.cls))
    if last in same:  # the result is a value that is there already
        kept.append(ScalarOp("copy", (number[same[last]],), "f"))
    return ScalarProgram(tuple(classes), tuple(kept))


def _conversions_to_bytes(body: Sequence[ScalarOp], n: int, y: str) -> int:
    """Returns how many instructions at the end make a float an integer and wrap it to a byte."""
    count = 0
    wraps = wrapping(y)[::-1] if y in _BYTES else ()
    for name, number in wraps:
        last = n + len(body) - 1 - count
        if last <= n or body[last - n].args[1:] != (("const", number),):
            break
        if body[last - n].op != name or body[last - n].args[0] != last - 1:
            break
        count += 1
    if y not in _BYTES or count not in (0, len(wraps)) or len(body) - count < 2:
        return 0
    convert = body[-1 - count]
    truncates = convert.op in ("to_i", "to_i32") and convert.cls == "f"
    follows = convert.args[0] == n + len(body) - 2 - count
    return count + 1 if truncates and follows else 0


def emit_program(low: Lowering, program: ScalarProgram, inputs: Sequence[View], y: View) -> None:
    """Emits y = program(inputs) with broadcasting."""
    if y.numel == 0:
        return
    program = in_floats(program, [x.dtype for x in inputs], y.dtype)
    parts = in_parts((y, *(x.expand(y.shape) for x in inputs)), RANK)
    for part in parts:
        _emit(low, program, part[1:], part[0], in_place=len(parts) == 1)


def _emit(
    low: Lowering, program: ScalarProgram, views: Sequence[View], y: View, *, in_place: bool
) -> None:
    """Emits y = program(views), all of one shape, whose dimensions merge to those of a kernel."""
    shape, (ys, *xs) = collapse(y.shape, y.strides, *(v.strides for v in views))
    register, used = _allocate(program)
    assert used <= POINTWISE_REGISTERS and len(views) <= POINTWISE_INPUTS
    floats: list[float] = []
    ints: list[int] = []
    code: list[int] = []
    n = len(views)
    for index, op in enumerate(program.body):
        args = []
        for position, arg in enumerate(op.args):
            if isinstance(arg, int):
                args.append(register[arg])
                continue
            integer = op.cls == "i" or (op.op == "where" and position == 0)
            number: Any = arg[1]
            floats.append(number if is_symbolic(number) else float(number))
            ints.append((number if is_symbolic(number) else int(number)) if integer else 0)
            args.append(-len(floats))
        args += [0] * (3 - len(args))
        code += [OPCODES[op.op][0], register[n + index], *args, _CLASS_CODE[op.cls]]
    params: dict[str, Param] = {
        "rank": len(shape),
        "n_inputs": n,
        "n_instructions": len(program.body),
        "result": register[-1],
        "result_class": _CLASS_CODE[result_class(program.body[-1])],
        "y_dtype": dtype_code(y.dtype),
        "x_dtype": [dtype_code(v.dtype) for v in views],
        "x_class": [_CLASS_CODE[c] for c in program.inputs],
        "shape": shape + [1] * (RANK - len(shape)),
        "y_strides": ys,
        "x_strides": [s for row in xs for s in row + [0] * (RANK - len(row))],
        "code": code,
        "constants": floats,
        "int_constants": ints,
    }
    low.emit("pointwise", params, views, [y], in_place=views if in_place else ())

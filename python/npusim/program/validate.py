"""What must hold in a CompiledProgram (docs/npubin.md, "Meaning, and what must hold").

Owns the rules that need no bytes; the writer applies them before a file exists and the reader
before anybody sees what it read. `cpp/runtime/program_validate.cpp` is the same in C++.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from npusim.errors import ProgramFormatError
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import DTYPES, MOST_RANKS, dtype_size
from npusim.program.program import (
    ALIGNMENT,
    Access,
    Buffer,
    BufferKind,
    Command,
    CompiledProgram,
    Kernel,
    Method,
    TensorSpec,
    WeightSpec,
)

MAX_BYTES = 1 << 40  # of a buffer, an arena, a tensor
MAX_RANK = 32

_READ = frozenset({Access.READ})
_ANY = frozenset(Access)
_INIT_ACCESS = {
    BufferKind.TEMP: _ANY,
    BufferKind.WEIGHT: _READ,
    BufferKind.CONSTANT: _READ,
    BufferKind.PERSISTENT: _ANY,
}
_RUN_ACCESS = {
    BufferKind.INPUT: _READ,
    BufferKind.OUTPUT: _ANY,
    BufferKind.TEMP: _ANY,
    BufferKind.WEIGHT: _READ,
    BufferKind.CONSTANT: _READ,
    BufferKind.PERSISTENT: _READ,
    BufferKind.STATE: _ANY,
}


def validate_program(program: CompiledProgram) -> None:
    """Verifies every invariant of the format.

    Raises:
        ProgramFormatError: names the first thing that is wrong and where it stands.
    """
    _require(bool(program.target), "the target has no name")
    _require(bool(program.methods), "there is no method to run")
    for name in ("persistent_bytes", "state_bytes"):
        _check_bytes(getattr(program, name), name)
    for index, kernel in enumerate(program.kernels):
        _check_kernel(kernel, f"kernel {index}")
    for index, buffer in enumerate(program.buffers):
        _check_buffer(program, buffer, f"buffer {index} ({buffer.kind.name})")
    _check_weights(program)
    _require_distinct((m.name for m in program.methods), "method name")
    _require(not program.init.inputs + program.init.outputs, "init has inputs or outputs")
    _check_method(program, program.init, "init")
    for method in program.methods:
        _require(bool(method.name), "a method has no name")
        _check_method(program, method, f"method {_quote(method.name)}")


def _require(condition: bool, breach: str) -> None:
    if not condition:
        raise ProgramFormatError(
            f"The program is not sound: {breach}.", hint="Compile the model again."
        )


def _quote(name: str) -> str:
    """Returns a name fit for a message: cut, since thousands of records may share a huge one."""
    return repr(name if len(name) <= 80 else name[:80] + "…")


def _require_distinct(values: Iterable[str | int], what: str) -> None:
    seen: set[str | int] = set()
    for value in values:
        if value in seen:
            shown = _quote(value) if isinstance(value, str) else value
            _require(False, f"{what} {shown} appears twice")
        seen.add(value)


def _check_bytes(size: int, what: str) -> None:
    _require(0 <= size <= MAX_BYTES, f"{what} is {size}; 0 … {MAX_BYTES} is possible")


def _check_buffer(program: CompiledProgram, buffer: Buffer, where: str) -> None:
    _check_bytes(buffer.bytes, f"{where}: size")
    _check_bytes(buffer.offset, f"{where}: offset")
    ends = {
        BufferKind.TEMP: 2 * MAX_BYTES,  # the arenas of the methods that name it: _check_command
        BufferKind.CONSTANT: len(program.constants),
        BufferKind.PERSISTENT: program.persistent_bytes,
        BufferKind.STATE: program.state_bytes,
    }
    end = ends.get(buffer.kind)
    if end is None:
        _require(buffer.offset == 0, f"{where}: offset {buffer.offset} instead of 0")
        return
    _require(buffer.offset % ALIGNMENT == 0, f"{where}: offset {buffer.offset} is not aligned")
    _require(
        buffer.offset + buffer.bytes <= end,
        f"{where}: bytes {buffer.offset} … {buffer.offset + buffer.bytes} pass the end at {end}",
    )


def _check_kernel(kernel: Kernel, where: str) -> None:
    _require(bool(kernel.name), f"{where} has no name")
    codes = kernel.specialized
    _require(
        not (codes and kernel.image), f"{where} has device code for all parameters, and for some"
    )
    _require(all(code.image for code in codes), f"{where} has no device code for parameters")
    distinct = len({code.params for code in codes}) == len(codes)
    _require(distinct, f"{where} has device code for the same parameters twice")


def _check_weights(program: CompiledProgram) -> None:
    for index, weight in enumerate(program.weights):
        where = f"weight {index}"
        _require(bool(weight.keys) and all(weight.keys), f"{where} has no key, or an empty one")
        _check_tensor(program, weight, weight.shape, BufferKind.WEIGHT, where)
        if weight.part is not None:
            axis, parts = weight.part.axis, weight.part.parts
            fits = axis < len(weight.shape) and parts > 0 and program.ranks % parts == 0
            _require(fits, f"{where} has {parts} parts along axis {axis}")
            whole = list(weight.shape)
            whole[axis] *= parts
            extent = prod(max(size, 1) for size in whole) * dtype_size(weight.dtype)
            _require(extent <= MAX_BYTES, f"{where} takes more than 2^40 bytes whole")
    _require(1 <= program.ranks <= MOST_RANKS, f"{program.ranks} ranks")
    for part in {w.part for w in program.weights}:  # a tensor may be needed whole, and in parts
        keys = (key for w in program.weights if w.part == part for key in w.keys)
        _require_distinct(keys, "weight key")
    _require_distinct((w.buffer for w in program.weights), "weight buffer")
    shown = sum(b.kind is BufferKind.WEIGHT for b in program.buffers)
    _require(shown == len(program.weights), "a WEIGHT buffer belongs to no weight")


def _check_tensor(
    program: CompiledProgram,
    tensor: TensorSpec | WeightSpec,
    stored: tuple[int, ...],
    kind: BufferKind,
    where: str,
) -> None:
    """Verifies that a buffer of `kind` holds exactly a dense tensor of shape `stored`."""
    _require(0 <= tensor.buffer < len(program.buffers), f"{where}: no buffer {tensor.buffer}")
    buffer = program.buffers[tensor.buffer]
    _require(buffer.kind is kind, f"{where}: its buffer is {buffer.kind.name}, not {kind.name}")
    _require(tensor.dtype in DTYPES, f"{where}: unknown dtype {tensor.dtype!r}")
    _require(len(stored) <= MAX_RANK, f"{where}: {len(stored)} dimensions; {MAX_RANK} at most")
    _require(all(0 <= d <= MAX_BYTES for d in stored), f"{where}: impossible shape {stored}")
    size = dtype_size(tensor.dtype)
    _check_bytes(prod(max(d, 1) for d in stored) * size, f"{where}: extent of shape {stored}")
    _require(
        prod(stored) * size == buffer.bytes,
        f"{where}: {tensor.dtype}{list(stored)} takes {prod(stored) * size} bytes, "
        f"its buffer has {buffer.bytes}",
    )


def _check_method(program: CompiledProgram, method: Method, where: str) -> None:
    _check_bytes(method.arena_bytes, f"{where}: arena_bytes")
    _check_specs(program, method.inputs, BufferKind.INPUT, f"{where}, input")
    _check_specs(program, method.outputs, BufferKind.OUTPUT, f"{where}, output")
    bound = {spec.buffer for spec in method.inputs + method.outputs}
    for index, command in enumerate(method.commands):
        _check_command(program, method, command, bound, f"{where}, command {index}")


def _check_specs(
    program: CompiledProgram, specs: tuple[TensorSpec, ...], kind: BufferKind, where: str
) -> None:
    _require_distinct((s.name for s in specs), f"{where} name")
    _require_distinct((s.buffer for s in specs), f"{where} buffer")
    for spec in specs:
        here = f"{where} {_quote(spec.name)}"
        _require(bool(spec.name), f"{where} has no name")
        _check_tensor(program, spec, spec.alloc_shape, kind, here)
        fits = len(spec.shape) == len(spec.alloc_shape) and all(
            is_symbolic(a) or 0 <= a <= b for a, b in zip(spec.shape, spec.alloc_shape, strict=True)
        )
        _require(fits, f"{here}: shape {spec.shape} does not fit {spec.alloc_shape}")


def _check_command(
    program: CompiledProgram, method: Method, command: Command, bound: set[int], where: str
) -> None:
    _require(0 <= command.kernel < len(program.kernels), f"{where}: no kernel {command.kernel}")
    _require(0 <= command.node < len(program.nodes), f"{where}: no node {command.node}")
    _require(
        not (command.patches and program.kernels[command.kernel].image),
        f"{where}: device code has its sizes as constants, and the command's depend on the call",
    )
    allowed = _INIT_ACCESS if method is program.init else _RUN_ACCESS
    for position, operand in enumerate(command.operands):
        here = f"{where}, operand {position}"
        _require(0 <= operand.buffer < len(program.buffers), f"{here}: no buffer {operand.buffer}")
        buffer = program.buffers[operand.buffer]
        _require(
            operand.access in allowed.get(buffer.kind, ()),
            f"{here}: {operand.access.name} of a {buffer.kind.name} buffer is not allowed here",
        )
        _require(
            0 <= operand.offset < max(buffer.bytes, 1),
            f"{here}: offset {operand.offset} is outside the buffer's {buffer.bytes} bytes",
        )
        if buffer.kind is BufferKind.TEMP:
            end = buffer.offset + buffer.bytes
            _require(end <= method.arena_bytes, f"{here}: its buffer passes the method's arena")
        if buffer.kind in (BufferKind.INPUT, BufferKind.OUTPUT):
            _require(operand.buffer in bound, f"{here}: buffer {operand.buffer} is never bound")

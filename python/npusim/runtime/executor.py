"""Executor: runs a program's methods over device buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim import _runtime
from npusim.errors import ShapeError
from npusim.program.program import BufferKind, TensorSpec
from npusim.runtime.device import DeviceBuffer
from npusim.runtime.host import Array, numpy_dtype
from npusim.runtime.native import ProgramLike, native_device, native_program, specs

Observer = Callable[[int], None]


class Executor:
    """A program made ready for a device.

    Loading does all the work that can be done before the inputs are known; running allocates
    outputs only. One thread may run it at a time: a second one gets a DeviceError.

    Args:
        program: a CompiledProgram, or the path of a `.npubin` file.
        device: where to run it.

    Attributes:
        device: where buffers for it lie: what was given, or what all ranks of the program are,
            where each has memory of its own.

    Raises:
        ProgramFormatError: the program is malformed, or calls kernels the device does not have.
    """

    def __init__(self, program: ProgramLike, device: _runtime.Device) -> None:
        self._program = native_program(program)
        self._opened = native_device(device)
        self._native = _runtime.Executor(self._program, device)
        self.device: _runtime.Device = self._native.ranks_device or device
        self._signatures: dict[str | None, _Signature] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # By what it is made of, and the state of its own.
        own = self._native.own_state
        state = None
        if own is not None:
            kinds = [kind for kind, *_ in self._program.buffers]
            state = {i: own.read(i) for i, kind in enumerate(kinds) if kind == BufferKind.STATE}
        return type(self), (self._program, self._opened), state

    def __setstate__(self, state: Mapping[int, bytes]) -> None:
        own = _runtime.State(self._program, self._opened)
        for buffer, content in state.items():
            own.write(buffer, content)
        self._native.own_state = own

    def __repr__(self) -> str:
        return f"Executor({', '.join(self.methods)} on {self.device.name})"

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods, the default one first."""
        return tuple(self._program.methods)

    def inputs(self, method: str | None = None) -> list[TensorSpec]:
        """Returns the inputs of a method, in order; symbolic sizes in shapes as they are."""
        return list(self._signature(method).inputs)

    def outputs(self, method: str | None = None) -> list[TensorSpec]:
        """Returns the outputs of a method, in order; symbolic sizes in shapes as they are."""
        return list(self._signature(method).outputs)

    def specs_for(
        self, shapes: Sequence[Sequence[int]], method: str | None = None
    ) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """Returns the inputs and the outputs of a method for a call, without symbolic sizes.

        Args:
            shapes: those of all inputs, in order. They settle the symbolic sizes; of a method
                without such they are not looked at.

        Raises:
            ShapeError: they do not fit; says which input and dimension, and what is possible.
        """
        found = self._at_call(self._signature(method), shapes)
        return list(found.inputs), list(found.outputs)

    def sizes_for(
        self, shapes: Sequence[Sequence[int]], method: str | None = None
    ) -> dict[str, int]:
        """Returns the value of each symbolic size for a call; arguments and errors are those of
        `specs_for`."""
        index = self._signature(method).index
        values = self._program.bind(index, [list(shape) for shape in shapes])
        names = (name for name, _, _ in self._program.symbols(index))
        return dict(zip(names, values, strict=True))

    def outputs_at(self, sizes: Sequence[int], method: str | None = None) -> list[TensorSpec]:
        """Returns the outputs of a method for values of its symbolic sizes, in their order."""
        return specs(self._program.specs_at(self._signature(method).index, sizes)[1])

    def commands(self, method: str | None = None) -> list[tuple[str, str, str]]:
        """Returns (kernel, node, source) of each command of a method, in order."""
        return self._program.commands(self._native.method_index(method or ""))

    def implementations(self, method: str | None = None) -> list[str]:
        """Returns the library, with its version, that computes each command; empty: a kernel."""
        return self._native.implementations(self._native.method_index(method or ""))

    def run(
        self,
        inputs: Mapping[str, _runtime.DeviceBuffer],
        weights: _runtime.Weights | None = None,
        method: str | None = None,
        outputs: Mapping[str, _runtime.DeviceBuffer] | None = None,
        state: _runtime.State | None = None,
    ) -> dict[str, DeviceBuffer]:
        """Runs a method and returns its outputs by name.

        On an asynchronous device the work stands in the device's queue when this returns: reading
        an output waits for it, and so does whatever else is put there (`device.stream` on cuda). A
        method that can meet a value it cannot serve, and a run over memory that others own, are
        waited for.

        Args:
            inputs: a buffer of the executor's device for every input.
            weights: what `load_weights` returned for the same program and device; None when the
                program has none.
            method: its name; by default the first.
            outputs: buffers to write to; the others are allocated. One may be an input as well.
            state: the State the run reads and changes; by default the executor's own.

        Raises:
            ShapeError: a buffer is missing, unknown, of another shape or dtype, or elsewhere.
            WeightMismatchError: the weights are missing, or another program's.
            DeviceError: the executor is running on another thread.
            Error: a kernel met a value it cannot serve, such as an index out of range.
        """
        index, given, results, sizes = self._bind(inputs, method, outputs)
        self._native.run(index, given, list(results.values()), weights, state, sizes)
        return results

    def observe(
        self,
        after: Observer,
        inputs: Mapping[str, _runtime.DeviceBuffer],
        weights: _runtime.Weights | None = None,
        method: str | None = None,
        state: _runtime.State | None = None,
    ) -> dict[str, DeviceBuffer]:
        """Runs a method one command at a time, calling `after(index)` after each command.

        Computes the same bits as `run`. `read_buffer` shows values from within `after`.
        """
        index, given, results, sizes = self._bind(inputs, method, None)
        self._native.observe(index, given, list(results.values()), weights, after, state, sizes)
        return results

    def time(
        self,
        inputs: Mapping[str, _runtime.DeviceBuffer],
        weights: _runtime.Weights | None = None,
        method: str | None = None,
        outputs: Mapping[str, _runtime.DeviceBuffer] | None = None,
        state: _runtime.State | None = None,
    ) -> list[float]:
        """Runs a method one command at a time; returns how long each command took, in seconds.

        Arguments and effects are those of `run`. The clock is the host's unless the device measures
        itself. The sum is not what a run takes: commands
        that a run starts together, or ahead of each other, are kept apart here.
        """
        index, given, results, sizes = self._bind(inputs, method, outputs)
        return self._native.time(index, given, list(results.values()), weights, state, sizes)

    def time_run(
        self,
        inputs: Mapping[str, _runtime.DeviceBuffer],
        weights: _runtime.Weights | None = None,
        method: str | None = None,
        outputs: Mapping[str, _runtime.DeviceBuffer] | None = None,
        state: _runtime.State | None = None,
    ) -> float:
        """As `run`; returns how long the run took, in seconds, without Python's part of the call.

        The clock is the host's, and stops when the results are there.
        """
        index, given, results, sizes = self._bind(inputs, method, outputs)
        return self._native.time_run(index, given, list(results.values()), weights, state, sizes)

    def read_buffer(self, index: int, dtype: str = "uint8") -> Array | None:
        """Returns a copy of a program buffer as a flat array, or None if it is not bound.

        Within an observer every buffer of the run is; otherwise only what belongs to the executor:
        temporaries, constants, and a state and weights of its own.

        A temporary shares memory with others: its content is what the command just observed, or
        the latest one that writes there, has left.

        Args:
            index: of `CompiledProgram.buffers`.
            dtype: how to read it; bfloat16 shows as uint16 bits.
        """
        data = self._native.read_buffer(index)
        if data is None:
            return None
        return np.frombuffer(data, "uint16" if dtype == "bfloat16" else numpy_dtype(dtype))

    def write_buffer(self, index: int, data: bytes) -> None:
        """Replaces the first bytes of a program buffer, from within an observer: the commands
        that follow read what is given here.

        Args:
            index: of `CompiledProgram.buffers`; a temporary, an output or a state.
            data: no more than the buffer holds, as it is stored.

        Raises:
            ShapeError: the buffer is smaller, not bound, or not one that commands write.
        """
        self._native.write_buffer(index, data)

    def _bind(
        self,
        inputs: Mapping[str, _runtime.DeviceBuffer],
        method: str | None,
        outputs: Mapping[str, _runtime.DeviceBuffer] | None,
    ) -> tuple[int, list[_runtime.DeviceBuffer], dict[str, Any], Sequence[int]]:
        """Returns the method's index, its inputs in order, its outputs by name, in order, and the
        values of its symbolic sizes."""
        wanted = self._signature(method)
        ordered = _in_order(inputs, wanted.inputs, "input")
        if wanted.symbolic:
            shapes = [_buffer(b, s).shape for b, s in zip(ordered, wanted.inputs, strict=True)]
            wanted = self._at_call(wanted, shapes)
        given = [_fitting(b, spec) for b, spec in zip(ordered, wanted.inputs, strict=True)]
        held = outputs or {}
        _refuse_unknown(held, wanted.outputs, "output")
        results: dict[str, Any] = {
            spec.name: _fitting(held[spec.name], spec)
            if spec.name in held
            else DeviceBuffer.for_result(self.device, spec)
            for spec in wanted.outputs
        }
        return wanted.index, given, results, wanted.sizes

    def _signature(self, method: str | None) -> _Signature:
        found = self._signatures.get(method)
        if found is None:
            index, program = self._native.method_index(method or ""), self._program
            symbols = program.symbols(index)
            inputs, outputs = program.inputs(index), program.outputs(index)
            given, results = specs(inputs, symbols), specs(outputs, symbols)
            found = _Signature(index, given, results, bool(symbols))
            self._signatures[method] = found
        return found

    def _at_call(self, found: _Signature, shapes: Sequence[Sequence[int]]) -> _Signature:
        """Returns a method as it is for a call with these shapes of its inputs."""
        sizes = self._program.bind(found.index, [list(shape) for shape in shapes])
        inputs, outputs = self._program.specs_at(found.index, sizes)
        return _Signature(found.index, specs(inputs), specs(outputs), False, sizes)


@dataclass(frozen=True)
class _Signature:
    """A method: its index, and its inputs and outputs in order.

    Attributes:
        symbolic: shapes hold symbolic sizes, which a call has to settle; then `sizes` are they.
    """

    index: int
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    symbolic: bool
    sizes: Sequence[int] = ()


def _refuse_unknown(given: Mapping[str, object], wanted: list[TensorSpec], what: str) -> None:
    if not given:
        return
    unknown = sorted(set(given) - {spec.name for spec in wanted})
    if unknown:
        known = ", ".join(spec.name for spec in wanted) or "none"
        raise ShapeError(f"unknown {what} {', '.join(unknown)}; the method has: {known}.")


def _in_order(
    given: Mapping[str, _runtime.DeviceBuffer], wanted: list[TensorSpec], what: str
) -> list[_runtime.DeviceBuffer]:
    _refuse_unknown(given, wanted, what)
    missing = [spec.name for spec in wanted if spec.name not in given]
    if missing:
        raise ShapeError(f"missing {what} {', '.join(missing)}.")
    return [given[spec.name] for spec in wanted]


def _buffer(value: object, spec: TensorSpec) -> _runtime.DeviceBuffer:
    if not isinstance(value, _runtime.DeviceBuffer):
        raise ShapeError(
            f"'{spec.name}' is a {type(value).__name__}, not a DeviceBuffer.",
            hint="Make one: DeviceBuffer.from_numpy(array, device, spec).",
        )
    return value


def _fitting(value: object, spec: TensorSpec) -> _runtime.DeviceBuffer:
    if type(value) is DeviceBuffer and value.fits(spec.dtype, spec.shape, spec.alloc_shape):
        return value
    buffer = _buffer(value, spec)
    held = (buffer.dtype, tuple(buffer.shape), tuple(buffer.alloc_shape))
    if held != (spec.dtype, spec.shape, spec.alloc_shape):
        raise ShapeError(
            f"'{spec.name}' is {buffer.dtype}{list(buffer.shape)} in memory for "
            f"{list(buffer.alloc_shape)}, expected {spec.dtype}{list(spec.shape)} in memory for "
            f"{list(spec.alloc_shape)}."
        )
    return buffer

"""State: what the runs of a program leave for the next one, such as a cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from npusim import _runtime
from npusim.errors import ShapeError
from npusim.program.program import BufferKind
from npusim.runtime.host import Array, dtype_of, from_bfloat16_bits, numpy_dtype, to_bfloat16_bits
from npusim.runtime.native import ProgramLike, native_device, native_program


class State(_runtime.State):
    """The state of one session of a program on a device; zero at first.

    Give it to `Executor.run`; the runs of other states leave it as it is.

    Args:
        program: a CompiledProgram, or the path of a `.npubin` file; the executor's.
        device: the executor's.
    """

    def __init__(self, program: ProgramLike, device: _runtime.Device) -> None:
        self._program = native_program(program)
        self._device = native_device(device)
        super().__init__(self._program, device)
        self._tensors = {row[0]: row[1:] for row in self.tensors()}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors."""
        return tuple(self._tensors)

    def get(self, name: str) -> Array:
        """Returns a copy of a tensor; bfloat16 comes as float32."""
        buffer, dtype, shape = self._row(name)
        raw = np.dtype("uint16") if dtype == "bfloat16" else numpy_dtype(dtype)
        array = np.frombuffer(self.read(buffer), raw).reshape(shape)
        return from_bfloat16_bits(array) if dtype == "bfloat16" else array

    def set(self, name: str, value: ArrayLike) -> None:
        """Replaces a tensor; for bfloat16, float32 is rounded to nearest even.

        Raises:
            ShapeError: another shape or dtype than the tensor's.
        """
        buffer, dtype, shape = self._row(name)
        array = np.asarray(value)
        wanted = "float32" if dtype == "bfloat16" else dtype
        if (array.shape, dtype_of(array)) != (shape, wanted):
            raise ShapeError(
                f"State '{name}' is {wanted}{list(shape)}, got "
                f"{dtype_of(array)}{list(array.shape)}."
            )
        raw = to_bfloat16_bits(array) if dtype == "bfloat16" else array
        self.write(buffer, raw.astype(raw.dtype.newbyteorder("=")).tobytes())

    def copy(self) -> State:
        """Returns another state with the same content."""
        twin = State(self._program, self._device)
        twin.__setstate__(self._content())
        return twin

    __copy__ = copy

    def __deepcopy__(self, memo: object) -> State:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._program, self._device), self._content()

    def __setstate__(self, content: Mapping[int, bytes]) -> None:
        for buffer, held in content.items():
            self.write(buffer, held)

    def _content(self) -> dict[int, bytes]:
        kinds = [kind for kind, *_ in self._program.buffers]
        return {i: self.read(i) for i, kind in enumerate(kinds) if kind == BufferKind.STATE}

    def __repr__(self) -> str:
        return f"State({', '.join(self.names) or 'no tensors'} on {self._device.name})"

    def _row(self, name: str) -> tuple[int, str, tuple[int, ...]]:
        row = self._tensors.get(name)
        if row is None:
            known = ", ".join(self._tensors) or "none"
            raise ShapeError(f"The program has no state '{name}'; it has: {known}.")
        return row

"""Running a native partition: its program, weights and states on a device.

Owns what a program is given: of a checkpoint its own weights, of a call's values its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npusim import _runtime
from npusim.errors import Error
from npusim.partition.crossing import Held
from npusim.partition.plan import Partition
from npusim.program.program import CompiledProgram, TensorSpec
from npusim.runtime.checkpoint import Checkpoint
from npusim.runtime.device import DeviceBuffer
from npusim.runtime.executor import Executor
from npusim.runtime.state import State
from npusim.runtime.weights import Progress, Weights, WeightSource, load_weights

Values = dict[str, Held]  # of one call, by name


class NativeRun:
    """A native partition on a device.

    Attributes:
        inputs: what its program takes; symbolic sizes in shapes as they are.
        states: the names of those that it keeps.

    Raises:
        Error: the partition is not compiled.
        ProgramFormatError: its program is for another device.
    """

    def __init__(self, partition: Partition, device: _runtime.Device) -> None:
        if partition.program is None:
            raise Error("The plan is a draft: its partitions are not compiled.")
        self._program: CompiledProgram = partition.program
        self._device = device
        self._executor = Executor(partition.program, device)
        self.inputs = self._executor.inputs()
        self._weights: Weights | None = None
        self.states = tuple(s.name for s in partition.graph.states)
        self._keys = {k for w in partition.program.weights for k in w.keys}
        self._witnesses = partition.witnesses
        self.reset()

    def load(
        self, source: WeightSource | None, copy: bool = False, progress: Progress | None = None
    ) -> None:
        """Loads its weights; errors as `npusim.load_weights`."""
        checkpoint = source if isinstance(source, Checkpoint) else Checkpoint(source or {})
        held = checkpoint.source
        if isinstance(held, Mapping):  # what others read is not this program's to look at
            own = {checkpoint.name_of(key) for key in self._keys}
            mine = {key: held[key] for key in held if key in own}
            source = Checkpoint(mine, checkpoint.rename)
        elif not self._keys:
            source = None
        self._weights = load_weights(
            source, self._program, self._device, copy=copy, progress=progress
        )

    def reset(self) -> None:
        """Makes its states zero."""
        self._state = State(self._program, self._device) if self.states else None

    def state_of(self, name: str) -> Any:
        """Returns a copy of one of its states as an array."""
        assert self._state is not None
        return self._state.get(name)

    def run(self, values: Values, specs: Sequence[TensorSpec]) -> dict[str, DeviceBuffer]:
        """Runs it on values of a call, whose inputs the specs describe."""
        inputs = {
            spec.name: DeviceBuffer.for_result(self._device, spec)
            if spec.name in self._witnesses
            else values[spec.name].buffer(spec)
            for spec in specs
        }
        return dict(self._executor.run(inputs, self._weights, state=self._state))

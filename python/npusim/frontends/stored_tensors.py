"""What an exported program brings beside its inputs: weights, constants and states of a Graph.

Owns which of these a tensor becomes. A weight is what the checkpoint holds, or what is too large to
travel with a graph; a constant has its data in the graph; a buffer that forward changes is a state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from npusim.errors import ExportError
from npusim.frontends import MAX_CONSTANT_BYTES
from npusim.frontends.dynamic_shapes import Sizes
from npusim.frontends.weight_free import ModuleTensors
from npusim.ir.graph import Constant, Value, Weight
from npusim.ir.rewrite import Names


class StoredTensors:
    """The weights, constants and states of a graph to be.

    Args:
        program: whose lifted constants may be asked for.
        tensors: parameters and buffers of the module it was traced from.
        sizes: its symbolic sizes.
        names: where the graph's values get their names.

    Attributes:
        constants: in the order in which they were added.
        states: by the path of their buffer.
    """

    def __init__(
        self, program: ExportedProgram, tensors: ModuleTensors, sizes: Sizes, names: Names
    ) -> None:
        self._program = program
        self._tensors = tensors
        self._sizes = sizes
        self._names = names
        self._weights: dict[str, Weight] = {}  # by key
        self.constants: list[Constant] = []
        self.states: dict[str, Value] = {}

    def weights(self) -> tuple[Weight, ...]:
        """Returns the weights in the order of the module's own listing."""
        order = {path: i for i, path in enumerate(self._tensors.originals)}
        return tuple(sorted(self._weights.values(), key=lambda w: order.get(w.key, len(order))))

    def add(self, spec: Any, tensor: Tensor, *, state: bool) -> str:
        """Adds a parameter, buffer or lifted constant; returns the name of its value.

        Args:
            spec: torch.export's InputSpec of it.
            tensor: the fake tensor that stood for it in the trace.
            state: whether forward changes it.

        Raises:
            ExportError: it is none of these, or no graph can hold it.
        """
        target, kinds = str(spec.target), (InputKind.PARAMETER, InputKind.BUFFER)
        if state:
            return self._add_state(target, tensor)
        if spec.kind in kinds and target in self._tensors.originals:
            paths = self._tensors.paths(target)
            if paths[0] in self._tensors.persistent:
                return self._add_weight(paths, tensor, persistent=True)
            data = self._tensors.originals[target]
        elif spec.kind in (*kinds, InputKind.CONSTANT_TENSOR):
            data = self._program.constants[target]
        else:
            raise ExportError(f"a {spec.kind.name.lower()} cannot be part of a graph.")
        return self.add_constant(target, data)

    def add_constant(self, target: str, data: Tensor) -> str:
        """Embeds a tensor that no checkpoint holds, if its data is at hand and small.

        Raises:
            ExportError: forward made it, and it has no data.
        """
        made_by_forward = target not in self._tensors.originals
        hollow = isinstance(data, FakeTensor) or data.device.type == "meta"
        if made_by_forward and hollow:
            raise ExportError(
                "a tensor made in forward has no data; make it on the input's device."
            )
        if hollow or (not made_by_forward and data.nbytes > MAX_CONSTANT_BYTES):
            return self._add_weight((target,), data, persistent=False)
        value = self._value(target, data)
        dense = data.detach().to("cpu").contiguous()
        raw = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        self.constants.append(Constant(value.name, value.type, raw))
        return value.name

    def _add_state(self, target: str, tensor: Tensor) -> str:
        data = self._tensors.originals.get(target)
        hollow = data is None or isinstance(data, FakeTensor) or data.device.type == "meta"
        if not hollow and bool(torch.any(data != 0)):  # type: ignore[arg-type]
            raise ExportError(
                "forward changes this buffer, and it does not start as zeros; states do. "
                "Zero it before the extraction, or store the offset in another buffer"
            )
        self.states[target] = self._value(target, tensor)
        return self.states[target].name

    def _add_weight(self, paths: tuple[str, ...], tensor: Tensor, *, persistent: bool) -> str:
        key, *aliases = paths
        if key not in self._weights:
            value = self._value(key, tensor)
            self._weights[key] = Weight(value.name, key, value.type, tuple(aliases), persistent)
        return self._weights[key].name

    def _value(self, name: str, tensor: Tensor) -> Value:
        type = self._sizes.type_of(tensor)
        return Value(self._names.fresh(name), type)

"""npusim as a backend of ONNX: `prepare`, `run_model`, `run_node`, `supports_device`.

What a graph needs to know before a run (shapes, axes, conditions) and the model computes from its
inputs is specialised at the call: the values are fixed, the model is imported and compiled for
them, and the result is kept for the next call with the same values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.backend.base import Backend, BackendRep

from npusim.errors import Error, ShapeError, UnsupportedOpError
from npusim.frontends.onnx import Imported, from_onnx
from npusim.frontends.onnx.builder import NeedsValues
from npusim.frontends.onnx.kinds import carried, restored

Array = NDArray[Any]
Given: TypeAlias = "Array | list[Array] | None"
_CACHED = 16


class Prepared(BackendRep):  # type: ignore[misc]
    """A model made ready to run; compiled at the first call, for the shapes that it brings.

    Attributes:
        ran: who computed the last call: "native", "pytorch" when PyTorch ran a part of it, or
            "imported" when nothing was left to run: all was computed from specialised values.
    """

    def __init__(self, model: onnx.ModelProto, device: str, fallback: bool = True) -> None:
        self._model, self._device, self._fallback = model, device.lower().split(":")[0], fallback
        self._fixed: frozenset[str] = frozenset()
        self._programs: dict[Any, _Program] = {}
        stored = {t.name for t in model.graph.initializer}
        self._inputs = [i for i in model.graph.input if i.name not in stored]
        self.ran = ""

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Returns the outputs in order, of ONNX's own element types.

        Args:
            inputs: arrays in the order of the model's inputs, or by name; one array alone stands
                for a list of it. A sequence is a list of arrays, an optional may be None.

        Raises:
            Error: what importing, compiling and running raise.
        """
        given = self._named(inputs)
        while True:
            try:
                program = self._program(given)
                break
            except NeedsValues as error:
                wanted = self._fixed | error.inputs
                if wanted == self._fixed:
                    raise
                self._fixed = wanted
        self.ran = program.ran
        return program(given)

    def _named(self, inputs: Any) -> dict[str, Given]:
        if isinstance(inputs, Mapping):
            return {name: _arrays(value) for name, value in inputs.items()}
        listed = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        if len(listed) > len(self._inputs):
            raise ShapeError(f"The model takes {len(self._inputs)} inputs, not {len(listed)}.")
        return {i.name: _arrays(v) for i, v in zip(self._inputs, listed, strict=False)}

    def _program(self, given: Mapping[str, Given]) -> _Program:
        values = {n: a for n in self._fixed if isinstance(a := given.get(n), np.ndarray)}
        key = (
            tuple((n, _shape(a)) for n, a in given.items()),
            tuple((n, a.dtype.str, a.tobytes()) for n, a in sorted(values.items())),
        )
        if key not in self._programs:
            shapes = {n: _shape(a) for n, a in given.items() if n not in values}
            imported = from_onnx(self._model, shapes=shapes, values=values)
            if len(self._programs) >= _CACHED:
                self._programs.pop(next(iter(self._programs)))
            self._programs[key] = _Program(imported, self._device, self._fallback)
        return self._programs[key]


class _Program:
    """An imported model, compiled and loaded."""

    def __init__(self, imported: Imported, device: str, fallback: bool) -> None:
        import npusim

        graph = imported.graph
        self.imported = imported
        self.ran = "native" if graph.nodes or not imported.evaluated else "imported"
        weights = {k: _plain(a) for k, a in imported.weights.items()}
        try:
            program = npusim.compile(graph, device)
            session = npusim.load(program, weights or None, device)
            self._call: Any = lambda arrays: session(*arrays.values())
        except UnsupportedOpError:
            if not fallback:
                raise
            from npusim.partition.executor import DAGExecutor

            self.ran = "pytorch"
            plan = npusim.partition(graph, target=device)
            executor = DAGExecutor(plan, device, summary=False).load_weights(weights or None)
            self._call = lambda arrays: tuple(executor.execute(arrays).values())

    def __call__(self, given: Mapping[str, Given]) -> tuple[Any, ...]:
        flat = _flat(given)
        arrays = {v.name: _plain(carried(flat[v.name])) for v in self.imported.graph.inputs}
        results = self._call(arrays)
        outputs = self.imported.graph.outputs
        kinds = self.imported.kinds
        found = iter(
            [restored(np.asarray(r), kinds[o.name]) for o, r in zip(outputs, results, strict=True)]
        )
        lengths = self.imported.lengths
        return tuple(next(found) if n is None else [next(found) for _ in range(n)] for n in lengths)


def _arrays(value: Any) -> Given:
    if isinstance(value, (list, tuple)):
        return [np.asarray(item) for item in value]
    return None if value is None else np.asarray(value)


def _shape(given: Given) -> tuple[Any, ...] | None:
    if isinstance(given, list):
        return tuple(item.shape for item in given)
    return None if given is None else given.shape


def _flat(given: Mapping[str, Given]) -> dict[str, Array]:
    """Returns tensors by the names of the graph's inputs: an element of a sequence has its own."""
    flat: dict[str, Array] = {}
    for name, value in given.items():
        if isinstance(value, list):
            flat.update({f"{name}.{i}": item for i, item in enumerate(value)})
        elif value is not None:
            flat[name] = value
    return flat


def _plain(array: Array) -> Array:
    """Returns bfloat16, which the runtime takes as float32, as that."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


class NpusimBackend(Backend):  # type: ignore[misc]
    """The backend, as `onnx.backend.base` wants it."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Returns a model made ready to run.

        Args:
            model: of any opset that can be imported.
            device: "CPU" or "CUDA".
            fallback: let PyTorch run what has no kernel (default); keyword.

        Raises:
            Error: no such device here.
        """
        if not cls.supports_device(device):
            raise Error(f"There is no device {device!r} here.")
        return Prepared(model, device, bool(kwargs.get("fallback", True)))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Array, ...]:
        """Runs a model once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Runs one node, of the newest opset unless `opset_version` says another."""
        arrays = [np.asarray(a) for a in inputs]
        names = [name for name in node.input if name]
        infos = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(names, arrays, strict=True)
        ]
        outputs = [onnx.helper.make_value_info(n, onnx.TypeProto()) for n in node.output if n]
        graph = onnx.helper.make_graph([node], "node", infos, outputs)
        version = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        opset = onnx.helper.make_opsetid("", version)
        model = onnx.shape_inference.infer_shapes(
            onnx.helper.make_model(graph, opset_imports=[opset])
        )
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Tells whether "CPU", "CUDA" or "CUDA:0" is there."""
        from npusim.runtime import Device

        try:
            Device(device.lower().split(":")[0])
        except Error:
            return False
        return True


prepare = NpusimBackend.prepare
run_model = NpusimBackend.run_model
run_node = NpusimBackend.run_node
supports_device = NpusimBackend.supports_device

"""A plan at the sizes of a call: types, what PyTorch runs, and how programs want their inputs.

Owns what depends on symbolic sizes. A form is made by the first call at some sizes, and the latest
are kept; a plan of fixed sizes has one. What PyTorch is to run is checked when a form is made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npusim import _runtime
from npusim.ir.specialize import bind_sizes, specialize
from npusim.ir.symbolic import is_symbolic, substituted
from npusim.ir.types import TensorType
from npusim.partition.plan import PartitionPlan
from npusim.program.program import TensorSpec
from npusim.runtime.weights import WeightSource

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import CapsuleType

    from npusim.partition.host import HostRun

_KEPT = 8  # as many as an executor keeps of a program


@dataclass(frozen=True)
class Form:
    """A plan at some sizes.

    Attributes:
        types: of all values, without symbolic sizes.
        hosts: by index, the partitions that PyTorch runs.
        inputs: by index, what the programs of the others take.
        wanted: by value, how a program takes it.
    """

    types: Mapping[str, TensorType]
    hosts: Mapping[int, HostRun]
    inputs: Mapping[int, Sequence[TensorSpec]]
    wanted: Mapping[str, TensorSpec]


class Forms:
    """The forms of a plan, with the weights that PyTorch reads.

    Args:
        inputs: by index of a native partition, what its program takes.
    """

    def __init__(self, plan: PartitionPlan, inputs: Mapping[int, Sequence[TensorSpec]]) -> None:
        self._plan = plan
        self._inputs = inputs
        self._signature = [(v.name, v.type.shape) for v in plan.graph.inputs]
        self._symbols = plan.graph.symbols
        self._files: CapsuleType | None = None  # after the weights: goes before they do
        self._weights: Mapping[str, Tensor] = {}
        self._known: OrderedDict[tuple[int, ...], Form] = OrderedDict()

    def load(self, source: WeightSource | None, copy: bool = False) -> None:
        """Loads the weights that PyTorch reads, and makes the form of the greatest sizes.

        Raises:
            WeightMismatchError, ProgramFormatError, Error: see `host_tensors` and `HostRun`.
        """
        self._known.clear()
        self._files = None
        hosts = [p for p in self._plan.partitions if not p.is_native]
        if hosts:
            from npusim.partition.host_weights import host_tensors

            self._weights = host_tensors(
                source, {w.name: w for p in hosts for w in p.graph.weights}.values(), copy
            )
            self._files = _runtime.watch_files(
                [(t.data_ptr(), t.untyped_storage().nbytes()) for t in self._weights.values()]
            )
        self._at({s.name: s.high for s in self._symbols})

    def check_files(self) -> None:
        """Raises Error when a file that weights lie in was changed in place."""
        if self._files is not None:
            _runtime.check_files(self._files)

    def greatest(self) -> Form:
        """Returns the form of the greatest sizes; of a plan of fixed sizes, the only one."""
        return self._at({s.name: s.high for s in self._symbols})

    def for_call(self, shapes: Sequence[Sequence[int]]) -> Form:
        """Returns the form for a call with these shapes of all inputs, in order.

        Raises:
            ShapeError: they do not fit symbolic sizes; says where, and what is possible.
            Error: an operator of PyTorch refuses its operands at these sizes.
        """
        if not self._symbols:
            return self.greatest()
        return self._at(bind_sizes(self._signature, shapes))

    def _at(self, sizes: Mapping[str, int]) -> Form:
        key = tuple(sizes[s.name] for s in self._symbols)
        if key not in self._known:
            self._known[key] = self._made(sizes)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def _made(self, sizes: Mapping[str, int]) -> Form:
        graph = self._plan.graph
        types = {name: _type_at(kind, sizes) for name, kind in graph.types.items()}
        inputs = {i: [_spec_at(s, sizes) for s in specs] for i, specs in self._inputs.items()}
        wanted = {spec.name: spec for specs in inputs.values() for spec in specs}
        return Form(types, self._hosts(sizes), inputs, wanted)

    def _hosts(self, sizes: Mapping[str, int]) -> dict[int, HostRun]:
        hosts = {}
        for partition in self._plan.partitions:
            if partition.is_native:
                continue
            from npusim.partition.host import HostRun

            known = {s.name: sizes[s.name] for s in partition.graph.symbols}
            hosts[partition.index] = HostRun(specialize(partition.graph, known), self._weights)
        return hosts


def _type_at(kind: TensorType, sizes: Mapping[str, int]) -> TensorType:
    if not is_symbolic(kind.shape):
        return kind
    return replace(kind, shape=substituted(kind.shape, sizes))


def _spec_at(spec: TensorSpec, sizes: Mapping[str, int]) -> TensorSpec:
    if not is_symbolic(spec.shape):
        return spec
    shape = substituted(spec.shape, sizes)
    return replace(spec, shape=shape, alloc_shape=shape)

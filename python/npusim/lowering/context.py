"""Lowering: Graphs after the passes, the methods of one model, become commands over buffers.

Owns the bookkeeping every op's lowering shares: which view shows a value, which buffers exist,
which command belongs to the init method (it writes only what is known from the weights alone) and
which to the run. What an op emits stands in its OpDef. Methods share weights, states and whatever
init computes: the same static computation in two of them is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from npusim.abi.kernels import KERNELS, RANK, KernelDef
from npusim.abi.literals import bfloat16_bits, checked_literal
from npusim.errors import GraphError, SymbolicSizeError, TargetConstraintError, at
from npusim.ir.graph import Graph, Node, Output, Value, Weight
from npusim.ir.opdef import find
from npusim.ir.symbolic import is_symbolic, upper
from npusim.ir.types import TensorType, dtype_code, dtype_size, row_major
from npusim.lowering.concatenations import Place, places
from npusim.lowering.constraints import Refusal, op_constraint
from npusim.lowering.storage import is_apart, keeps_to, padded
from npusim.lowering.view import View, collapse, in_parts
from npusim.program.program import (
    Access,
    BufferKind,
    Command,
    Kernel,
    NodeInfo,
    Operand,
    Patch,
    PatchKind,
    TensorSpec,
    WeightPart,
    WeightSpec,
)
from npusim.targets import TargetConfig

Param: TypeAlias = "int | float | Sequence[int] | Sequence[float]"


@dataclass(slots=True)
class PendingBuffer:
    """A buffer before planning. `static`: its content depends on weights and constants alone."""

    kind: BufferKind
    bytes: int
    name: str
    static: bool
    data: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True, eq=False)
class Emitted:
    """A command as it was emitted: what `Lowering.emit` was given."""

    kernel: str
    params: Mapping[str, Param]
    reads: Sequence[View]
    writes: Sequence[View]


@dataclass(slots=True)
class PendingMethod:
    """Commands with, for each, the pairs (read, written) of buffers that may share memory, and
    what it was made of."""

    name: str = ""
    inputs: list[TensorSpec] = field(default_factory=list)
    outputs: list[TensorSpec] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    in_place: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    emitted: list[Emitted] = field(default_factory=list)


class Lowering:
    """Turns the methods of a program into commands, one `method` call each; see `assemble`.

    A static node is lowered when the first command asks for its result: what nobody needs, or
    needs only the parts of, is never computed. A node that the target cannot run is put into
    `refused`, and lowering goes on as if it could, so that all of them are found. What is handed
    out as it came, and cannot be, has a line in `unbound`.

    Args:
        trial: only `refused` is wanted: constants are not copied.
        dense_calls: inputs and outputs are dense, whatever padding the target asks for: those of
            methods that share states, whose tensors a session writes and reads where they lie.
    """

    graph: Graph  # of the method being lowered

    def __init__(
        self, target: TargetConfig, *, trial: bool = False, dense_calls: bool = False
    ) -> None:
        self.target = target
        self._dense_calls = dense_calls
        self.refused: list[Refusal] = []
        self.unbound: list[str] = []
        self._trial = trial
        self.buffers: list[PendingBuffer] = []
        self.init = PendingMethod("init")
        self.run = PendingMethod()
        self.methods: list[PendingMethod] = []
        self.kernels: dict[str, int] = {}
        self.nodes: list[NodeInfo] = []
        self.weights: dict[tuple[str, WeightPart | None], tuple[WeightSpec, View]] = {}
        self.ranks = 1  # that run the program together
        self.states: dict[str, tuple[TensorType, View]] = {}
        self._views: dict[str, View] = {}
        self._dense_inputs: dict[tuple[View, tuple[int, ...]], View] = {}
        self._postponed: dict[str, Node] = {}
        self._updates: dict[str, str] = {}  # value -> the state that it is what is left in
        self._node_now = -1  # index in `nodes`
        self._static_now = False
        self._places: Mapping[str, Place] = {}
        self._wholes: dict[str, View] = {}  # of concatenations some of whose parts are computed
        self._shared: set[int] = set()  # buffers of which several commands write parts
        self._packed: dict[object, View] = {}
        self._computed: dict[object, tuple[View, ...]] = {}
        # What the command of a value writes besides, by the value and what the command read.
        self.beside: dict[tuple[str, str], tuple[View, ...]] = {}

    # Reading

    def view(self, name: str) -> View:
        """Returns the view that shows a value."""
        if name in self._postponed:
            self._lower_postponed(name)
        return self._views[name]

    def inputs(self, node: Node) -> list[View | None]:
        """Returns the views of a node's operands; None for an absent optional one."""
        return [None if name is None else self.view(name) for name in node.inputs]

    def parts(self, name: str, most: int) -> list[View]:
        """Returns the views of what a static value concatenates along its first dimension.

        One view, of the value itself, unless it is such a concatenation of at most `most` parts:
        a kernel that takes several operands then reads each where it lies.
        """
        node = self._postponed.get(name)
        if node is not None and node.op == "aten.cat.default" and len(node.inputs) <= most:
            rank = node.type.rank
            if node.attrs["dim"] in (0, -rank) and all(
                i is not None and self.graph.types[i].rank == rank for i in node.inputs
            ):
                return [self.view(i) for i in node.inputs if i is not None]
        return [self.view(name)]

    def is_static(self, view: View) -> bool:
        """Tells whether a view's content is known once the weights are."""
        fixed = not is_symbolic((view.offset, view.shape, view.strides))
        return fixed and self.buffers[view.buffer].static

    # Making room

    def _buffer(
        self, kind: BufferKind, size: int, name: str, static: bool, data: bytearray | None = None
    ) -> int:
        self.buffers.append(PendingBuffer(kind, size, name, static, data or bytearray()))
        return len(self.buffers) - 1

    def temp(self, tensor: TensorType, *, static: bool | None = None, name: str = "") -> View:
        """Returns a fresh buffer for a dense tensor in its storage order.

        Args:
            static: whether init fills it; by default when the node being lowered is static.
        """
        static = self._static_now if static is None else static
        buffer = self._buffer(BufferKind.TEMP, tensor.greatest_bytes, name, static)
        return View(buffer, 0, tensor.dtype, tensor.shape, tensor.strides)

    def stored_temp(
        self, tensor: TensorType, *, static: bool | None = None, name: str = ""
    ) -> View:
        """Returns a fresh buffer as `temp`, in rows as far apart as the target wants them.

        What init fills is dense: it has the layout of the kernels that read it.
        """
        static = self._static_now if static is None else static
        room = tensor if static else self._room(tensor)
        view = self.temp(room, static=static, name=name)
        return replace(view, shape=tensor.shape)

    def _room(self, tensor: TensorType) -> TensorType:
        return padded(tensor, self.target.channel_multiple(tensor.dtype))

    def result(self, value: Value, *, strided: bool = False) -> View:
        """Returns a fresh buffer for a node's output, in the order its type asks for.

        Args:
            strided: the kernel writes rows that lie apart, of contiguous elements. Without it the
                buffer is dense, and copied where the target wants rows apart.
        """
        make = self.stored_temp if strided else self.temp
        view = make(value.type, name=value.name)
        self._views[value.name] = view
        return view

    def room(self, value: Value, tensor: TensorType) -> View:
        """Returns memory for a node's output, and defines it; the kernel writes rows that lie apart
        in any way, of contiguous elements.

        It is the value's place in what it is concatenated into (`lowering/concatenations.py`), if
        rows of such an order lie there as well as in memory of their own; else a fresh buffer.

        Args:
            tensor: the output's type, in the order that the kernel writes.
        """
        place = self._places.get(value.name)
        view = None if place is None else self._part(place, tensor)
        if view is None:
            view = self.stored_temp(tensor, name=value.name)
        self._views[value.name] = view
        return view

    def order_of(self, value: Value) -> tuple[int, ...] | None:
        """Returns the order in which a value's place lies in what it is concatenated into."""
        place = self._places.get(value.name)
        return value.type.order if place is None else place.node.type.order

    def _part(self, place: Place, tensor: TensorType) -> View | None:
        whole = self.whole(place.node)
        if whole.shape != place.node.type.shape:
            return None
        part = whole.slice(place.dim, place.start, tensor.shape[place.dim])
        order = tensor.order or tuple(range(tensor.rank))
        steps = [part.strides[d] for d in order if part.shape[d] != 1]
        aligned = 16 // part.element_size
        fits = part.shape == tensor.shape and part.dtype == tensor.dtype and steps[-1:] == [1]
        fits = fits and steps == sorted(steps, reverse=True) and part.offset % 16 == 0
        if not fits or any(step % aligned for step in steps[:-1]):
            return None
        self._shared.add(part.buffer)
        return part

    def whole(self, node: Node) -> View:
        """Returns the memory of a concatenation, which is there before the first of its parts."""
        if node.name not in self._wholes:
            self._wholes[node.name] = self.room(node.output, node.type)
            del self._views[node.output.name]  # until it is computed
        return self._wholes[node.name]

    def joined(self, views: Sequence[View], dim: int) -> View | None:
        """Returns the view that shows temporary views as one, if they lie beside each other."""
        first, *others = views
        size = first.shape[dim]
        for view in others:
            beside = first.offset + size * first.strides[dim] * first.element_size
            alike = (view.buffer, view.dtype, view.strides) == (
                *(first.buffer, first.dtype, first.strides),
            )
            if not alike or is_symbolic((view.offset, size)) or view.offset != beside:
                return None
            size += view.shape[dim]
        if self.buffers[first.buffer].kind is not BufferKind.TEMP:
            return None
        return replace(first, shape=(*first.shape[:dim], size, *first.shape[dim + 1 :]))

    def updated(self, value: Value, old: View) -> View:
        """Returns a view for a node's output that starts with the content of another value.

        The state's own memory where the output is what the call leaves in that state and nothing
        reads the old content any more; else fresh memory, filled by a copy.
        """
        if self._updates_in_place(value, old):
            self._views[value.name] = old
            return old
        view = self.result(value)
        self.copy(old, view)
        return view

    def _updates_in_place(self, value: Value, old: View) -> bool:
        state = self._updates.get(value.name)
        if state is None or self.states[state][1] != old:
            return False
        reads = [n for n in self.graph.producers[value.name].inputs if n is not None]
        if sum(self.view(name).buffer == old.buffer for name in reads) > 1:
            return False  # the update reads what it overwrites
        for name, view in self._views.items():
            if view.buffer == old.buffer and name != value.name and self._read_later(name, value):
                return False
        return True

    def _read_later(self, name: str, value: Value) -> bool:
        """Tells whether a value is read after the node that defines another one."""
        if name in self.graph.output_values:
            return True
        behind = self.graph.positions[self.graph.producers[value.name].name]
        return any(self.graph.positions[user.name] > behind for user in self.graph.users[name])

    def define(self, value: Value, view: View) -> None:
        """Makes an existing view show a node's output: no command, no memory."""
        self._views[value.name] = view

    def constant(self, array: np.ndarray, dtype: str) -> View:
        """Returns a view of data that travels in the program; `array` holds its raw elements."""
        array = np.ascontiguousarray(array)
        data = bytearray() if self._trial else bytearray(array.tobytes())
        buffer = self._buffer(BufferKind.CONSTANT, array.nbytes, "", True, data)
        return View(buffer, 0, dtype, array.shape, row_major(array.shape))

    def _raw_constant(self, data: bytes) -> View:
        return self.once(data, lambda: self.constant(np.frombuffer(data, np.uint8), "uint8"))

    def once(self, key: object, make: object) -> View:
        """Returns `make()`'s view, made at most once for a key: packed forms of shared weights."""
        if key not in self._packed:
            self._packed[key] = make()  # type: ignore[operator]
        return self._packed[key]

    # Emitting

    def emit(
        self,
        kernel: str,
        params: Mapping[str, Param],
        reads: Sequence[View],
        writes: Sequence[View],
        *,
        in_place: Sequence[View] = (),
        update: bool = False,
    ) -> None:
        """Appends a kernel call: to init when everything it writes is static, else to the run.

        Args:
            params: the fields of the kernel's struct.
            reads: operands it reads, in order.
            writes: operands it writes, in order.
            in_place: those of `reads` that the kernel reads element by element, each before the
                result at the same place is written: memory planning may put the result there.
            update: the written operands are read as well (a scatter).

        Raises:
            TargetConstraintError: the target has no such kernel, or none for such operands.
        """
        static = all(self.is_static(v) for v in writes)
        shown = ((view.dtype, view.rank) for view in (*reads, *writes))
        if (why := self.target.refusal(kernel, shown, at_load=static)) is not None:
            raise TargetConstraintError(why)
        method = self.init if static else self.run
        access = Access.READ_WRITE if update else Access.WRITE
        operands = [Operand(v.buffer, upper(v.offset), Access.READ) for v in reads]
        operands += [Operand(v.buffer, upper(v.offset), access) for v in writes]
        definition = KERNELS[kernel]
        assert definition.in_place or not in_place, f"{kernel} does not work in place"
        index = self.kernels.setdefault(kernel, len(self.kernels))
        patches = _patches(definition, params, (*reads, *writes))
        if patches and static:
            raise SymbolicSizeError("weights would be prepared for sizes that calls change.")
        method.commands.append(
            Command(
                index, self._node_now, definition.pack(params), tuple(operands), patches=patches
            )
        )
        alone = not any(v.buffer in self._shared for v in (*in_place, *writes))
        method.in_place.append(_overlays(in_place if alone else (), reads, writes))
        method.emitted.append(Emitted(kernel, params, tuple(reads), tuple(writes)))

    def last_writer(self, buffer: int) -> Emitted | None:
        """Returns the run's last command that wrote a buffer, if it may as well come now.

        None: a command after it has read what it wrote, or written what it reads.
        """
        written: set[int] = set()
        for command in reversed(self.run.emitted):
            read = {view.buffer for view in command.reads}
            if any(view.buffer == buffer for view in command.writes):
                return None if read & written else command
            if buffer in read:
                return None
            written.update(view.buffer for view in command.writes)
        return None

    def take_back(self, command: Emitted) -> None:
        """Takes a command of the run back, for one that does more."""
        at = self.run.emitted.index(command)
        for rows in (self.run.commands, self.run.in_place, self.run.emitted):
            del rows[at]

    def lies_in(self, name: str, buffer: int) -> bool:
        """Tells whether a value that was lowered lies in a buffer."""
        return name in self._views and self._views[name].buffer == buffer

    def shows(self, node: Node, buffer: int) -> bool:
        """Tells whether all that a node gives are views of a buffer."""
        return all(self.lies_in(value.name, buffer) for value in node.outputs)

    def copy(self, x: View, y: View) -> None:
        """Emits y = x: same shape and dtype, any strides and number of dimensions."""
        if x.numel == 0:
            return
        for of_x, of_y in in_parts((x, y), RANK):
            self._copy(of_x, of_y)

    def _copy(self, x: View, y: View) -> None:
        shape, (ys, xs) = collapse(x.shape, y.strides, x.strides)
        self.emit(
            "copy",
            {
                "element_size": x.element_size,
                "rank": len(shape),
                "shape": shape,
                "x_strides": xs,
                "y_strides": ys,
            },
            [x],
            [y],
        )

    def fill(self, y: View, bits: int) -> None:
        """Emits y = the element whose little-endian bits are given."""
        if y.numel == 0:
            return
        for (part,) in in_parts((y,), RANK):
            self._fill(part, bits)

    def _fill(self, y: View, bits: int) -> None:
        shape, (ys,) = collapse(y.shape, y.strides)
        self.emit(
            "fill",
            {
                "element_size": y.element_size,
                "rank": len(shape),
                "shape": shape,
                "y_strides": ys,
                "value": bits,
            },
            [],
            [y],
        )

    def cast(self, x: View, dtype: str) -> View:
        """Returns x in another dtype, dense in x's order; x itself when nothing changes."""
        if x.dtype == dtype:
            return x
        from npusim.abi.scalar import ScalarOp, ScalarProgram, compute_class
        from npusim.lowering.pointwise_kernel import emit_program

        cls = compute_class(x.dtype)
        y = self.temp(TensorType(dtype, x.shape).with_order(x.order), static=self.is_static(x))
        emit_program(self, ScalarProgram((cls,), (ScalarOp("copy", (0,), cls),)), [x], y)
        return y

    def dense(self, x: View, order: tuple[int, ...] | None = None) -> View:
        """Returns x stored densely in an order (row-major by default); copies only if needed."""
        wanted = TensorType(x.dtype, x.shape).with_order(order)
        if x.has_strides(wanted.strides):
            return replace(x, strides=wanted.strides)
        return self._copied(x, self.temp, wanted)

    def stored(self, x: View, order: tuple[int, ...] | None = None) -> View:
        """Returns x in an order (row-major by default), its innermost elements contiguous.

        The rows may lie apart as the target wants them; copies only if needed.
        """
        wanted = TensorType(x.dtype, x.shape).with_order(order)
        for strides in (wanted.strides, self._room(wanted).strides):
            if x.has_strides(strides):
                return replace(x, strides=strides)
        return self._copied(x, self.stored_temp, wanted)

    def rows(self, x: View, order: tuple[int, ...]) -> View:
        """Returns x with the elements of an order's rows contiguous; copies only if needed.

        The rows may lie anywhere: for kernels that take the stride of each dimension.
        """
        wanted = TensorType(x.dtype, x.shape).with_order(order)
        lies = any(x.has_strides(t.strides) for t in (wanted, self._room(wanted)))
        apart = x.strides[order[-1]] == 1 and not self.target.npu
        return x if apart and not lies else self.stored(x, order)

    def _copied(self, x: View, make: Callable[..., View], wanted: TensorType) -> View:
        strides = (self._room(wanted) if make == self.stored_temp else wanted).strides
        if (x, strides) in self._dense_inputs:
            return self._dense_inputs[x, strides]
        y = make(wanted, static=self.is_static(x))
        self.copy(x, y)
        if self.buffers[x.buffer].kind is BufferKind.INPUT:  # several nodes may want it so
            self._dense_inputs[x, strides] = y
        return y

    def any_dense(self, x: View) -> View:
        """Returns x stored densely in whatever order it has; copies only if needed."""
        return x if x.is_dense else self.dense(x, x.order)

    # The whole graph

    def method(self, name: str, graph: Graph) -> None:
        """Lowers one method's graph."""
        self.graph = graph
        self.run = PendingMethod(name)
        self.methods.append(self.run)
        self._views, self._postponed, self._dense_inputs, self.beside = {}, {}, {}, {}
        self._updates = {u.value: u.name for u in graph.updates}
        # What a described machine keeps on its chip, it knows by the command that wrote it.
        self._places = {} if self.target.npu else places(graph)
        self._wholes, self._shared = {}, set()
        self._bind_arguments()
        for node in graph.nodes:
            if all(v.name in graph.static_values for v in node.outputs):
                self._postponed.update((v.name, node) for v in node.outputs)
            else:
                self._lower(node)
        self._bind_results()

    def _lower(self, node: Node) -> None:
        """Lowers one node through its OpDef, or refuses it; its operands come first."""
        outer = self._node_now, self._static_now
        self._enter(NodeInfo(node.name, node.op, at(node.source).strip(" ()")))
        self._static_now = all(v.name in self.graph.static_values for v in node.outputs)
        why = op_constraint(node, self.graph)
        if why is None:
            why = self._emitted(node)
        if why is not None:
            self.refused.append(Refusal(self.graph, node, why))
            for value in node.outputs:  # for those that read it
                if value.name not in self._views:
                    self.result(value)
        self._node_now, self._static_now = outer

    def _emitted(self, node: Node) -> str | None:
        """Emits a node's commands; returns why it cannot be, or None."""
        definition = find(node.op)
        assert definition is not None and definition.lower is not None
        try:
            definition.lower(node, self)
            for value in node.outputs:
                self._store(value)
        except TargetConstraintError as error:
            return str(error)
        except (SymbolicSizeError, AssertionError) as error:
            if isinstance(error, AssertionError) and not self.graph.symbols:
                raise
            why = str(error).rstrip(".") or "two sizes must be equal, and do not look so"
            return (
                f"needs fixed sizes: {why}; extract the model without that symbolic size, or fix "
                "it (npusim.specialize)"
            )
        return None

    def _store(self, value: Value) -> None:
        """Brings a value that lies otherwise than the target wants to memory where it does not.

        States stay where they are, and so does what init prepares.
        """
        view = self._views[value.name]
        buffer = self.buffers[view.buffer]
        moves = buffer.kind in (BufferKind.TEMP, BufferKind.INPUT) and not buffer.static
        if not moves or keeps_to(view, self.target.channel_multiple(view.dtype)):
            return
        y = self.stored_temp(TensorType(view.dtype, view.shape).with_order(view.order))
        self.copy(view, y)
        self._views[value.name] = y

    def _enter(self, node: NodeInfo) -> None:
        self._node_now = len(self.nodes)
        self.nodes.append(node)

    def _lower_postponed(self, name: str) -> None:
        """Lowers a static node, or finds that another one has computed the same."""
        node = self._postponed[name]
        for value in node.outputs:
            del self._postponed[value.name]
        if node.op == "npu.rank_part":  # known by its weight, of which there may be no view
            self._lower(node)
            return
        types = tuple(v.type for v in node.outputs)
        # repr tells 0.0 and -0.0, 1 and True apart, which compare equal.
        key = (node.op, repr(sorted(node.attrs.items())), tuple(self.inputs(node)), types)
        if key in self._computed:
            self._views.update(
                (v.name, view) for v, view in zip(node.outputs, self._computed[key], strict=True)
            )
            return
        self._lower(node)
        self._computed[key] = tuple(self._views[v.name] for v in node.outputs)

    def _bind_arguments(self) -> None:
        """Makes views for the graph's inputs, weights, constants and states."""
        for value in self.graph.inputs:
            room = self._call_room(value.type)
            view = self._external(BufferKind.INPUT, value.name, room, static=False)
            view = self._views[value.name] = replace(view, shape=value.type.shape)
            self.run.inputs.append(_spec(value.name, value.type, view, room))
        for weight in self.graph.weights:
            if not self._only_parts(weight):
                self._views[weight.name] = self._weight(weight, weight.type, None)
        for constant in self.graph.constants:
            kind, data = constant.type, constant.data
            flat = self._raw_constant(data)
            self._views[constant.name] = View(flat.buffer, 0, kind.dtype, kind.shape, kind.strides)
        for state in self.graph.states:
            if state.name not in self.states:
                view = self._external(BufferKind.STATE, state.name, state.type, static=False)
                self.states[state.name] = state.type, view
            self._views[state.name] = self.states[state.name][1]

    def _weight(self, weight: Weight, type: TensorType, part: WeightPart | None) -> View:
        key = (weight.key, part)
        if key not in self.weights:
            view = self._external(BufferKind.WEIGHT, weight.name, type, static=True)
            keys = (weight.key, *weight.aliases)
            spec = WeightSpec(keys, view.buffer, type.dtype, type.shape, part)
            self.weights[key] = spec, view
        return self.weights[key][1]

    def _only_parts(self, weight: Weight) -> bool:
        """Tells whether ranks need nothing of a weight but their parts."""
        users = self.graph.users[weight.name]
        parts = all(node.op == "npu.rank_part" for node in users)
        return bool(users) and parts and weight.name not in self.graph.output_values

    def share(self, ranks: int) -> None:
        """Makes the program one of so many ranks; GraphError when it is one of others."""
        if self.ranks not in (1, ranks):
            raise GraphError(f"{self.graph.name} is of {self.ranks} ranks, and of {ranks}.")
        self.ranks = ranks

    def weight_part(self, name: str, axis: int, parts: int, ranks: int) -> View:
        """Returns a rank's part of a weight of the graph, which the loader takes from it."""
        weight = next((w for w in self.graph.weights if w.name == name), None)
        if weight is None:
            raise GraphError(f"{name} is no weight: ranks have parts of weights alone.")
        self.share(ranks)
        shape = list(weight.type.shape)
        shape[axis] //= parts
        type = TensorType(weight.type.dtype, tuple(shape))
        return self._weight(weight, type, WeightPart(axis, parts))

    def _external(self, kind: BufferKind, name: str, tensor: TensorType, *, static: bool) -> View:
        view = View(
            self._buffer(kind, tensor.greatest_bytes, name, static),
            0,
            tensor.dtype,
            tensor.shape,
            row_major(tensor.shape),
        )
        self._views[name] = view
        return view

    def _bind_results(self) -> None:
        """Binds the outputs, then leaves in every state what the call makes of it."""
        self._enter(NodeInfo("output", "output", ""))
        self._static_now = False
        for output in self.graph.outputs:
            with self._blaming(output.value):
                self.run.outputs.append(self._bind_output(output))
        waiting = []
        for update in self.graph.updates:
            view, state = self.view(update.value), self.states[update.name][1]
            if view == state:
                continue
            if self.buffers[view.buffer].kind is BufferKind.STATE:  # it may be overwritten first
                source, view = view, self.temp(TensorType(view.dtype, view.shape), static=False)
                with self._blaming(update.value):
                    self.copy(source, view)
            waiting.append((update.value, view, state))
        for value, view, state in waiting:
            with self._blaming(value):
                self.copy(view, state)

    @contextmanager
    def _blaming(self, value: str) -> Iterator[None]:
        """Refuses the node that makes a value where handing it out needs what the target lacks."""
        try:
            yield
        except TargetConstraintError as error:
            node = self.graph.producers.get(value)
            if node is None:
                what, kind = _source_of(self.graph, value), self.graph.types[value]
                self.unbound.append(f"  {what} '{value}' ({kind}), handed out as it is: {error}")
            elif all(refusal.node is not node for refusal in self.refused):
                why = f"{error}, which handing out its result needs"
                self.refused.append(Refusal(self.graph, node, why))

    def _bind_output(self, output: Output) -> TensorSpec:
        """Makes an output a row-major buffer of its own, copying only what cannot be one."""
        tensor = self.graph.types[output.value].with_order(None)
        room = self._call_room(tensor)
        view = self.view(output.value)
        buffer = self.buffers[view.buffer]
        own = (
            buffer.kind is BufferKind.TEMP
            and not buffer.static
            and view.offset == 0
            and view.has_strides(room.strides)
            and room.greatest_bytes == buffer.bytes
        )
        if not own:
            source, view = view, replace(self.temp(room, static=False), shape=tensor.shape)
            self.copy(source, view)
            buffer = self.buffers[view.buffer]
        buffer.kind = BufferKind.OUTPUT
        return _spec(output.name, tensor, view, room)

    def _call_room(self, tensor: TensorType) -> TensorType:
        """Returns the type of the memory of an input or output."""
        return tensor if self._dense_calls else self._room(tensor)

    def kernel_table(self) -> tuple[Kernel, ...]:
        """Returns the kernels used, in the order of their indices."""
        return tuple(Kernel(name, KERNELS[name].schema) for name in self.kernels)


_PATCH_KINDS = {
    "i32": PatchKind.I32,
    "i64": PatchKind.I64,
    "f32": PatchKind.F32,
    "f64": PatchKind.F64,
}


def _patches(
    definition: KernelDef, params: Mapping[str, Param], operands: Sequence[View]
) -> tuple[Patch, ...]:
    """Returns what of a command depends on the sizes of a call."""
    found = [
        Patch(_PATCH_KINDS[kind], at, size) for kind, at, size in definition.symbolic_fields(params)
    ]
    found += [
        Patch(PatchKind.OPERAND, index, view.offset)
        for index, view in enumerate(operands)
        if is_symbolic(view.offset)
    ]
    return tuple(sorted(found, key=lambda patch: (patch.kind, patch.at)))


def _overlays(
    candidates: Sequence[View], reads: Sequence[View], writes: Sequence[View]
) -> tuple[tuple[int, int], ...]:
    """Returns the (read, written) buffers that hold the same elements at the same places."""
    used = [v.buffer for v in reads]
    return tuple(
        (r.buffer, w.buffer)
        for w in writes
        for r in candidates
        if used.count(r.buffer) == 1
        and r.offset == w.offset == 0
        and r.dtype == w.dtype
        and r.shape == w.shape
        and r.has_strides(w.strides)
        and is_apart(r)
    )


def _spec(name: str, tensor: TensorType, view: View, room: TensorType) -> TensorSpec:
    alloc = tuple(map(upper, room.shape))
    return TensorSpec(name, view.buffer, tensor.dtype, tensor.shape, alloc)


def _source_of(graph: Graph, value: str) -> str:
    """Returns what a value is that no node makes."""
    if any(value == v.name for v in graph.inputs):
        return "input"
    if any(value == v.name for v in graph.weights):
        return "weight"
    return "constant" if any(value == v.name for v in graph.constants) else "state"


def element_bits(value: float | int | bool, dtype: str) -> int:
    """Returns the little-endian bits of one element as a signed 64-bit integer.

    Raises:
        GraphError: a number that the dtype does not hold; PyTorch refuses to fill with it.
    """
    number = checked_literal(value, dtype, "a fill")
    if dtype == "bfloat16":
        return int(bfloat16_bits(np.array([number], np.float32))[0])
    array = np.zeros(8 // dtype_size(dtype), dtype)
    array[0] = number
    return int(array.view(np.int64)[0])


def codes(**dtypes: str) -> dict[str, int]:
    """Returns dtype codes for parameter fields: `codes(x_dtype="float32")`."""
    return {name: dtype_code(dtype) for name, dtype in dtypes.items()}

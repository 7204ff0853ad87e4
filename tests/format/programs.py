"""Programs that hypothesis makes: everything the format can say, and nothing it forbids."""

from __future__ import annotations

from math import prod

from hypothesis import strategies as st

from npusim.ir.types import DTYPES, dtype_size
from npusim.program.program import (
    ALIGNMENT,
    Access,
    Buffer,
    BufferKind,
    Command,
    CompiledProgram,
    Kernel,
    Method,
    NodeInfo,
    Operand,
    TensorSpec,
    WeightPart,
    WeightSpec,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NAME = TEXT.filter(bool)
SHAPE = st.lists(st.integers(0, 5), max_size=4).map(tuple)
ARENA_KINDS = (BufferKind.TEMP, BufferKind.CONSTANT, BufferKind.PERSISTENT, BufferKind.STATE)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
READ_ONLY = {BufferKind.INPUT, BufferKind.WEIGHT, BufferKind.CONSTANT}


def _up(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@st.composite
def programs(draw: st.DrawFn) -> CompiledProgram:
    """Returns a sound program of up to three methods."""
    kernels = draw(st.lists(st.builds(Kernel, NAME, TEXT, st.binary(max_size=70)), max_size=4))
    nodes = draw(st.lists(st.builds(NodeInfo, TEXT, TEXT, TEXT), max_size=4))
    buffers: list[Buffer] = []
    ends = dict.fromkeys(ARENA_KINDS, 0)
    for kind in draw(st.lists(st.sampled_from(ARENA_KINDS), max_size=6)):
        size, offset = draw(st.integers(0, 200)), ends[kind]
        buffers.append(Buffer(kind, size, offset, draw(TEXT)))
        ends[kind] = _up(offset + size)
    shared = list(range(len(buffers)))
    ranks = draw(st.sampled_from([1, 2, 6]))
    weights = draw(_weights(buffers, ranks))
    readable = shared + [w.buffer for w in weights]

    def commands(own: list[int], *, init: bool) -> tuple[Command, ...]:
        usable = [b for b in readable if not init or buffers[b].kind is not BufferKind.STATE] + own
        if not (kernels and nodes and usable):
            return ()
        command = st.builds(
            Command,
            kernel=st.integers(0, len(kernels) - 1),
            node=st.integers(0, len(nodes) - 1),
            params=st.binary(max_size=20),
            operands=st.lists(_operand(buffers, usable, init=init), max_size=4).map(tuple),
        )
        return tuple(draw(st.lists(command, max_size=4)))

    methods = []
    for name in draw(st.lists(NAME, min_size=1, max_size=3, unique=True)):
        inputs = draw(_specs(buffers, BufferKind.INPUT))
        outputs = draw(_specs(buffers, BufferKind.OUTPUT))
        body = commands([s.buffer for s in inputs + outputs], init=False)
        methods.append(Method(name, body, inputs, outputs, ends[BufferKind.TEMP]))
    init = Method(draw(TEXT), commands([], init=True), (), (), ends[BufferKind.TEMP])
    size = ends[BufferKind.CONSTANT]
    return CompiledProgram(
        target=draw(NAME),
        kernels=tuple(kernels),
        buffers=tuple(buffers),
        methods=tuple(methods),
        init=init,
        weights=weights,
        ranks=ranks,
        nodes=tuple(nodes),
        constants=draw(st.binary(min_size=size, max_size=size)),
        persistent_bytes=ends[BufferKind.PERSISTENT],
        state_bytes=ends[BufferKind.STATE],
        metadata=draw(st.dictionaries(st.text(max_size=5), JSON, max_size=3)),
        simulation=draw(st.dictionaries(st.text(max_size=5), JSON, max_size=3)),
    )


def _operand(buffers: list[Buffer], usable: list[int], *, init: bool) -> st.SearchStrategy[Operand]:
    def of(index: int) -> st.SearchStrategy[Operand]:
        buffer = buffers[index]
        fixed = buffer.kind in READ_ONLY or (buffer.kind is BufferKind.PERSISTENT and not init)
        access = st.just(Access.READ) if fixed else st.sampled_from(Access)
        return st.builds(Operand, st.just(index), st.integers(0, max(buffer.bytes - 1, 0)), access)

    return st.sampled_from(usable).flatmap(of)


@st.composite
def _specs(draw: st.DrawFn, buffers: list[Buffer], kind: BufferKind) -> tuple[TensorSpec, ...]:
    specs = []
    for name in draw(st.lists(NAME, max_size=2, unique=True)):
        dtype, shape = draw(st.sampled_from(sorted(DTYPES))), draw(SHAPE)
        padded = tuple(d + draw(st.integers(0, 2)) for d in shape)
        buffers.append(Buffer(kind, prod(padded) * dtype_size(dtype), 0, draw(TEXT)))
        specs.append(TensorSpec(name, len(buffers) - 1, dtype, shape, padded))
    return tuple(specs)


@st.composite
def _weights(draw: st.DrawFn, buffers: list[Buffer], ranks: int) -> tuple[WeightSpec, ...]:
    weights = []
    keys = draw(st.lists(NAME, max_size=4, unique=True))
    while keys:
        count = draw(st.integers(1, len(keys)))
        dtype, shape = draw(st.sampled_from(sorted(DTYPES))), draw(SHAPE)
        buffers.append(Buffer(BufferKind.WEIGHT, prod(shape) * dtype_size(dtype), 0, draw(TEXT)))
        parts = [p for p in (1, 2, 3, 6) if shape and ranks % p == 0] if ranks > 1 else []
        axis = draw(st.integers(0, max(len(shape) - 1, 0)))
        part = (
            WeightPart(axis, draw(st.sampled_from(parts)))
            if parts and draw(st.booleans())
            else None
        )
        weights.append(WeightSpec(tuple(keys[:count]), len(buffers) - 1, dtype, shape, part))
        del keys[:count]
    return tuple(weights)

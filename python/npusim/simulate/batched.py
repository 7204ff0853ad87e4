"""A language model's program as if it served several sequences at once, for its times alone.

Weights are read once for all; activations, states and what attends to them are there once for each
sequence. The programs that come of it cannot run: `simulate` reads their commands only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from npusim.abi.kernels import KERNELS, RANK, Params
from npusim.errors import Error
from npusim.program.program import BufferKind, Command, CompiledProgram
from npusim.schedule import target_of, with_simulation

_SHARED = (BufferKind.WEIGHT, BufferKind.CONSTANT, BufferKind.PERSISTENT)
_Rule = Callable[[Params, int, list[bool]], dict[str, Any]]


def batched(program: CompiledProgram, count: int) -> CompiledProgram:
    """Returns a program whose methods work on so many sequences, each as long as the one they had.

    Args:
        count: of sequences, 1 or more.

    Raises:
        Error: it is below 1, or a command's kernel has no rule for several sequences.
        TargetConstraintError: so many do not fit into the machine that it was compiled for.
    """
    if count < 1:
        raise Error(f"A batch of {count} sequences is none.", hint="Give 1 or more.")
    if count == 1:
        return program
    buffers = tuple(
        b if b.kind in _SHARED else replace(b, bytes=count * b.bytes) for b in program.buffers
    )
    methods = tuple(
        replace(
            method,
            arena_bytes=count * method.arena_bytes,
            commands=tuple(_command(program, command, count) for command in method.commands),
        )
        for method in program.methods
        if method.name != "generate"  # it chooses tokens one sequence at a time
    )
    state = count * program.state_bytes
    grown = replace(program, buffers=buffers, methods=methods, state_bytes=state)
    return with_simulation(grown, target_of(program)) if program.simulation else grown


def _command(program: CompiledProgram, command: Command, count: int) -> Command:
    stem = program.kernels[command.kernel].name
    if stem not in _RULES:
        node = program.nodes[command.node]
        raise Error(
            f"Node '{node.name}' ({node.op}) has the kernel '{stem}', which is not known for "
            "several sequences.",
            hint="Simulate one: a batch of 1.",
        )
    shared = [program.buffers[o.buffer].kind in _SHARED for o in command.operands]
    kernel = KERNELS[stem]
    params = kernel.unpack(command.params)
    return replace(command, params=kernel.pack({**params, **_RULES[stem](params, count, shared)}))


def _times(name: str) -> _Rule:
    """Returns the rule of kernels in which one field counts the items."""
    return lambda params, count, shared: {name: count * params[name]}


def _attended(params: Params, count: int, shared: list[bool]) -> dict[str, Any]:
    """As many items; what one item may repeat, as it has but one, several have each for itself."""
    fields = ["q_strides", "k_strides", "v_strides", *["mask_strides"] * params["has_mask"]]
    return {
        "batch": count * params["batch"],
        **{name: _apart(params[name], {0: shared[at]}) for at, name in enumerate(fields)},
    }


def _stepped(params: Params, count: int, shared: list[bool]) -> dict[str, Any]:
    tables = _apart(params["cs_strides"], {0: shared[3], 1: shared[4]})
    return {"batch": count * params["batch"], "cs_strides": tables}


def _rotated(params: Params, count: int, shared: list[bool]) -> dict[str, Any]:
    cos, sin = params["parts"], params["parts"] + 1
    tables = _apart(params["cs_strides"], {0: shared[cos], 2: shared[sin]})
    return {"batch": count * params["batch"], "cs_strides": tables}


def _apart(strides: Sequence[int], places: Mapping[int, bool]) -> list[int]:
    """Returns strides of which those at some places are not 0, but for what is shared.

    How far they reach makes no difference to what is counted.
    """
    found = list(strides)
    for at, same in places.items():
        found[at] = 0 if same else found[at] or 1
    return found


def _strided(params: Params, count: int, shared: list[bool]) -> dict[str, Any]:
    """One axis more, along which what is shared repeats; an axis of 1 takes its place."""
    rank, shape = params["rank"], list(params["shape"])
    if rank == RANK and shape[0] != 1:
        raise Error(
            f"A kernel over {RANK} axes has no room for one of sequences.",
            hint="Simulate a batch of 1.",
        )
    grown: dict[str, Any] = {}
    front = 0 if shape[0] == 1 else 1
    for name in (key for key in ("x_strides", "y_strides") if key in params):
        flat: list[int] = []
        for at in range(len(params[name]) // RANK):
            old = list(params[name][at * RANK : (at + 1) * RANK])
            reach = 1 + sum((n - 1) * abs(s) for n, s in zip(shape, old, strict=True) if n > 0)
            same = name == "x_strides" and at < len(shared) and shared[at]
            flat += [0 if same else reach, *old[1 - front :]][:RANK]
        grown[name] = flat
    shape = [count, *shape[1 - front :]][:RANK]
    return {**grown, "shape": shape, "rank": rank + front}


def _indexed(params: Params, count: int, shared: list[bool]) -> dict[str, Any]:
    """Rows of a table that is shared: so many more of them."""
    shape = list(params["shape"])
    return {"shape": [count * shape[0], *shape[1:]]}


def _multiplied(params: Params, count: int, shared: list[bool]) -> dict[str, Any]:
    """One axis more of products; an axis of 1 takes its place, along which what is shared repeats.

    How far strides reach makes no difference to what is counted.
    """
    axes = [at for at, n in enumerate(params["batch"]) if n == 1]
    if not axes:
        raise Error(
            f"Products over {len(params['batch'])} axes have no room for one of sequences.",
            hint="Simulate a batch of 1.",
        )
    at, grown = axes[0], {"batch": list(params["batch"])}
    grown["batch"][at] = count
    for side, name in enumerate(("a_batch", "b_batch")):
        grown[name] = list(params[name])
        grown[name][at] = 0 if shared[side] else 1 << 40
    return grown


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        (
            *("gemm", "linear", "quantized_linear", "normed_linear"),
            *("linear_before_norm", "linear_behind_norm", "grouped_matmul"),
        ),
        _times("m"),
    ),
    **dict.fromkeys(("matmul", "widening_matmul"), _multiplied),
    "attention": _attended,
    "attention_step": _stepped,
    "rope": _rotated,
    "norm": _times("rows"),
    **dict.fromkeys(("softmax", "scan", "sort"), _times("outer")),
    **dict.fromkeys(("index", "scatter"), _indexed),
    **dict.fromkeys(("pointwise", "copy", "fill", "reduce"), _strided),
    **dict.fromkeys(("conv", "conv_depthwise", "group_norm", "pool"), _times("batch")),
}

"""What there is to say about a graph, program or plan: the numbers behind `info` and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Protocol

from npusim.ir.graph import Graph, Value
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import dtype_size
from npusim.partition.plan import PartitionPlan
from npusim.program.program import BufferKind, CompiledProgram, Method, TensorSpec
from npusim.program.sized_command import prepared_sizes


class _Typed(Protocol):
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def graph_facts(graph: Graph) -> dict[str, Any]:
    """Returns the op distribution, parameters and shapes of a graph, as JSON types."""
    types = graph.types
    return {
        "kind": "graph",
        "name": graph.name,
        "nodes": len(graph.nodes),
        "ops": _distribution(node.op for node in graph.nodes),
        "parameters": _parameters([weight.type for weight in graph.weights]),
        "constants_bytes": sum(len(constant.data) for constant in graph.constants),
        "inputs": [_value(value) for value in graph.inputs],
        "outputs": [_value(Value(o.name, types[o.value])) for o in graph.outputs],
    }


def program_facts(program: CompiledProgram) -> dict[str, Any]:
    """Returns the methods, commands, buffers and memory of a program, as JSON types.

    `memory` is in bytes. Its `peak` is what runs at once: arena, state, prepared weights,
    constants, and the checkpoint's tensors (mapped from the file, so shared and reclaimable).
    `declared` is what `max_memory` is compared with: the same, inputs and outputs, and the greater
    of both arenas.
    Of several `ranks`, all of it but what methods do is of one rank.
    `prepared_sizes` are those of symbolic sizes that the program brings device code for. `work` is
    what a run takes at the greatest sizes: `steps` of the innermost loops, an upper bound; the
    `greatest` command's alone; `uncounted` commands of kernels that the cpu does not have.
    """
    commands = [c for method in program.methods for c in method.commands]
    return {
        "kind": "program",
        "name": str(program.metadata.get("model", "")),
        "target": program.target,
        "ops": _distribution(program.nodes[c.node].op for c in commands),
        "kernels": _distribution(program.kernels[c.kernel].name for c in commands),
        "parameters": _parameters(program.weights),
        "methods": [
            {**_method(method), "work": _work(program, index)}
            for index, method in enumerate(program.methods)
        ],
        "init_commands": len(program.init.commands),
        "init_work": _work(program, None),
        "buffers": _buffers(program),
        "memory": _memory(program),
        "ranks": program.ranks,
        **_prepared(program),
    }


def plan_facts(plan: PartitionPlan) -> dict[str, Any]:
    """Returns the partitions of a plan and what crosses between them, as JSON types.

    A native partition has `prepared_sizes` as `program_facts` does.
    """
    return {
        **graph_facts(plan.graph),
        "kind": "plan",
        "target": plan.target,
        "summary": plan.summary(),
        "crossing_bytes": plan.crossing_bytes,
        "partitions": [
            {
                "index": partition.index,
                "executor": partition.executor,
                "at_load": partition.at_load,
                "ops": _distribution(node.op for node in partition.graph.nodes),
                "commands": len(partition.commands),
                **(_prepared(partition.program) if partition.program is not None else {}),
            }
            for partition in plan.partitions
        ],
    }


def _prepared(program: CompiledProgram) -> dict[str, Any]:
    return {"prepared_sizes": sizes} if (sizes := prepared_sizes(program)) else {}


def _distribution(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _parameters(tensors: Sequence[_Typed]) -> dict[str, int]:
    sizes = [(prod(t.shape), dtype_size(t.dtype)) for t in tensors]
    return {
        "tensors": len(sizes),
        "elements": sum(count for count, _ in sizes),
        "bytes": sum(count * size for count, size in sizes),
    }


def _value(value: Value) -> dict[str, Any]:
    return {"name": value.name, "dtype": value.type.dtype, "shape": _shape(value.type.shape)}


def _shape(shape: Sequence[int]) -> list[int | str]:
    return [str(size) if is_symbolic(size) else size for size in shape]


def _spec(spec: TensorSpec) -> dict[str, Any]:
    row = {"name": spec.name, "dtype": spec.dtype, "shape": _shape(spec.shape)}
    if spec.alloc_shape != spec.shape:
        row["alloc_shape"] = list(spec.alloc_shape)
    return row


def _method(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "commands": len(method.commands),
        "arena_bytes": method.arena_bytes,
        "inputs": [_spec(spec) for spec in method.inputs],
        "outputs": [_spec(spec) for spec in method.outputs],
    }


def _work(program: CompiledProgram, method: int | None) -> dict[str, Any]:
    from npusim.runtime.native import native_program  # the verb also has to say that it is missing

    steps = native_program(program).work(method)
    known = [count for count in steps if count is not None]
    return {
        "steps": sum(known),
        "greatest": max(known, default=0),
        "uncounted": len(steps) - len(known),
    }


def _buffers(program: CompiledProgram) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for buffer in program.buffers:
        row = found.setdefault(BufferKind(buffer.kind).name.lower(), {"count": 0, "bytes": 0})
        row["count"] += 1
        row["bytes"] += buffer.bytes
    return found


def _memory(program: CompiledProgram) -> dict[str, int]:
    from npusim.runtime.native import native_program  # as in _work

    parts = {
        "weights": _parameters(program.weights)["bytes"],
        "persistent": program.persistent_bytes,
        "arena": max(method.arena_bytes for method in program.methods),
        "state": program.state_bytes,
        "constants": len(program.constants),
    }
    return {
        **parts,
        "peak": sum(parts.values()),
        "init_arena": program.init.arena_bytes,
        "declared": native_program(program).declared_bytes,
    }

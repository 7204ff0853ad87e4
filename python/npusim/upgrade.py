"""Older files in the form of this npusim: graphs, modules, programs and partition plans.

Owns what `npusim upgrade` does to bytes. A file is read as every reader reads it, and written by
this version's writer. A program whose kernels take other parameters now is compiled again from the
graph that it carries, for the target that it says. What comes out is read back, and is the same
graph, or a program with the same inputs, outputs, weights and states; else the file is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from npusim.abi.kernels import KERNELS
from npusim.errors import Error, GraphError, ProgramFormatError
from npusim.ir.graph import Graph
from npusim.ir.json import VERSION, check_version, graph_from_json, graph_to_text, parse_any
from npusim.ir.module import VERSION as MODULE_VERSION
from npusim.ir.module import Module, is_module, module_from_json
from npusim.partition.plan_file import LAYOUT, read_plan, write_plan
from npusim.program.container import MAGIC, NPUBIN, is_newer
from npusim.program.program import CompiledProgram
from npusim.program.sized_command import PREPARED, prepared_sizes

_NEWER = "It is of a newer version than this npusim writes, and loads as it is."
_OWN_FACTS = {"model", "producer", "graph", "graphs", "states", PREPARED}


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What became of a file.

    Attributes:
        kind: "graph", "module", "program" or "partition plan".
        content: all that the file is to hold; what it held where it needs no change.
        compiled: kernels whose parameters are others now, for which it was compiled again. Its sums
            may round in another order than before.
    """

    kind: str
    content: bytes
    compiled: tuple[str, ...] = ()


def upgrade(data: bytes) -> Upgrade:
    """Returns the content of a file in the form of this npusim.

    Raises:
        GraphError, ProgramFormatError: it is damaged, or of a newer or unknown version.
        Error: it is no file of npusim's, or it has to be compiled again and cannot be.
    """
    if data.startswith(MAGIC[:5]):
        program = CompiledProgram.from_bytes(data)
        if is_newer(data, NPUBIN):
            raise ProgramFormatError(_NEWER)
        made, stale = _current(program)
        return Upgrade("program", made.to_bytes(), stale)
    if data.startswith(LAYOUT.magic[:5]):
        return _upgrade_plan(data)
    if data.lstrip().startswith(b"{"):
        return _upgrade_json(data)
    raise Error(
        "It is no graph, program or partition plan.",
        hint="Checkpoints (.safetensors) and .toml files need no upgrade.",
    )


def _upgrade_json(data: bytes) -> Upgrade:
    tree = parse_any(data)
    if not isinstance(tree, Mapping) or "format" not in tree:
        raise GraphError(
            "It is JSON, but no graph of npusim's.", hint="npusim import reads others."
        )
    kind = "module" if is_module(tree) else "graph"
    text, again = (_module_text if is_module(tree) else _graph_text)(tree)
    if not again:
        raise GraphError("Written in this version's form, it is another graph: this is a defect.")
    # Laid out in another way it is no older.
    current = parse_any(text) == tree
    return Upgrade(kind, data if current else text.encode())


def _graph_text(tree: object) -> tuple[str, bool]:
    """Returns a graph as this version writes it, and whether that reads back as the same."""
    graph = graph_from_json(tree)
    _refuse_newer(tree, "graph", VERSION)
    text = graph_to_text(graph)
    return text, graph_from_json(parse_any(text)) == graph


def _module_text(tree: object) -> tuple[str, bool]:
    module = module_from_json(tree)
    _refuse_newer(tree, "module", MODULE_VERSION)
    methods: Mapping[str, Any] = tree["methods"] if isinstance(tree, Mapping) else {}
    for graph in methods.values():
        _refuse_newer(graph, "graph", VERSION)
    text = module.to_text()
    return text, module_from_json(parse_any(text)) == module


def _refuse_newer(tree: object, what: str, known: tuple[int, int]) -> None:
    if isinstance(tree, Mapping) and check_version(tree, what, known) > known[1]:
        raise GraphError(_NEWER)


def _upgrade_plan(data: bytes) -> Upgrade:
    plan = read_plan(data)
    if is_newer(data, LAYOUT):
        raise ProgramFormatError(_NEWER)
    stale: dict[str, None] = {}
    partitions = []
    for partition in plan.partitions:
        if partition.program is not None:
            program, kernels = _current(partition.program)
            stale.update(dict.fromkeys(kernels))
            partition = replace(partition, program=program)
        partitions.append(partition)
    if not stale:
        return Upgrade("partition plan", write_plan(plan))
    content = write_plan(replace(plan, partitions=tuple(partitions)))
    read_plan(content)
    return Upgrade("partition plan", content, tuple(stale))


def _current(program: CompiledProgram) -> tuple[CompiledProgram, tuple[str, ...]]:
    """Returns a program that this npusim runs, and the kernels that it was compiled again for."""
    stale = _stale_kernels(program)
    if not stale:
        return program, ()
    graphs = program.graphs
    if set(graphs) != {method.name for method in program.methods}:
        raise Error(
            f"The program calls kernels that take other parameters now ({', '.join(stale)}), and "
            "carries no graph to compile again.",
            hint="Compile it from the model's graph: npusim compile.",
        )
    made = _compiled_again(program, graphs)
    if _interface(made) != _interface(program):
        raise ProgramFormatError(
            "Compiled again, the program would take other inputs, outputs, weights or states.",
            hint="Compile it from the model's graph: npusim compile.",
        )
    return made, stale


def _stale_kernels(program: CompiledProgram) -> tuple[str, ...]:
    """Returns the kernels that the runtime has with other parameters, or no more.

    Device code for given parameters comes with the program, and runs as it is.
    """
    return tuple(
        kernel.name
        for kernel in program.kernels
        if not kernel.image
        and (kernel.name not in KERNELS or KERNELS[kernel.name].schema != kernel.schema)
    )


def _compiled_again(program: CompiledProgram, graphs: Mapping[str, Graph]) -> CompiledProgram:
    from npusim.compile import compile
    from npusim.schedule import target_of

    facts = {key: value for key, value in program.metadata.items() if key not in _OWN_FACTS}
    name = str(program.metadata.get("model", ""))
    model = Module(name, dict(graphs), facts)
    return compile(model, target_of(program), sizes=prepared_sizes(program))


def _interface(program: CompiledProgram) -> dict[str, Any]:
    """Returns what callers, checkpoints and saved states see of a program."""
    return {
        "target": program.target,
        "methods": [
            (
                method.name,
                [(t.name, t.dtype, t.shape) for t in method.inputs],
                [(t.name, t.dtype, t.shape) for t in method.outputs],
            )
            for method in program.methods
        ],
        "weights": {(w.keys, w.dtype, w.shape) for w in program.weights},
        "states": [
            (state["name"], state["dtype"], state["shape"])
            for state in _rows(program.metadata.get("states"))
        ],
    }


def _rows(value: object) -> list[dict[str, Any]]:
    return value if isinstance(value, list) else []

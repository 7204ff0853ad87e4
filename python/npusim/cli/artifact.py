"""Opening a FILE argument: a graph (JSON), a program (.npubin) or a plan, told by its content."""

from __future__ import annotations

from pathlib import Path

from npusim.errors import Error
from npusim.ir.graph import Graph
from npusim.ir.module import Module, load_ir
from npusim.partition.plan import PartitionPlan
from npusim.partition.plan_file import LAYOUT
from npusim.program.container import MAGIC
from npusim.program.program import CompiledProgram


def open_artifact(path: Path) -> Graph | CompiledProgram | PartitionPlan:
    """Loads what a file holds; Error when it is missing, none of the three, or damaged."""
    with readable(path).open("rb") as file:
        start = file.read(64)
    if start.startswith(MAGIC[:5]):  # enough to know what it means to be; the loader checks all
        return CompiledProgram.load(path)
    if start.startswith(LAYOUT.magic[:5]):
        return PartitionPlan.load(path)
    if start.lstrip().startswith(b"{"):
        return Graph.load(path)
    raise Error(
        f"{path} is no graph, program or plan.",
        hint="`npusim extract` writes graphs, `compile` programs, `partition` plans.",
    )


def open_ir(path: Path) -> Graph | Module:
    """Loads a graph, a module, or the lowered graph that a program carries."""
    with readable(path).open("rb") as file:
        start = file.read(64)
    return load_ir(path) if start.lstrip().startswith(b"{") else open_graph(path)


def open_graph(path: Path) -> Graph:
    """Loads a graph, the lowered graph that a program carries, or the one that a plan cuts."""
    artifact = open_artifact(path)
    if isinstance(artifact, Graph):
        return artifact
    graph = artifact.graph
    if graph is None:
        raise Error(f"{path} carries no graph.", hint="Give the graph it was compiled from.")
    return graph


def open_runnable(path: Path) -> CompiledProgram | PartitionPlan:
    """Loads a program or a plan; Error when the file holds a graph."""
    artifact = open_artifact(path)
    if isinstance(artifact, Graph):
        raise Error(f"{path} is a graph, not a program.", hint=f"Compile it: npusim compile {path}")
    return artifact


def open_program(path: Path) -> CompiledProgram:
    """Loads a program; Error when the file holds something else."""
    artifact = open_runnable(path)
    if isinstance(artifact, PartitionPlan):
        raise Error(
            f"{path} is a partition plan, not one program.", hint=f"Run it: npusim run {path}"
        )
    return artifact


def readable(path: Path) -> Path:
    """Returns the path of an existing file; Error otherwise."""
    if path.is_dir():
        raise Error(f"{path} is a folder, not a file.")
    if not path.exists():
        raise Error(f"There is no file {path}.")
    return path

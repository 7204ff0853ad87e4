"""Opening a FILE argument: a graph (JSON), a program (.npubin) or a plan, told by its content."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.errors import Error
from npusim.files import printable_path, reads
from npusim.ir.graph import Graph
from npusim.ir.module import Module, load_ir
from npusim.program.container import MAGIC
from npusim.program.program import CompiledProgram, TensorSpec

if TYPE_CHECKING:
    from npusim.partition.plan import PartitionPlan


def open_artifact(path: Path) -> Graph | CompiledProgram | PartitionPlan:
    """Loads what a file holds; Error when it is missing, none of the three, or damaged."""
    with readable(path).open("rb") as file:
        start = file.read(64)
    if start.startswith(MAGIC[:5]):  # enough to know what it means to be; the loader checks all
        return CompiledProgram.load(path)
    # With it comes the compiler, which a server of programs does not need.
    from npusim.partition.plan import PartitionPlan
    from npusim.partition.plan_file import LAYOUT

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
    if isinstance(artifact, CompiledProgram):
        return artifact
    raise Error(f"{path} is a partition plan, not one program.", hint=f"Run it: npusim run {path}")


def plan_specs(plan: PartitionPlan) -> list[TensorSpec]:
    """Returns the inputs of a plan as those of a program are described."""
    return [
        TensorSpec(v.name, 0, v.type.dtype, v.type.shape, v.type.shape) for v in plan.graph.inputs
    ]


def readable(path: Path, *, kept: bool = True) -> Path:
    """Returns the path of an existing file, which the verb then does not write over; else Error.

    Args:
        kept: False when it is the verb's very purpose to replace the file.
    """
    shown = printable_path(path)
    if not path.name:
        raise Error(f"'{shown}' names no file.", hint="Give a file.")
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise Error(f"There is no file {shown}.") from None
        reason = getattr(error, "strerror", None) or str(error)
        raise Error(f"{shown} cannot be read: {reason.lower()}.") from None
    if stat.S_ISDIR(mode):
        raise Error(f"{shown} is a folder, not a file.")
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise Error(f"{shown} is a device, not a file.")
    if kept:
        reads(path)
    return path


def beside(path: Path, suffix: str) -> Path:
    """Returns the default output of a verb: the input's name with another ending.

    Raises:
        Error: the input is no file, or a file of that name is there that npusim did not write.
    """
    output = readable(path).with_suffix(suffix)
    if output.is_file() and not _is_ours(output, suffix):
        raise Error(
            f"{printable_path(output)} is there, and npusim did not write it.",
            hint="Name the output with -o.",
        )
    return output


def _is_ours(path: Path, suffix: str) -> bool:
    with path.open("rb") as file:
        start = file.read(256)
    if suffix == ".onnx":  # field 2 of a ModelProto, the producer, stands near its beginning
        return b"\x12\x06npusim" in start
    from npusim.partition.plan_file import LAYOUT

    return start.startswith((MAGIC[:5], LAYOUT.magic[:5])) or not start

"""A plan as one file: a manifest, and the `.npubin` image of every native partition.

Owns the form of the manifest and what is checked of it (docs/fallback.md specifies both). The
container is that of `.npubin` files under another magic number. A file is hostile until it has
passed: the graph is verified, the partitions are built again from the groups the manifest names,
and every program must take and give exactly what its partition does.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from npusim.errors import Error, GraphError, ProgramFormatError, TargetConstraintError
from npusim.files import read_whole, write_atomic
from npusim.ir.graph import Graph
from npusim.ir.json import graph_from_json, graph_to_json, parse_json
from npusim.partition.build import build_partitions, check_order, find_transfers
from npusim.partition.grouping import Cut, check_cut
from npusim.partition.plan import Partition, PartitionPlan
from npusim.partition.support import DECOMPOSED, FALLBACK, NATIVE, Verdict
from npusim.program.container import (
    Chunk,
    Layout,
    SectionId,
    damaged,
    pack_blobs,
    pack_container,
    unpack_blobs,
    unpack_sections,
)
from npusim.program.format import read_program, write_program
from npusim.program.program import CompiledProgram
from npusim.version import __version__

_ALIGNMENT = 64  # of a program in its table


class PlanSection(SectionId):
    """The sections of version 1.0."""

    MANIFEST = 1
    PROGRAMS = 2


LAYOUT = Layout(
    what="partition plan",
    magic=b"\x89NPLN\r\n\x1a",
    major=1,
    minor=0,
    sections=PlanSection,
    required=(PlanSection.MANIFEST,),
    remake="partition the model again",
    origin="`PartitionPlan.save` writes one.",
)


def save_plan(plan: PartitionPlan, path: str | os.PathLike[str]) -> None:
    """Writes a plan; whole or not at all. Error when the path cannot be written."""
    write_atomic(path, write_plan(plan))


def is_plan(path: str | os.PathLike[str]) -> bool:
    """Tells whether a file means to be a plan; False of one that cannot be read."""
    with contextlib.suppress(OSError, ValueError), Path(path).open("rb") as file:
        return file.read(5) == LAYOUT.magic[:5]
    return False


def load_plan(path: str | os.PathLike[str]) -> PartitionPlan:
    """Reads a plan; see `PartitionPlan.load`."""
    try:
        data = read_whole(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Error(f"Cannot read {os.fspath(path)}: {reason.lower()}.") from error
    try:
        return read_plan(data)
    except ProgramFormatError as error:
        raise ProgramFormatError(f"{os.fspath(path)}: {error}") from error


def write_plan(plan: PartitionPlan) -> bytes:
    """Returns the file of a plan whose partitions are compiled."""
    programs = []
    for partition in plan.partitions:
        if partition.is_native:
            if partition.program is None:
                raise Error("The plan is a draft: its partitions are not compiled.")
            programs.append(write_program(partition.program))
    manifest = {
        "producer": f"npusim {__version__}",
        "target": plan.target,
        "device": plan.device,
        "graph": graph_to_json(plan.graph),
        "fixed": [n.name for n in plan.graph.nodes if n.name in plan.cut.fixed],
        "load": list(plan.cut.load),
        "shared": [name for name in plan.cut.load if name in plan.cut.shared],
        "rounds": [{"native": native, "nodes": list(names)} for native, names in plan.cut.rounds],
        "verdicts": {n: [v.status, v.constraint, v.reason] for n, v in plan.verdicts.items()},
    }
    text = json.dumps(manifest, separators=(",", ":"), allow_nan=False).encode()
    sections = {
        PlanSection.MANIFEST: text,
        PlanSection.PROGRAMS: pack_blobs(programs, _ALIGNMENT) if programs else b"",
    }
    return pack_container(sections, LAYOUT)


def read_plan(data: bytes | bytearray | memoryview) -> PartitionPlan:
    """Reads a plan's file.

    Raises:
        ProgramFormatError: truncated, corrupt, of another version, or not a plan.
    """
    sections = unpack_sections(memoryview(data).cast("B"), LAYOUT)
    manifest = sections[PlanSection.MANIFEST]
    try:
        tree = _Manifest(parse_json(bytes(manifest.data)), manifest)
        graph = graph_from_json(tree.mapping("graph"))
        fixed, shared = frozenset(tree.names("fixed")), frozenset(tree.names("shared"))
        cut = Cut(fixed, tree.names("load"), shared, tree.rounds())
        check_cut(graph, cut)
        partitions = build_partitions(graph, cut)
        check_order(graph, partitions)
        transfers = find_transfers(graph, partitions)
    except (GraphError, TargetConstraintError) as error:
        raise manifest.refuse(0, str(error).rstrip(".")) from error
    verdicts = tree.verdicts(graph)
    target, device = tree.text("target"), tree.text("device")
    images = unpack_blobs(sections[PlanSection.PROGRAMS], _ALIGNMENT)
    compiled = _with_programs(partitions, images, device, manifest)
    return PartitionPlan(graph, target, device, compiled, transfers, verdicts, cut)


def _with_programs(
    partitions: tuple[Partition, ...], images: list[bytes], device: str, manifest: Chunk
) -> tuple[Partition, ...]:
    natives = [p for p in partitions if p.is_native]
    if len(natives) != len(images):
        raise manifest.refuse(0, f"{len(natives)} native partitions have {len(images)} programs")
    programs = {p.index: read_program(image) for p, image in zip(natives, images, strict=True)}
    for partition in natives:
        problem = _misfit(partition.graph, programs[partition.index], device)
        if problem:
            raise damaged(f"the program of partition {partition.index} {problem}", LAYOUT)
    return tuple(replace(p, program=programs.get(p.index)) for p in partitions)


def _misfit(graph: Graph, program: CompiledProgram, device: str) -> str:
    """Returns what a program does otherwise than its partition, or nothing."""
    method = program.methods[0]
    if program.target.partition(":")[0] != device:  # after it, an architecture
        return f"is for {program.target!r}, not {device!r}"
    if [(s.name, s.dtype, s.shape) for s in method.inputs] != [
        (v.name, v.type.dtype, v.type.shape) for v in graph.inputs
    ]:
        return "takes other inputs"
    shown = [(o.name, graph.types[o.value]) for o in graph.outputs]
    if [(s.name, s.dtype, s.shape) for s in method.outputs] != [
        (name, kind.dtype, kind.shape) for name, kind in shown
    ]:
        return "gives other outputs"
    weights = {w.key: (w.type.dtype, w.type.shape) for w in graph.weights}
    if any(weights.get(spec.keys[0]) != (spec.dtype, spec.shape) for spec in program.weights):
        return "needs other weights"
    return ""


class _Manifest:
    """The manifest's fields, each checked when it is taken."""

    def __init__(self, tree: object, chunk: Chunk) -> None:
        self._chunk = chunk
        self._tree = self._typed(tree, Mapping, "the manifest")

    def mapping(self, key: str) -> Mapping[str, Any]:
        return self._typed(self._tree.get(key), Mapping, f"$.{key}")

    def text(self, key: str) -> str:
        value: str = self._typed(self._tree.get(key), str, f"$.{key}")
        if not value.isprintable():
            raise self._chunk.refuse(0, f"$.{key} contains characters that cannot be printed")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        return self._strings(self._tree.get(key), f"$.{key}")

    def rounds(self) -> tuple[tuple[bool, tuple[str, ...]], ...]:
        rounds = []
        for i, item in enumerate(self._typed(self._tree.get("rounds"), list, "$.rounds")):
            where = f"$.rounds[{i}]"
            fields = self._typed(item, Mapping, where)
            native = self._typed(fields.get("native"), bool, f"{where}.native")
            rounds.append((native, self._strings(fields.get("nodes"), f"{where}.nodes")))
        return tuple(rounds)

    def verdicts(self, graph: Graph) -> dict[str, Verdict]:
        found = self.mapping("verdicts")
        if set(found) != set(graph.positions):
            raise self._chunk.refuse(0, "$.verdicts is not about the nodes of the graph")
        verdicts = {}
        for node in graph.nodes:
            fields = self._strings(found[node.name], f"$.verdicts.{node.name}")
            if len(fields) != 3 or fields[0] not in (NATIVE, DECOMPOSED, FALLBACK):
                raise self._chunk.refuse(0, f"$.verdicts.{node.name} is no verdict")
            verdicts[node.name] = Verdict(*fields)
        return verdicts

    def _strings(self, value: object, where: str) -> tuple[str, ...]:
        items = self._typed(value, list, where)
        return tuple(self._typed(item, str, f"{where}[{i}]") for i, item in enumerate(items))

    def _typed(self, value: object, kind: Any, where: str) -> Any:
        if not isinstance(value, kind):
            raise self._chunk.refuse(0, f"{where} is missing or of another type")
        return value

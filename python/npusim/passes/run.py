"""Runs the pipeline: one pass after the other, the graph verified after each.

Owns dumping and progress; which passes run, and in what order, stands in `npusim.passes`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from npusim import passes
from npusim.errors import GraphError, SymbolicSizeError
from npusim.files import make_folder, write_atomic
from npusim.ir.graph import Graph
from npusim.ir.printer import format_graph
from npusim.ir.verify import verify_graph
from npusim.ops.check_types import check_types
from npusim.ops.int8_reference import INT8_CONV, INT8_MATMUL
from npusim.passes import NEEDS, Pass
from npusim.passes.sign_bytes import sign_bytes
from npusim.targets.target_config import TargetConfig

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]


def run_passes(
    graph: Graph,
    target: TargetConfig,
    *,
    pipeline: Sequence[Pass] | None = None,
    dump_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Returns the graph after all passes.

    Args:
        pipeline: by default `npusim.passes.PIPELINE`.
        dump_dir: a folder (created when missing) that receives the graph as text, before the
            first pass and after each: `00_input.txt`, `01_remove_noops.txt`, …; a pass that
            changed nothing leaves one line that says so.
        progress: called with (pass name, its index from 0, number of passes) before each.

    Raises:
        GraphError: a node does not have the operands or attributes of its op, or a pass produced
            an illegal graph; the message names the node or the pass.
    """
    check_types(verify_graph(graph))
    folder = None if dump_dir is None else Path(dump_dir)
    if folder is not None:
        make_folder(folder)
        _dump(folder, 0, "input", format_graph(graph))
    pipeline = passes.PIPELINE if pipeline is None else pipeline
    for index, run in enumerate(pipeline):
        name = run.__name__
        if progress is not None:
            progress(name, index, len(pipeline))
        result = _run_one(run, graph, target)
        if result is not graph:
            logger.debug("%s: %d nodes become %d", name, len(graph.nodes), len(result.nodes))
        if folder is not None:
            text = "unchanged\n" if result == graph else format_graph(result)
            _dump(folder, index + 1, name, text)
        graph = result
    return graph


def in_products_of_bytes(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph as a partitioner should see it: with the products of bytes in it.

    They are made of quantized models' floats, which a described machine may have no form of: a cut
    between these would leave nothing to recognise. The graph itself where there are none, and for
    targets that describe no machine.
    """
    if target.npu is None or not target.multiplies_bytes:
        return graph
    pipeline = passes.PIPELINE
    result = run_passes(graph, target, pipeline=pipeline[: pipeline.index(sign_bytes) + 1])
    found = any(node.op in (INT8_CONV, INT8_MATMUL) for node in result.nodes)
    return result if found else graph


def _run_one(run: Pass, graph: Graph, target: TargetConfig) -> Graph:
    if not target.has(*NEEDS.get(run, ())):
        return graph
    try:
        result = run(graph, target)
    except SymbolicSizeError:  # outside of any match; passes decide each for itself
        return graph
    if result is graph:
        return graph
    try:
        check_types(verify_graph(result), known=graph)
        check_signature(graph, result)
    except GraphError as error:
        raise GraphError(f"Pass {run.__name__} broke the graph: {error}") from error
    return result


def check_signature(before: Graph, after: Graph) -> None:
    """A pass keeps what a caller sees: inputs, states, the outputs' names, dtypes and shapes."""

    def signature(graph: Graph) -> tuple[object, ...]:
        types = ((o.name, graph.types[o.value]) for o in graph.outputs)
        seen = tuple((name, t.dtype, t.shape) for name, t in types)
        return graph.inputs, seen, graph.states, tuple(u.name for u in graph.updates)

    if signature(before) != signature(after):
        raise GraphError("the graph's inputs, outputs or states changed.")


def _dump(folder: Path, index: int, name: str, text: str) -> None:
    write_atomic(folder / f"{index:02d}_{name}.txt", text.encode())

"""Runs the pipeline for several ranks: up to where products have one spelling, then `shard` over
all methods at once, then the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from npusim import passes
from npusim.ir.graph import Graph
from npusim.ir.module import Module
from npusim.ir.verify import verify_graph
from npusim.ops.check_types import check_types
from npusim.passes.run import Progress, run_passes
from npusim.passes.shard import SHARD_BEFORE, check_ranks, shard
from npusim.targets.target_config import TargetConfig

_METHOD = "forward"  # of a lone graph


def run_for_ranks(
    model: Graph | Module,
    target: TargetConfig,
    ranks: int,
    *,
    dump_dir: Path | None = None,
    progress: Progress | None = None,
) -> Module:
    """Returns the methods as one rank runs them, after all passes.

    The module's fact `tensor_parallel` says what became of the weights of products: `ranks`,
    `split` and `whole`, as `Sharded` has them.

    Args:
        dump_dir: as `run_passes` has it; a folder in it for each method, and one in that, `ranks`,
            for what comes after `shard`.

    Raises:
        What `run_passes` and `shard` raise.
    """
    check_ranks(target, ranks)
    if isinstance(model, Graph):
        model = Module(model.name, {_METHOD: model})
    at = passes.PIPELINE.index(SHARD_BEFORE)
    before, after = passes.PIPELINE[:at], passes.PIPELINE[at:]
    methods: dict[str, Graph] = {}
    for name, graph in model.methods.items():
        folder = None if dump_dir is None else dump_dir / name
        methods[name] = run_passes(
            graph, target, pipeline=before, dump_dir=folder, progress=progress
        )
    sharded = shard(methods, target, ranks)
    for name, graph in sharded.methods.items():
        check_types(verify_graph(graph))
        folder = None if dump_dir is None else dump_dir / name / "ranks"
        methods[name] = run_passes(
            graph, target, pipeline=after, dump_dir=folder, progress=progress
        )
    facts = {"ranks": ranks, "split": sharded.split, "whole": sharded.whole}
    return replace(model, methods=methods, facts={**model.facts, "tensor_parallel": facts})

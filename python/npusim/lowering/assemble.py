"""Puts a program together: lowered commands, the memory plan, and the facts tools read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.ir.graph import Graph
from npusim.ir.json import graph_to_json
from npusim.ir.module import Module
from npusim.lowering.constraints import unsupported
from npusim.lowering.context import Lowering
from npusim.lowering.plan_memory import plan_memory
from npusim.program.program import CompiledProgram, Method
from npusim.targets import TargetConfig
from npusim.version import __version__

DEFAULT_METHOD = "forward"


def assemble(model: Graph | Module, target: TargetConfig) -> CompiledProgram:
    """Turns graphs whose passes have run into a program; a lone graph is its method `forward`.

    Raises:
        UnsupportedOpError: nodes that the target cannot run; all of them are listed.
    """
    if isinstance(model, Graph):
        model = Module(model.name, {DEFAULT_METHOD: model})
    low = Lowering(target, dense_calls=any(graph.states for graph in model.methods.values()))
    for name, graph in model.methods.items():
        low.method(name, graph)
    if low.refused or low.unbound:
        raise unsupported(model.name, target.name, low.refused, low.unbound)
    plan = plan_memory(low.buffers, low.init, low.methods)
    methods = (
        Method(m.name, tuple(m.commands), tuple(m.inputs), tuple(m.outputs), arena)
        for m, arena in zip(low.methods, plan.run_arenas, strict=True)
    )
    return CompiledProgram(
        target=target.device,
        kernels=low.kernel_table(),
        buffers=plan.buffers,
        methods=tuple(methods),
        init=Method("init", tuple(low.init.commands), (), (), plan.init_arena),
        weights=tuple(spec for spec, _ in low.weights.values()),
        nodes=tuple(low.nodes),
        constants=plan.constants,
        persistent_bytes=plan.persistent,
        state_bytes=plan.state,
        ranks=low.ranks,
        metadata=_metadata(model, low),
    )


def _metadata(model: Module, low: Lowering) -> Mapping[str, Any]:
    (first, *others) = model.methods.items()
    metadata: dict[str, Any] = {
        "model": model.name,
        "producer": f"npusim {__version__}",
        "graph": graph_to_json(first[1]),
    }
    if others:
        metadata["graphs"] = {name: graph_to_json(graph) for name, graph in others}
    if low.states:
        metadata["states"] = [
            {"name": name, "buffer": view.buffer, "dtype": view.dtype, "shape": list(view.shape)}
            for name, (_, view) in low.states.items()
        ]
    return {**metadata, **model.facts}

"""Puts a program together: lowered commands, the memory plan, and the facts tools read."""

from __future__ import annotations

from npusim.ir.graph import Graph
from npusim.ir.json import graph_to_json
from npusim.program.lowering import Lowering
from npusim.program.plan_memory import plan_memory
from npusim.program.program import CompiledProgram, Method
from npusim.targets import TargetConfig
from npusim.version import __version__


def assemble(graph: Graph, target: TargetConfig) -> CompiledProgram:
    """Turns a graph whose passes have run into a program with one method, `forward`."""
    low = Lowering(graph, target)
    inputs, weights = low.bind_arguments()
    for node in graph.nodes:
        low.lower_node(node)
    outputs = low.bind_results()
    plan = plan_memory(low.buffers, low.init, low.run)
    return CompiledProgram(
        target=target.device,
        kernels=low.kernel_table(),
        buffers=plan.buffers,
        methods=(
            Method(
                "forward", tuple(low.run.commands), tuple(inputs), tuple(outputs), plan.run_arena
            ),
        ),
        init=Method("init", tuple(low.init.commands), (), (), plan.init_arena),
        weights=tuple(weights),
        nodes=tuple(low.nodes),
        constants=plan.constants,
        persistent_bytes=plan.persistent,
        state_bytes=0,
        metadata={
            "model": graph.name,
            "producer": f"npusim {__version__}",
            "graph": graph_to_json(graph),
        },
    )

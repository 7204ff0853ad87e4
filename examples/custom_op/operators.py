"""An operator of your own, kept whole by extraction and computed natively.

    npusim --import operators.py extract model.py:net -o net.json
    npusim --import operators.py compile net.json -o net.npubin

The reference is PyTorch code; `lower` says which kernels compute it. Here that is one pass over the
elements in the scalar dialect (`npusim.abi.scalar`), which every backend knows: the operator runs
on all of them. Programs carry kernels, not operators: running one needs no import.
"""

from __future__ import annotations

import torch

import npusim
from npusim.abi.scalar import ScalarBuilder, compute_class
from npusim.ir.graph import Graph, Node
from npusim.lowering.context import Lowering
from npusim.lowering.pointwise_kernel import emit_program


def supports(node: Node, graph: Graph) -> str | None:
    """Says why a node cannot be computed, or None: both operands must have one dtype."""
    dtypes = {graph.types[name].dtype for name in node.inputs if name is not None}
    return None if len(dtypes) == 1 else "x and gate differ in dtype"


def lower(node: Node, low: Lowering) -> None:
    """Emits x * silu(gate) as one command."""
    x, gate = low.inputs(node)
    assert x is not None and gate is not None
    result = low.result(node.output)
    cls = compute_class(result.dtype)
    program = ScalarBuilder((cls, cls))
    program.op("mul", cls, 0, program.op("silu", cls, 1))
    inputs = [view.expand(result.shape) for view in (x, gate)]
    emit_program(low, program.build(result.dtype), inputs, result)


@npusim.register_op("example.swiglu", lower=lower, supports=supports)
def swiglu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Returns x * silu(gate); the shapes broadcast."""
    return x * torch.nn.functional.silu(gate)

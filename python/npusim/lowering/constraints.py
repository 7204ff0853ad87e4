"""Why a node cannot be lowered: what its op says of it, and the error that lists such nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npusim.errors import SymbolicSizeError, UnsupportedOpError, at
from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import find
from npusim.ir.types import HOST_DTYPES

# What PyTorch draws from its generator; a program computes the same from the same inputs.
_RANDOM = frozenset(
    [
        "_sample_dirichlet",
        "_standard_gamma",
        "bernoulli",
        "binomial",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "native_dropout",
        "normal",
        "normal_functional",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random",
        "randperm",
        "rrelu_with_noise",
        "rrelu_with_noise_functional",
        "uniform",
    ]
)
# Those of them that layers call while they are trained, and not in evaluation.
_OF_TRAINING = frozenset(
    ["native_dropout", "rrelu_with_noise", "rrelu_with_noise_functional", "bernoulli"]
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node that a target cannot run, of a graph, and the constraint in words."""

    graph: Graph
    node: Node
    why: str

    def __str__(self) -> str:
        node, types = self.node, self.graph.types
        kinds = ", ".join("none" if i is None else str(types[i]) for i in node.inputs)
        return f"  {node.op}({kinds}){at(node.source)}: {self.why}"


def op_constraint(node: Node, graph: Graph) -> str | None:
    """Returns why no target can run a node, or None when a target with the right kernels can."""
    definition = find(node.op)
    if definition is None and _base_name(node.op) in _RANDOM:
        drawn = "it draws random numbers, which differ from call to call: make them an input"
        if _base_name(node.op) not in _OF_TRAINING:
            return drawn
        return f"{drawn}, or, where a layer in training mode draws them, call its eval()"
    if definition is None:
        return "npusim does not know this operator"
    if definition.lower is None:
        return "no kernel implements this operator"
    operands = (graph.types[i] for i in node.inputs if i is not None)
    for tensor in (*operands, *(v.type for v in node.outputs)):
        if tensor.dtype in HOST_DTYPES:
            return f"dtype {tensor.dtype}, which no device has"
    try:
        return definition.supports(node, graph) if definition.supports is not None else None
    except SymbolicSizeError as error:
        return str(error).rstrip(".")


def _base_name(op: str) -> str:
    """Returns an operator of PyTorch's own without its namespace and overload."""
    namespace, _, rest = op.partition(".")
    return rest.partition(".")[0] if namespace == "aten" else ""


def unsupported(
    name: str, target: str, refused: Sequence[Refusal], more: Sequence[str] = ()
) -> UnsupportedOpError:
    """Returns the error that lists everything of a model that a target cannot run.

    Args:
        more: lines about what is no node.
    """
    lines = [*map(str, refused), *more]
    noun = "node" if len(lines) == 1 else "nodes"
    return UnsupportedOpError(
        f"{len(lines)} {noun} of '{name}' cannot run on target '{target}':\n" + "\n".join(lines),
        hint="\nReplace these operations in the model, register a lowering for them, or let "
        "PyTorch run them (npusim.partition).",
        nodes=tuple(refusal.node.name for refusal in refused),
    )

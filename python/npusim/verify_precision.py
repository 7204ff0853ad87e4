"""What compiling a float32 model in another precision costs: by product, and by output.

Owns the measure: the graph after all passes runs in PyTorch in both precisions, and each product's
result is compared with what it is in float32. So errors are those that have come together up to
there; a layer is at fault where they rise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from npusim.analysis.narrow_values import MULTIPLIED
from npusim.errors import at
from npusim.ir.graph import Graph
from npusim.ops.reference import GraphRun
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig
from npusim.verify import Comparison, compare

# What the largest error of an output may be, relative to its largest value: some roundings of the
# precision's 16-bit dtype, which layers add to one another.
TOLERANCES = {"bfloat16": 2.0**-5, "mixed": 2.0**-5, "float16": 2.0**-8, "float32": 1e-4}


@dataclass(frozen=True)
class LayerError:
    """One product.

    Attributes:
        name: its value in the graph.
        source: the line of the model's code that multiplies.
        op: what it is.
        dtype: of its operands.
        max_rel: the largest error of its result over the largest result.
        sqnr_db: signal to noise of its result, in dB.
    """

    name: str
    source: str
    op: str
    dtype: str
    max_rel: float
    sqnr_db: float

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.op}, {self.dtype}) {self.source}: max rel {self.max_rel:.2e}, "
            f"SQNR {self.sqnr_db:.1f} dB"
        )


@dataclass(frozen=True)
class PrecisionReport:
    """The errors of all products, in the graph's order, and of the outputs."""

    precision: str
    layers: tuple[LayerError, ...]
    outputs: tuple[Comparison, ...]

    @property
    def ok(self) -> bool:
        """Whether every output is within the tolerance of the precision."""
        return all(output.ok for output in self.outputs)

    @property
    def worst(self) -> LayerError | None:
        """The product with the least signal to noise; None when there is no product."""
        return min(self.layers, key=lambda layer: layer.sqnr_db, default=None)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields, JSON types only."""
        return {
            "precision": self.precision,
            "layers": [asdict(layer) for layer in self.layers],
            "outputs": [output.to_json() for output in self.outputs],
        }

    def lines(self) -> list[str]:
        """Returns what a person reads."""
        lines = [str(layer) for layer in self.layers]
        narrow = sum(layer.dtype != "float32" for layer in self.layers)
        summary = f"{self.precision}: {narrow} of {len(self.layers)} products in 16 bits"
        if self.worst is not None:
            summary += f"; least signal to noise: {self.worst.name}, {self.worst.sqnr_db:.1f} dB"
        lines.append(summary)
        return [*lines, *(f"{'ok' if o.ok else 'FAIL':4} {o}" for o in self.outputs)]


def verify_precision(
    graph: Graph,
    precision: str,
    state_dict: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    target: str | TargetConfig = "cpu",
) -> PrecisionReport:
    """Compares a float32 graph with itself in another precision, in one run of each.

    Args:
        graph: as `extract_ir` gives it.
        precision: such as "bfloat16" (`abi/precision.py`).
        state_dict: the weights.
        inputs: of the graph, in order.

    Raises:
        TargetConstraintError: there is no such precision or target, or the graph's products are of
            16 bits already.
        ShapeError, WeightMismatchError: inputs or weights do not fit.
    """
    config = target if isinstance(target, TargetConfig) else TargetConfig.named(target)
    wide, narrow = (
        GraphRun(run_passes(graph, replace(config, precision=name)), inputs, state_dict)
        for name in ("float32", precision)
    )
    expected = {
        node.output.name: results[0].float() for node, results in wide if node.op in MULTIPLIED
    }
    layers = []
    for node, results in narrow:
        if node.op not in MULTIPLIED or node.output.name not in expected:
            continue
        found = compare(node.name, results[0].float(), expected.pop(node.output.name))
        multiplied = next(narrow.operands(node)[i].dtype for i in node.inputs if i is not None)
        layers.append(
            LayerError(
                node.name,
                at(node.source).strip(" ()"),
                node.op,
                str(multiplied).removeprefix("torch."),
                found.max_rel,
                found.sqnr_db,
            )
        )
    pairs = zip(graph.outputs, narrow.outputs(), wide.outputs(), strict=True)
    outputs = [compare(o.name, a, b, TOLERANCES[precision]) for o, a, b in pairs]
    return PrecisionReport(precision, tuple(layers), tuple(outputs))

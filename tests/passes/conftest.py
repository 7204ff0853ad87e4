"""What every pass is tested with: graphs written by hand, and one check that asks for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from npusim.ir.graph import Graph
from npusim.ir.printer import format_graph
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.ir.verify import verify_graph
from npusim.ops.reference import check_node, infer_types, run_graph
from npusim.passes import Pass
from npusim.passes.run import check_signature
from npusim.targets.target_config import TargetConfig


class Draft(GraphBuilder):
    """A GraphBuilder that infers types, for short tests."""

    def __init__(self) -> None:
        super().__init__("test")
        self.types: dict[str, TensorType] = {}

    def x(self, *shape: int, dtype: str = "float32", name: str = "x") -> str:
        """Adds an input."""
        return self._typed(self.input(name, TensorType(dtype, shape)), TensorType(dtype, shape))

    def w(self, *shape: int, dtype: str = "float32", name: str = "w") -> str:
        """Adds a weight; its key is its name."""
        name = name if name not in self.names else f"{name}{len(self._weights)}"
        return self._typed(self.weight(name, TensorType(dtype, shape)), TensorType(dtype, shape))

    def c(self, values: Any, dtype: str = "float32", name: str = "c") -> str:
        """Adds a constant."""
        array = np.asarray(values, dtype)
        type = TensorType(dtype, array.shape)
        return self._typed(self.constant(name, type, array.tobytes()), type)

    def call(self, op: str, /, *inputs: str | None, **attrs: Any) -> Any:
        """Adds a node; returns its value, or a tuple of them."""
        types = infer_types(op, [None if i is None else self.types[i] for i in inputs], attrs)
        values = self.nodes(op, inputs, types, attrs)
        self.types.update(zip(values, types, strict=True))
        return values[0] if len(values) == 1 else values

    def graph(self, *results: str) -> Graph:
        """Returns the verified graph with these outputs."""
        for index, value in enumerate(results):
            self.output(f"output{index or ''}", value)
        return verify_graph(self.build())

    def _typed(self, name: str, type: TensorType) -> str:
        self.types[name] = type
        return name


@pytest.fixture
def draft() -> Draft:
    return Draft()


@pytest.fixture(scope="session")
def cpu() -> TargetConfig:
    return TargetConfig.named("cpu")


def random_tensor(type: TensorType, generator: torch.Generator) -> torch.Tensor:
    """Returns seeded data: normal floats, small integers, either truth."""
    dtype = getattr(torch, type.dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, type.shape, generator=generator).to(dtype)
    if not dtype.is_floating_point:
        return torch.randint(0, 8, type.shape, generator=generator).to(dtype)
    return torch.randn(type.shape, generator=generator, dtype=torch.float64).to(dtype)


def weights_of(graph: Graph, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Returns a seeded checkpoint; variances are positive, as they are in the world."""
    weights = {w.key: random_tensor(w.type, generator) for w in graph.weights}
    return {k: w.abs() + 0.5 if "var" in k else w for k, w in weights.items()}


def assert_same_results(before: Graph, after: Graph, seeds: int = 2, scale: float = 1.0) -> None:
    """Runs both graphs through PyTorch on seeded inputs and compares every output."""
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        inputs = [random_tensor(v.type, generator) for v in before.inputs]
        weights = weights_of(before, generator)
        expected = run_graph(before, inputs, weights)
        actual = run_graph(after, inputs, weights)
        for a, b in zip(actual, expected, strict=True):
            rtol, atol = {torch.float16: (2e-3, 2e-3), torch.bfloat16: (2e-2, 2e-2)}.get(
                a.dtype, (1e-5, 1e-5)
            )
            exact = not a.dtype.is_floating_point
            torch.testing.assert_close(
                a, b, rtol=0 if exact else rtol * scale, atol=0 if exact else atol * scale,
                equal_nan=True,
            )  # fmt: skip


CheckPass = Callable[..., Graph]


@pytest.fixture
def check_pass(golden: Callable[[str], None], cpu: TargetConfig) -> CheckPass:
    """Returns a function that runs a pass and holds it to everything a pass promises.

    The result is legal, every node is what its op says, inputs and outputs are the same, so are
    the results on seeded data, a second run changes nothing, and the text is the golden one.
    """

    def check(run: Pass, graph: Graph, target: TargetConfig = cpu) -> Graph:
        result = verify_graph(run(graph, target))
        for node in result.nodes:
            check_node(node, result.types)
        check_signature(graph, result)
        assert_same_results(graph, result)
        assert run(result, target) == result, "the pass is not idempotent"
        golden(format_graph(result))
        return result

    return check

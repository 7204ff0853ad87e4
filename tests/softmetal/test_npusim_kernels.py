"""npusim's Metal kernels compute what PyTorch does, on the software Metal device.

Some conformance cases of every op whose kernels Metal has, in each dtype; all of them run through
the runtime by `pytest tests/conformance --device metal`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from npusim.codegen.metal.rules import RULES
from npusim.errors import UnsupportedOpError
from npusim.ir.graph import Graph
from npusim.ir.opdef import REGISTRY, OpDef
from npusim.lowering.assemble import assemble
from npusim.selftest.single_op import assert_close, graph_of, reference, tensors_for
from npusim.targets import TargetConfig
from tests.softmetal import metal
from tests.softmetal.programs import Kernels, run_program

TARGET = TargetConfig.named("metal")
EACH = 4  # examples of a stem, of different ops and dtypes
QUANTIZED = ("quantize", "quantized_linear")  # of no op's cases: test_quantized_kernels.py


def _examples(stem: str) -> Iterator[tuple[OpDef, str, Graph, list[torch.Tensor | None]]]:
    """Yields up to EACH examples that use a stem, of different (op, dtype)."""
    taken: Counter[str] = Counter()
    for op in REGISTRY.values():
        for case in op.cases:
            for dtype in op.dtypes:
                if taken[op.name] >= 2 or sum(taken.values()) >= EACH:
                    break
                tensors = tensors_for(case, dtype, f"{op.name}{case.inputs}")
                graph = graph_of(op, case, tensors, dtype)
                try:
                    program = assemble(graph, TARGET)
                except UnsupportedOpError:
                    continue
                if stem in {kernel.name for kernel in program.kernels}:
                    taken[op.name] += 1
                    yield op, dtype, graph, tensors


@pytest.mark.parametrize("order", ["forward", "shuffle", *metal.EAGER])
@pytest.mark.parametrize("stem", [stem for stem in RULES if stem not in QUANTIZED])
def test_kernels_compute_what_pytorch_does(device: metal.Device, stem: str, order: str) -> None:
    metal.set_option("ORDER", order)
    kernels = Kernels(device)
    ran = 0
    for op, dtype, graph, tensors in _examples(stem):
        program = assemble(graph, TARGET)
        given = [t for t in tensors if t is not None]
        results = run_program(kernels, program, [_bytes(t) for t in given])
        expected = reference(graph, tensors)
        for output, got, want in zip(graph.outputs, results, expected, strict=True):
            tensor = torch.from_numpy(got).view(want.dtype)[: want.numel()].reshape(want.shape)
            assert_close(tensor, want, op.tolerance, f"{op.name} {dtype}, {output.name}")
        ran += 1
    assert ran, "no conformance case uses this kernel"


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()

"""The conformance suite: every op's cases, in every dtype, on every instruction set.

To add a case, add it to the op's OpDef in `python/npusim/ops`; nothing here changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import npusim
import npusim.ops
from npusim._runtime import isa_names
from npusim.ops.opdef import REGISTRY, Case, OpDef
from npusim.program.assemble import assemble
from npusim.program.lowering import check_supported
from npusim.targets import TargetConfig
from tests.conformance.single_op import assert_close, graph_of, reference, tensors_for

TARGET = TargetConfig.named("cpu")


def _cases() -> Iterator[object]:
    for op in REGISTRY.values():
        for index, case in enumerate(op.cases):
            for dtype in op.dtypes:
                label = case.id or str(index)
                yield pytest.param(op, case, dtype, id=f"{op.name}-{label}-{dtype}")


@pytest.fixture(scope="session")
def devices() -> dict[str, npusim.Device]:
    """One single-threaded device for each instruction set this processor runs."""
    return {isa: npusim.Device("cpu", threads=1, isa=isa) for isa in isa_names()}


@pytest.mark.parametrize(("op", "case", "dtype"), list(_cases()))
def test_op(op: OpDef, case: Case, dtype: str, devices: dict[str, npusim.Device]) -> None:
    tensors = tensors_for(case, dtype, f"{op.name}{case.inputs}")
    graph = graph_of(op, case, tensors, dtype)
    check_supported(graph, TARGET)
    program = assemble(graph, TARGET)
    expected = reference(graph, tensors)
    given = [t for t in tensors if t is not None]
    for isa, device in devices.items():
        results = npusim.load(program, device=device)(*given)
        for output, got, want in zip(graph.outputs, results, expected, strict=True):
            if not given:  # without a tensor among the inputs the results are NumPy arrays
                got = torch.as_tensor(got).to(want.dtype)
            assert_close(got, want, op.tolerance, f"{op.name} {dtype} on {isa}, {output.name}")


def test_every_lowered_op_has_a_case() -> None:
    """An op nobody checks is an op nobody can trust; fused ops are covered by the passes' tests."""
    unchecked = {
        op.name
        for op in REGISTRY.values()
        if op.lower is not None and not op.cases and not op.name.startswith("npu.")
    }
    assert unchecked == UNSPECIFIED, sorted(unchecked - UNSPECIFIED)


# Ops whose result PyTorch leaves unspecified: there is nothing to compare with.
UNSPECIFIED = {"aten.empty.memory_format", "aten.empty_like.default"}

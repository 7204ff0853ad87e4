"""The conformance suite: every op's cases, in every dtype, on every instruction set.

`pytest tests/conformance --device cuda` runs it on a GPU instead. To add a case, add it to the op's
OpDef in `python/npusim/ops`; nothing here changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import npusim
import npusim.ops
from npusim._runtime import isa_names
from npusim.codegen import generate
from npusim.errors import UnsupportedOpError
from npusim.ir.graph import Graph
from npusim.ir.opdef import REGISTRY, Case, OpDef
from npusim.lowering.assemble import assemble
from npusim.lowering.supported import check_supported, unsupported_nodes
from npusim.ops.int8_reference import INT8_CONV, INT8_MATMUL
from npusim.ops.paged import PAGED_APPEND, PAGED_ATTENTION
from npusim.ops.paged_rope import PAGED_ROPE_APPEND
from npusim.ops.widening_matmul import WIDENING_MATMUL
from npusim.selftest.single_op import assert_close, graph_of, reference, tensors_for
from npusim.targets import TargetConfig, target_names
from npusim.targets.target_config import ALL


def _cases() -> Iterator[object]:
    for op in REGISTRY.values():
        for index, case in enumerate(op.cases):
            for dtype in op.dtypes:
                label = case.id or str(index)
                yield pytest.param(op, case, dtype, id=f"{op.name}-{label}-{dtype}")


# Ops of the suite that a target has no kernels for; every other one it runs.
REFUSED: dict[str, set[str]] = {
    "cpu": set(),
    "null": set(),
    "cuda": {INT8_CONV, INT8_MATMUL},
    "metal": {INT8_CONV, INT8_MATMUL, PAGED_APPEND, PAGED_ATTENTION, PAGED_ROPE_APPEND},
}

# Those that it has a kernel for in their first dtype alone.
FIRST_ALONE: dict[str, set[str]] = {"cuda": {WIDENING_MATMUL}, "metal": {WIDENING_MATMUL}}


def takes_no(target: TargetConfig, graph: Graph) -> bool:
    """Tells whether a graph of one node holds a dtype that a target's file leaves out: for all
    kernels, or for the one of the op's name, as of `npu.sample`.
    """
    limits = target.limits.get(graph.nodes[0].op.split(".")[1]) or target.limits.get(ALL)
    return limits is not None and any(t.dtype not in limits.dtypes for t in graph.types.values())


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> TargetConfig:
    """The target that `--device` names."""
    return TargetConfig.named(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def devices(target: TargetConfig) -> dict[str, npusim.Device]:
    """The target's device; a single-threaded cpu for each instruction set this processor runs."""
    if target.device != "cpu":
        return {target.device: npusim.Device(target.device)}
    return {isa: npusim.Device("cpu", threads=1, isa=isa) for isa in isa_names()}


@pytest.mark.parametrize(("op", "case", "dtype"), list(_cases()))
def test_op(
    op: OpDef, case: Case, dtype: str, target: TargetConfig, devices: dict[str, npusim.Device]
) -> None:
    tensors = tensors_for(case, dtype, f"{op.name}{case.inputs}")
    graph = graph_of(op, case, tensors, dtype)
    if unsupported_nodes(graph, target):
        others = FIRST_ALONE.get(target.name, set()) if dtype != op.dtypes[0] else set()
        is_refused = op.name in REFUSED[target.name] | others
        assert is_refused or takes_no(target, graph)
        reason = "has no kernel" if is_refused else "takes dtype"
        with pytest.raises(UnsupportedOpError, match=reason):
            check_supported(graph, target)
        return
    assert op.name not in REFUSED[target.name]
    program = generate(assemble(graph, target), target)
    expected = reference(graph, tensors)
    given = [t for t in tensors if t is not None]
    for isa, device in devices.items():
        results = npusim.load(program, device=device)(*given)
        for output, got, want in zip(graph.outputs, results, expected, strict=True):
            if not given:  # without a tensor among the inputs the results are NumPy arrays
                got = torch.as_tensor(got).to(want.dtype)
            assert_close(got, want, op.tolerance, f"{op.name} {dtype} on {isa}, {output.name}")


def test_every_backend_is_asked() -> None:
    named = (TargetConfig.named(name) for name in target_names())
    assert {target.name for target in named if target.name == target.device} == set(REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_a_target_lacks_kernels_for_no_other_op(name: str) -> None:
    target = TargetConfig.named(name)
    refused = set()
    for op in REGISTRY.values():
        for case in op.cases:
            graph = graph_of(op, case, tensors_for(case, op.dtypes[0], ""), op.dtypes[0])
            if unsupported_nodes(graph, target) and not takes_no(target, graph):
                refused.add(op.name)
    assert refused == REFUSED[name]


def test_every_lowered_op_has_a_case() -> None:
    """An op nobody checks is an op nobody can trust.

    Fused ops are covered by the passes' tests, those of other libraries by tests of their own.
    """
    unchecked = {
        op.name
        for op in REGISTRY.values()
        if op.lower is not None and not op.cases and op.name.startswith("aten.")
    }
    assert unchecked == UNSPECIFIED, sorted(unchecked - UNSPECIFIED)


# Ops whose result PyTorch leaves unspecified: there is nothing to compare with.
UNSPECIFIED = {
    *("aten.empty.memory_format", "aten.empty_like.default", "aten.empty_strided.default"),
    *("aten.new_empty_strided.default", "aten.empty_permuted.default"),
}

"""Every op's cases, in every dtype, on one device, compared with PyTorch.

The cases are those that the repository's conformance suite runs (`OpDef.cases`).
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import torch

from npusim.codegen.generate import generate
from npusim.ir.opdef import REGISTRY, Case, OpDef
from npusim.lowering.assemble import assemble
from npusim.lowering.supported import unsupported_nodes
from npusim.runtime.device import Device
from npusim.runtime.session import load
from npusim.selftest.single_op import assert_close, graph_of, reference, tensors_for
from npusim.targets import TargetConfig


def cases(match: str, *, quick: bool) -> Iterator[tuple[OpDef, str, Case, str]]:
    """Yields (op, case's name, case, dtype).

    Args:
        match: a pattern of ops' names, as shells have them.
        quick: the first case of each op and dtype alone.
    """
    for op in REGISTRY.values():
        if not fnmatchcase(op.name, match):
            continue
        for index, case in enumerate(op.cases[:1] if quick else op.cases):
            for dtype in op.dtypes:
                yield op, case.id or str(index), case, dtype


def run_case(
    op: OpDef, case: Case, dtype: str, target: TargetConfig, device: Device
) -> dict[str, object]:
    """Runs one case; its outcome is empty, or says that the target has no kernels for it.

    Raises:
        AssertionError: the results differ from PyTorch's.
    """
    return {} if _agrees(target, device, op, case, dtype) else {"refused": op.name}


def _agrees(target: TargetConfig, device: Device, op: OpDef, case: Case, dtype: str) -> bool:
    """Tells whether the target takes a case; AssertionError where results differ."""
    tensors = tensors_for(case, dtype, f"{op.name}{case.inputs}")
    graph = graph_of(op, case, tensors, dtype)
    if unsupported_nodes(graph, target):
        return False
    program = generate(assemble(graph, target), target)
    given = [t for t in tensors if t is not None]
    results = load(program, device=device)(*given)
    expected = reference(graph, tensors)
    for output, got, want in zip(graph.outputs, results, expected, strict=True):
        if not given:  # without a tensor among the inputs the results are NumPy arrays
            got = torch.as_tensor(got).to(want.dtype)
        assert_close(got, want, op.tolerance, output.name)
    return True

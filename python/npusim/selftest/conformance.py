"""Every op's cases, in every dtype, on one device, compared with PyTorch.

The cases are those that the repository's conformance suite runs (`OpDef.cases`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch

from npusim.codegen.generate import generate
from npusim.errors import first_line
from npusim.ir.opdef import REGISTRY, Case, OpDef
from npusim.lowering.assemble import assemble
from npusim.lowering.supported import unsupported_nodes
from npusim.runtime.device import Device
from npusim.runtime.session import load
from npusim.selftest.single_op import assert_close, graph_of, reference, tensors_for
from npusim.targets import TargetConfig

Report = Callable[..., None]


@dataclass
class Outcome:
    """What running cases gave.

    Attributes:
        passed: how many agree with PyTorch.
        failures: of the others, "op, case, dtype: what was wrong".
        refused: cases that the target has no kernels for, by op.
    """

    passed: int = 0
    failures: list[str] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, object]:
        """What a report holds."""
        return {"passed": self.passed, "failures": self.failures, "refused": self.refused}


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


def run_cases(
    target: TargetConfig, device: Device, match: str, *, quick: bool, report: Report
) -> Outcome:
    """Runs cases one after another; what goes wrong is told in the outcome."""
    outcome = Outcome()
    chosen = list(cases(match, quick=quick))
    for done, (op, name, case, dtype) in enumerate(chosen):
        report(op.name, done, len(chosen))
        try:
            if not _agrees(target, device, op, case, dtype):
                outcome.refused[op.name] = outcome.refused.get(op.name, 0) + 1
                continue
            outcome.passed += 1
        except Exception as error:  # whatever it is, the other cases are run
            outcome.failures.append(f"{op.name}, case {name}, {dtype}: {first_line(error)}")
    return outcome


def _agrees(target: TargetConfig, device: Device, op: OpDef, case: Case, dtype: str) -> bool:
    """Runs one case; False where the target refuses it, AssertionError where results differ."""
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

"""Padding that a target asks for changes no bit: every op's cases, with and without it.

The CPU computes both programs. Whatever lies behind a tensor's own elements holds NaN, in inputs
and temporaries, so that what leaks is seen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import npusim
from npusim.ir.opdef import Case, OpDef
from npusim.lowering.assemble import assemble
from npusim.lowering.supported import unsupported_nodes
from npusim.program.program import CompiledProgram
from npusim.runtime import Executor
from npusim.runtime.host import torch_bits
from npusim.selftest.single_op import assert_close, graph_of, tensors_for
from npusim.targets import TargetConfig
from tests.conformance.poison import bits, run_poisoned
from tests.conformance.test_ops import _cases

PLAIN = TargetConfig.named("cpu")
PADDED = replace(PLAIN, name="padded", channel_align_bytes=64)
DEVICE = npusim.Device("cpu", threads=1)


def check_rows(program: CompiledProgram, target: TargetConfig) -> None:
    """Inputs and outputs lie in memory whose innermost extent is a multiple."""
    for spec in (*program.methods[0].inputs, *program.methods[0].outputs):
        if spec.shape:
            multiple = target.channel_multiple(spec.dtype)
            assert spec.alloc_shape[:-1] == spec.shape[:-1]
            assert spec.alloc_shape[-1] == -(-spec.shape[-1] // multiple) * multiple


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every fifth case; `--samples all` takes every one of them."""
    if metafunc.function is test_padding_changes_no_bit:
        step = 1 if metafunc.config.getoption("--samples") == "all" else 5
        metafunc.parametrize(("op", "case", "dtype"), list(_cases())[::step])


def test_padding_changes_no_bit(op: OpDef, case: Case, dtype: str) -> None:
    tensors = tensors_for(case, dtype, f"{op.name}{case.inputs}")
    graph = graph_of(op, case, tensors, dtype)
    if unsupported_nodes(graph, PLAIN):
        return  # tests/conformance/test_ops.py holds which these are
    given = [torch_bits(t) for t in tensors if t is not None]
    plain, padded = assemble(graph, PLAIN), assemble(graph, PADDED)
    check_rows(padded, PADDED)
    poisoned, wanted = run_poisoned(padded, given, DEVICE), run_plain(plain, given)
    for output, got, want in zip(graph.outputs, poisoned, wanted, strict=True):
        if (op.name, case.id, dtype) in REORDERED:
            kind = getattr(torch, graph.types[output.value].dtype)
            assert_close(as_tensor(got, kind), as_tensor(want, kind), op.tolerance, op.name)
        else:
            np.testing.assert_array_equal(got, want)


# Sums over two dimensions that are one run of memory without padding: another order of adding up.
REORDERED = {
    ("aten.sum.dim_IntList", "long", "float32"),
    ("aten.mean.dim", "long", "float32"),
    ("aten.var.correction", "long", "float64"),
    ("aten.std.correction", "long", "float64"),
}


def as_tensor(given: np.ndarray, kind: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(given.tobytes()), dtype=kind).reshape(given.shape)


def run_plain(program: CompiledProgram, given: list[np.ndarray]) -> list[np.ndarray]:
    executor = Executor(program, DEVICE)
    inputs = {
        spec.name: npusim.DeviceBuffer.from_bits(np.ascontiguousarray(array), DEVICE, spec)
        for spec, array in zip(executor.inputs(), given, strict=True)
    }
    return [bits(buffer) for buffer in executor.run(inputs).values()]

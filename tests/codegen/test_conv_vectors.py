"""Each target computes convolutions with as many bias vectors as its data file claims."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import npusim
from npusim.selftest.single_op import assert_close, reference
from npusim.targets import TargetConfig, target_names
from tests.codegen import host
from tests.codegen.cases import Example, examples


def _examples() -> list[Example]:
    """Returns the cases of npu.conv in float32 and bfloat16."""
    return [e for e in examples("npu.conv") if e.dtype in ("float32", "bfloat16")]


def _vectors(example: Example) -> int:
    bias = example.tensors[2]
    return 0 if bias is None else bias.shape[0] if bias.dim() == 2 else 1


def test_the_cases_hold_as_many_vectors_as_any_target_claims() -> None:
    """A bias alone is in the cases of PyTorch's convolutions."""
    claimed = {name: TargetConfig.named(name).conv_vectors for name in target_names()}
    counts = {_vectors(e) for e in _examples()}
    assert all(counts >= set(range(2, most + 1)) for most in claimed.values()), (claimed, counts)


def test_cpu_has_what_it_claims() -> None:
    for example in _examples():
        given = [t for t in example.tensors if t is not None]
        program = npusim.compile(example.graph, "cpu")
        (result,) = npusim.load(program, device=npusim.Device("cpu", threads=1))(*given)
        _check(example, torch.as_tensor(result))


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_cuda_has_what_it_claims(tmp_path: Path) -> None:
    chosen = _examples()
    kernels = host.build(host.keys_of(e.program for e in chosen), tmp_path)
    for example in chosen:
        given = [
            bytes(t.contiguous().view(torch.uint8).numpy().tobytes())
            for t in example.tensors
            if t is not None
        ]
        (data,) = host.run_program(example.program, kernels, given)
        (output,) = example.graph.outputs
        want = example.graph.types[output.value]
        result = torch.frombuffer(bytearray(data), dtype=getattr(torch, want.dtype))
        _check(example, result.reshape(want.shape))


def _check(example: Example, result: torch.Tensor) -> None:
    (want,) = reference(example.graph, example.tensors)
    what = f"{example.dtype}, {_vectors(example)} vectors"
    assert_close(result.to(want.dtype), want, example.op.tolerance, what)

"""Running what was imported, natively, and comparing it with tinygrad's own result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tinygrad import Tensor, dtypes

import npusim
from npusim.frontends.tinygrad import Imported, from_tinygrad
from npusim.passes.run import run_passes


def tensor(*shape: int, seed: int = 0, dtype: Any = None) -> Tensor:
    """Returns a realised tensor of normal numbers."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    made = Tensor(values).realize()
    return made if dtype is None else made.cast(dtype).realize()


def integers(values: Any) -> Tensor:
    """Returns a realised tensor of int32."""
    return Tensor(np.array(values, np.int32)).realize()


def array(x: Tensor) -> torch.Tensor:
    """Returns the elements as PyTorch has them."""
    if x.dtype == dtypes.bfloat16:
        return torch.from_numpy(x.cast(dtypes.float).numpy()).bfloat16()
    return torch.from_numpy(np.array(x.numpy()))


def run(imported: Imported, inputs: Sequence[Tensor]) -> list[Any]:
    """Compiles what was imported for the CPU and runs it."""
    session = npusim.load(npusim.compile(imported.graph), imported.weights)
    return list(session(*(array(x) for x in inputs)))


def check(
    function: Callable[..., Any],
    *inputs: Tensor,
    weights: Mapping[str, Tensor] | None = None,
    tolerance: float = 1e-5,
) -> Imported:
    """Asserts that a function gives natively what it gives in tinygrad."""
    imported = from_tinygrad(function, inputs, weights=weights)
    wanted = function(*inputs)
    wanted = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
    got = run(imported, inputs)
    assert len(got) == len(wanted)
    for result, want in zip(got, wanted, strict=True):
        assert_same(result, array(want), tolerance)
    return imported


def assert_same(got: Any, want: Any, tolerance: float) -> None:
    """Asserts equal dtype and shape, and elements up to a relative and absolute tolerance."""
    got, want = torch.as_tensor(got), torch.as_tensor(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


def compiled_ops(graph: npusim.IR) -> Counter[str]:
    """Returns how often each op stands in a graph after all passes."""
    lowered = run_passes(graph, npusim.TargetConfig.named("cpu"))
    return Counter(node.op for node in lowered.nodes)

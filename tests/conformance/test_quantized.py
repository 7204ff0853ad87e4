"""Quantized weights on every backend: bytes are opaque, and products over them are compared.

With rows of the unit matrix a quantized linear shows the weight that the bytes stand for.
"""

from __future__ import annotations

import pytest
import torch

import npusim
from npusim.abi.quantization import SCHEMES, Quantization, dequantize, quantize
from npusim.codegen import generate
from npusim.ir.graph import Graph, Node, Output, Value
from npusim.ir.types import TensorType
from npusim.lowering.assemble import assemble
from npusim.ops.fused import NO_EPILOGUE
from npusim.ops.quantized_linear import QUANTIZE, QUANTIZED_LINEAR, infer_quantize
from npusim.targets import TargetConfig
from tests.conformance.test_ops import devices, target

__all__ = ["devices", "target"]  # fixtures


def shown_weight(how: Quantization, rows: int, k: int, dtype: str) -> Graph:
    """A graph of (eye[k, k], w[rows, k]) that hands out the transposed weight as it is stored."""
    attrs = {"format": how.format, "group": how.group}
    eye, w = Value("eye", TensorType("float32", (k, k))), Value("w", TensorType(dtype, (rows, k)))
    q = Value("q", infer_quantize(w.type, **attrs))
    y = Value("y", TensorType("float32", (k, rows)))
    more = {**NO_EPILOGUE, **attrs, "rows": (rows,), "gated": False}
    nodes = (
        Node("quantize", QUANTIZE, ("w",), (q,), attrs),
        Node("linear", QUANTIZED_LINEAR, ("eye", "q", None, None), (y,), more),
    )
    return Graph("shown", (eye, w), (Output("y", "y"),), (), (), nodes)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "k"), [(1, 1), (5, 130), (17, 128)])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantized_weights_are_as_near_as_the_references(
    scheme: str,
    rows: int,
    k: int,
    dtype: str,
    target: TargetConfig,
    devices: dict[str, npusim.Device],
) -> None:
    """Of equally good scales, before these are rounded, a kernel may choose others: squared errors
    of groups are compared."""
    how = Quantization.parse(scheme)
    assert how is not None
    w = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows)).to(
        getattr(torch, dtype)
    )
    reference = dequantize(quantize(w, how), how, rows, k)
    program = generate(assemble(shown_weight(how, rows, k, dtype), target), target)
    for isa, device in devices.items():
        (y,) = npusim.load(program, device=device)(torch.eye(k), w)
        given, wanted = (_errors(v - w.float(), how) for v in (y.T, reference))
        least = (w.float().abs().max() * 2e-6) ** 2 * max(how.group, k)
        assert bool((given <= wanted * 1.03 + least).all()), f"{isa}: {given} {wanted}"


def _errors(difference: torch.Tensor, how: Quantization) -> torch.Tensor:
    each = how.group or difference.shape[1]
    short = -difference.shape[1] % each
    whole = torch.nn.functional.pad(difference, (0, short))
    return whole.square().reshape(difference.shape[0], -1, each).sum(-1)

"""Quantized weights: schemes, sizes, what the reference keeps of a weight, and the kernels."""

from __future__ import annotations

import pytest
import torch

import npusim
from npusim._runtime import isa_names
from npusim.abi.quantization import (
    SCHEMES,
    Quantization,
    dequantize,
    quantize,
    quantized_bytes,
)
from npusim.errors import ShapeError, TargetConstraintError
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.lowering.assemble import assemble
from npusim.ops.fused import NO_EPILOGUE
from npusim.ops.reference import infer_types, run_graph
from npusim.targets import TargetConfig


def scheme(text):
    how = Quantization.parse(text)
    assert how is not None
    return how


def sqnr(actual, expected):
    noise = (actual.double() - expected.double()).pow(2).sum()
    return float(10 * torch.log10(expected.double().pow(2).sum() / noise))


def weight(rows, k, dtype=torch.float32, seed=0):
    return torch.randn(rows, k, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_a_scheme_says_format_and_group():
    assert scheme("int8") == Quantization("int8")
    assert scheme("fp8") == Quantization("fp8")
    assert scheme("int4-g32") == Quantization("int4", 32)
    assert scheme("int4-g128-asymmetric") == Quantization("int4-asymmetric", 128)
    assert Quantization.parse("none") is None


@pytest.mark.parametrize("text", ["int4", "int4-g48", "int2-g32", "int8-g32", "fp8-g32", ""])
def test_other_schemes_are_refused_with_those_that_exist(text):
    with pytest.raises(TargetConstraintError, match="int4-g128-asymmetric"):
        Quantization.parse(text)


def test_sizes():
    assert quantized_bytes(scheme("int8"), 10, 256) == 2560 + 64 + 64
    assert quantized_bytes(scheme("fp8"), 10, 256) == 2560 + 64 + 64
    assert quantized_bytes(scheme("int4-g32"), 10, 256) == 1280 + 192 + 64
    assert quantized_bytes(scheme("int4-g32-asymmetric"), 10, 256) == 1280 + 192 + 128 + 64
    assert quantized_bytes(scheme("int4-g128"), 1, 130) == 128 + 64 + 64  # K padded to 256


@pytest.mark.parametrize(("text", "decibels"), [
    ("int8", 40), ("fp8", 30), ("int4-g32", 20.5), ("int4-g64", 19.5), ("int4-g128", 18.5),
    ("int4-g32-asymmetric", 21.5), ("int4-g128-asymmetric", 19.0),
])  # fmt: skip
@pytest.mark.parametrize("k", [512, 300])
def test_what_is_kept_of_a_normal_weight(text, decibels, k):
    w, how = weight(24, k), scheme(text)
    data = quantize(w, how)
    assert data.dtype == torch.uint8 and data.shape == (quantized_bytes(how, 24, k),)
    assert sqnr(dequantize(data, how, 24, k), w) > decibels


@pytest.mark.parametrize("text", SCHEMES)
def test_rows_of_one_value_stay(text):
    w = torch.tensor([0.0, -3.0, 7.5, 0.125])[:, None].expand(4, 128)
    kept = dequantize(quantize(w, scheme(text)), scheme(text), 4, 128)
    torch.testing.assert_close(kept, w.contiguous(), rtol=1e-3, atol=0)


@pytest.fixture(scope="module")
def devices():
    return {isa: npusim.Device("cpu", threads=1, isa=isa) for isa in isa_names()}


def run_everywhere(devices, graph, inputs, weights):
    """Yields (instruction set, result) for a graph without any pass."""
    program = assemble(graph, TargetConfig.named("cpu"))
    for isa, device in devices.items():
        executor = npusim.load(program, weights, device=device)
        yield isa, executor(*inputs)[0]


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quantize_kernel_keeps_as_much_as_its_reference(devices, text, dtype):
    how, w = scheme(text), weight(37, 300, getattr(torch, dtype))
    b = GraphBuilder()
    source = b.weight("w", TensorType(dtype, (37, 300)))
    attrs = {"format": how.format, "group": how.group}
    (kind,) = infer_types("npu.quantize", [TensorType(dtype, (37, 300))], attrs)
    (q,) = b.nodes("npu.quantize", (source,), [kind], attrs)
    b.output("q", q)
    least = sqnr(dequantize(quantize(w, how), how, 37, 300), w) - 0.02
    for isa, data in run_everywhere(devices, b.build(), [], {"w": w}):
        assert sqnr(dequantize(torch.as_tensor(data), how, 37, 300), w) > least, isa


def product(how, rows, x, *, bias=False, residual=0, gated=False, act="copy"):
    """Returns a graph of one product over quantized inputs, and its inputs but x."""
    k, n = x.shape[-1], sum(rows) // (2 if gated else 1)
    dtype = str(x.dtype).split(".")[1]
    b = GraphBuilder()
    tensors = [x, *(quantize(weight(r, k, seed=r), how) for r in rows)]
    operands = [b.input(f"x{i}", TensorType(str(t.dtype).split(".")[1], tuple(t.shape)))
                for i, t in enumerate(tensors)]  # fmt: skip
    for wanted, shape in ((bias, (sum(rows),)), (residual, (*x.shape[:-1], n))):
        operands.append(b.input(f"e{len(operands)}", TensorType(dtype, shape)) if wanted else None)
        if wanted:
            tensors.append(torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(x))
    attrs = {**NO_EPILOGUE, "act": act, "residual": residual, "rows": tuple(rows),
             "format": how.format, "group": how.group, "gated": gated}  # fmt: skip
    types = [None if o is None else v.type for o, v in _typed(operands, b)]
    kinds = infer_types("npu.quantized_linear", types, attrs)
    (y,) = b.nodes("npu.quantized_linear", operands, kinds, attrs)
    b.output("y", y)
    return b.build(), tensors


def _typed(operands, builder):
    values = {v.name: v for v in builder.build().inputs}
    return [(o, values.get(o)) for o in operands]


CASES = {
    "row": {"rows": [40], "x": (1, 300)},
    "one number": {"rows": [1], "x": (1, 256)},
    "parts": {"rows": [16, 8, 5], "x": (3, 256), "bias": True},
    "residual": {"rows": [40], "x": (2, 5, 128), "bias": True, "residual": 1, "act": "relu"},
    "gated": {"rows": [24, 24], "x": (4, 200), "bias": True, "gated": True, "act": "silu"},
    "gated in one part": {"rows": [48], "x": (1, 512), "gated": True, "act": "gelu"},
    "many rows": {"rows": [70], "x": (40, 384), "act": "silu", "residual": 2},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("text", ["int8", "int4-g32", "int4-g128-asymmetric"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_product(devices, case, text, dtype):
    options = dict(case)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(options.pop("x"), generator=generator).to(getattr(torch, dtype))
    graph, tensors = product(scheme(text), options.pop("rows"), x, **options)
    (expected,) = run_graph(graph, tensors)
    least = 70 if dtype == "float32" else 40
    for isa, y in run_everywhere(devices, graph, tensors, {}):
        assert sqnr(torch.as_tensor(y), expected) > least, isa


def test_weights_that_do_not_fit_are_refused():
    how = scheme("int4-g32")
    attrs = {**NO_EPILOGUE, "rows": (16,), "format": "int4", "group": 32, "gated": False}
    x, q = TensorType("float32", (2, 256)), TensorType("uint8", (quantized_bytes(how, 16, 256),))
    assert infer_types("npu.quantized_linear", [x, q, None, None], attrs)[0].shape == (2, 16)
    for change in (
        {"rows": (17,)},
        {"group": 64},
        {"rows": (8, 8)},
        {"gated": True, "rows": (15,)},
    ):
        with pytest.raises(ShapeError):
            infer_types("npu.quantized_linear", [x, q, None, None], {**attrs, **change})
    with pytest.raises(ShapeError, match="no residual"):
        infer_types("npu.quantized_linear", [x, q, None, TensorType("float32", (2, 8))],
                    {**attrs, "gated": True})  # fmt: skip


@pytest.mark.parametrize("text", [text for text in SCHEMES if text.startswith("int4")])
def test_scales_are_those_that_float16_holds(text):
    """Too small for it, they are 0, and so is the weight; too large, they are its largest."""
    how, w = scheme(text), weight(1, 128)
    small, large = (dequantize(quantize(w * by, how), how, 1, 128) for by in (1e-9, 1e9))
    assert torch.equal(small, torch.zeros(1, 128))
    assert bool(large.isfinite().all()) and float(large.abs().max()) > 65504
    least = dequantize(quantize(torch.full((1, 128), 2.0**-19), how), how, 1, 128)
    assert float(least.max()) > 0


@pytest.mark.parametrize("shape", [(0, 128), (2, 0, 128)])
def test_no_rows_give_no_rows(devices, shape):
    graph, tensors = product(scheme("int4-g32"), [16], torch.zeros(shape), bias=True)
    for isa, y in run_everywhere(devices, graph, tensors, {}):
        assert torch.as_tensor(y).shape == (*shape[:-1], 16), isa


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_has_no_codes_of_8_bit_floats(devices, odd):
    how, w = scheme("fp8"), weight(6, 300)
    w[2, 150] = odd
    w[3] = -0.0
    b = GraphBuilder()
    source = b.weight("w", TensorType("float32", (6, 300)))
    attrs = {"format": how.format, "group": how.group}
    (kind,) = infer_types("npu.quantize", [TensorType("float32", (6, 300))], attrs)
    (q,) = b.nodes("npu.quantize", (source,), [kind], attrs)
    b.output("q", q)
    wanted = dequantize(quantize(w, how), how, 6, 300)
    assert wanted.isnan().all(1).tolist() == [False, False, True, False, False, False]
    for isa, data in run_everywhere(devices, b.build(), [], {"w": w}):
        found = dequantize(torch.as_tensor(data), how, 6, 300)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True, msg=isa)

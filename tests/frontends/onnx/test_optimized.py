"""Models that ONNX Runtime's optimizers rewrote, and each operator of its own that they use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import npusim
from npusim.errors import ExportError
from npusim.frontends.onnx import from_onnx
from tests.frontends.onnx.runtime import (
    assert_agrees,
    expected,
    imported,
    operators,
    optimized,
)
from tests.models import build

RNG = np.random.default_rng(0)


def write(name: str, path: Path, **options: Any) -> tuple[Path, dict[str, np.ndarray]]:
    """Exports one of our models by npusim itself; returns the file and inputs for it."""
    model, inputs = build(name, small=True)
    graph = npusim.extract_ir(model, inputs)
    npusim.export_onnx(graph, path, model.state_dict(), **options)
    names = [v.name for v in graph.inputs]
    return path, dict(zip(names, (t.numpy() for t in inputs), strict=True))


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("mlp", {"FusedGemm"}),
        ("resnet18", {"FusedConv"}),
        ("efficientnet_b0", {"FusedConv", "QuickGelu"}),
        ("bert_base", {"SkipLayerNormalization", "FusedMatMul"}),
        ("vit_b_16", {"FusedMatMul"}),
    ],
)
def test_an_optimized_model_agrees(name: str, made: set[str], tmp_path: Path) -> None:
    path, feed = write(name, tmp_path / "model.onnx", opset=18)
    result = optimized(path)
    assert made <= operators(result), "the optimizer fuses other things than it did"
    assert_agrees(result, feed)


def test_a_model_of_the_transformers_optimizer_agrees(tmp_path: Path) -> None:
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    model, inputs = build("bert_base", small=True)
    path, result = tmp_path / "bert.onnx", tmp_path / "fused.onnx"
    torch.onnx.export(model, inputs, path, dynamo=False, opset_version=17)
    fused = optimizer.optimize_model(
        str(path), model_type="bert", num_heads=4, hidden_size=32, opt_level=0
    )
    fused.save_model_to_file(str(result))
    assert {"Attention", "BiasGelu", "SkipLayerNormalization"} <= operators(result)
    names = [i.name for i in onnx.load(result).graph.input]
    assert_agrees(result, dict(zip(names, (t.numpy() for t in inputs), strict=True)))


def test_a_layout_of_one_processor_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path, _ = write("resnet18", tmp_path / "model.onnx")
    result = optimized(path, "ORT_ENABLE_ALL")
    if "ReorderOutput" not in operators(result):
        pytest.skip("ONNX Runtime blocks no channels on this processor")
    with pytest.raises(ExportError, match="ORT_ENABLE_EXTENDED"):
        from_onnx(result)


# ---- each operator alone ----

BYTES = ("QLinearWhere", "QLinearConv", "QLinearAveragePool")  # give bytes


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(
    op: str,
    operands: list[np.ndarray | None],
    attrs: Mapping[str, Any],
    *,
    outputs: int = 1,
    known: tuple[int, ...] = (),
    domain: str = "com.microsoft",
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Returns a model of one node and what to feed it; `known` operands are initialisers."""
    names = ["" if a is None else f"i{k}" for k, a in enumerate(operands)]
    given = {n: a for n, a in zip(names, operands, strict=True) if a is not None}
    held = [numpy_helper.from_array(given[names[k]], names[k]) for k in known]
    feed = {n: a for n, a in given.items() if n not in {names[k] for k in known}}
    results = [f"y{k}" for k in range(outputs)]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feed.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, domain=domain, **attrs)], "node", inputs,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results], held,
    )  # fmt: skip
    if op in BYTES:
        graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    if op.endswith("EmbedLayerNormalization"):
        graph.output[1].type.tensor_type.elem_type = TensorProto.INT32
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    for info, value in zip(graph.output, expected(model, feed), strict=True):
        shaped = helper.make_tensor_value_info(
            info.name, info.type.tensor_type.elem_type, np.shape(value)
        )
        next(o for o in model.graph.output if o.name == info.name).CopyFrom(shaped)
    return model, feed


B, S, H, N, G, W = 2, 5, 64, 4, 2, 16  # batch, length, width, heads, key heads, width of a head
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
LENGTHS = np.array([3, 5], np.int32)
LAST, TOTAL = np.array([S - 1] * B, np.int32), np.array([S], np.int32)
COS, SIN = normal(32, W // 2), normal(32, W // 2)
QKV = (normal(B, S, H), normal(B, S, H), normal(B, S, H))
FEW = (normal(B, S, H), normal(B, S, G * W), normal(B, S, G * W))
ONE = (normal(B, 1, H), normal(B, 1, G * W), normal(B, 1, G * W))
PAST = (normal(B, G, 6, W), normal(B, G, 6, W))
HEADS = {"num_heads": N}
GROUPS = {"num_heads": N, "kv_num_heads": G}
INTO = (normal(B, S, H), normal(H, 3 * H) / 8, normal(3 * H))

ATTENTION: dict[str, tuple[str, list[Any], dict[str, Any], dict[str, Any]]] = {
    "separate": ("MultiHeadAttention", [QKV[0], normal(B, 7, H), normal(B, 7, H)], HEADS, {}),
    "biased and masked": ("MultiHeadAttention", [*QKV, normal(3 * H), MASK], HEADS, {}),
    "of lengths": ("MultiHeadAttention", [*QKV, None, LENGTHS], HEADS, {}),
    "over a past": (
        "MultiHeadAttention",
        [*(t[:, :1] for t in QKV), None, None, normal(B, N, 1, 4), normal(B, N, 3, W),
         normal(B, N, 3, W)],
        {**HEADS, "unidirectional": 1}, {"outputs": 3},
    ),
    "projected": ("Attention", [*INTO, MASK], HEADS, {}),
    "projected, of lengths": ("Attention", [*INTO, LENGTHS], HEADS, {}),
    "projected, masked each": (
        "Attention", [*INTO, np.tril(np.ones((B, S, S), np.int32))], {**HEADS, "scale": 0.3}, {},
    ),
    "projected, over a past": (
        "Attention", [*INTO, None, normal(2, B, N, 3, W)], {**HEADS, "unidirectional": 1},
        {"outputs": 2},
    ),
    "few key heads": (
        "GroupQueryAttention", [*FEW, None, None, LAST, TOTAL, COS, SIN],
        {**GROUPS, "do_rotary": 1}, {"outputs": 3, "known": (6,)},
    ),
    "few key heads, a window": (
        "GroupQueryAttention", [*FEW, None, None, LAST, TOTAL],
        {**GROUPS, "local_window_size": 2}, {"outputs": 3, "known": (6,)},
    ),
    "few key heads, packed": (
        "GroupQueryAttention",
        [normal(B, S, H + 2 * G * W), None, None, None, None, LAST, TOTAL, COS, SIN],
        {**GROUPS, "do_rotary": 1, "rotary_interleaved": 1}, {"outputs": 3, "known": (6,)},
    ),
    "few key heads, over pasts of two lengths": (
        "GroupQueryAttention",
        [*ONE, *PAST, np.array([6, 4], np.int32), np.array([7], np.int32), COS, SIN],
        {**GROUPS, "do_rotary": 1}, {"outputs": 3, "known": (6,)},
    ),
    "projected, of starts and ends": (
        "Attention", [*INTO, np.array([3, 5, 1, 0], np.int32)], HEADS, {},
    ),
    **{
        f"few key heads, {name}": (
            "GroupQueryAttention", [*FEW, None, None, LAST, TOTAL, *more],
            {**GROUPS, **attrs}, {"outputs": 3, "known": (6,)},
        )
        for name, attrs, more in (
            ("capped", {"softcap": 2.0}, []),
            ("capped and biased", {"softcap": 2.0}, [None, None, None, normal(B, N, S, S)]),
            ("biased", {}, [None, None, None, normal(1, N, S, S)]),
            ("a smooth softmax", {"smooth_softmax": 1, "scale": 0.7}, []),
            ("sinks", {}, [None, None, None, None, normal(N)]),
            ("both ways", {"causal": 0}, []),
            ("positions of a prompt", {"do_rotary": 1},
             [COS, SIN, np.int64([[2, 3, 4, 5, 6], [0, 1, 2, 3, 4]])]),
        )
    },
    "few key heads, positions over a past": (
        "GroupQueryAttention",
        [*ONE, *PAST, np.array([6, 6], np.int32), np.array([7], np.int32), COS, SIN,
         np.int64([[3], [9]])],
        {**GROUPS, "do_rotary": 1}, {"outputs": 3, "known": (6,)},
    ),
    "rotation": ("RotaryEmbedding", [QKV[0], np.int64([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]]),
                                     COS, SIN], {}, {}),
    "rotation of pairs": (
        "RotaryEmbedding", [normal(B, N, S, W), np.int64([2]), COS, SIN], {"interleaved": 1}, {},
    ),
    "rotation of a part": (
        "RotaryEmbedding", [normal(B, S, 2 * H), np.int64([2]), COS, SIN],
        {"num_heads": N, "rotary_embedding_dim": W}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    op, operands, attrs, more = ATTENTION[name]
    model, feed = model_of(op, operands, attrs, **more)
    if "two lengths" in name:  # what a cache holds beyond its own length is nobody's
        del model.graph.output[1:]
    assert_agrees(model, feed)


def test_heads_are_normalized_before_they_turn() -> None:
    """ONNX Runtime has this on GPUs alone."""
    attrs, more = {**GROUPS, "do_rotary": 1}, {"outputs": 3, "known": (6,)}
    tables, norms = [None, None, LAST, TOTAL, COS, SIN], [normal(W), normal(W)]

    def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        apart = x.reshape(*x.shape[:2], -1, W)
        means = np.mean(apart**2, -1, keepdims=True)
        return (apart / np.sqrt(means + 1e-3) * weight).reshape(x.shape)

    turned = [normed(FEW[0], norms[0]), normed(FEW[1], norms[1]), FEW[2]]
    model, feed = model_of("GroupQueryAttention", [*turned, *tables], attrs, **more)
    wanted = expected(model, feed)
    node = model.graph.node[0]
    node.attribute.append(helper.make_attribute("qk_norm_epsilon", 1e-3))
    node.input.extend(["", "", "", "", "", "q_norm", "k_norm"])
    model.graph.initializer.extend(
        numpy_helper.from_array(a, n) for a, n in zip(norms, ("q_norm", "k_norm"), strict=True)
    )
    feed |= dict(zip(("i0", "i1", "i2"), FEW, strict=True))
    for got, want in zip(imported(model, feed), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


def bits(width: int, zeros: bool = False) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Returns a MatMulNBits of rows of 40 in blocks of 16: operands, attributes, options."""
    packed = RNG.integers(0, 256, (6, 3, 16 * width // 8)).astype(np.uint8)
    middle = RNG.integers(0, 256, 6 * -(-3 * width // 8)).astype(np.uint8) if zeros else None
    attrs = {"K": 40, "N": 6, "bits": width, "block_size": 16}
    known = (1, 2, 3) if zeros else (1, 2)
    return [normal(2, 3, 40), packed, normal(18), middle], attrs, {"known": known}


def packed(*shape: int, signed: bool = False) -> np.ndarray:
    """Returns bytes."""
    low = -128 if signed else 0
    return RNG.integers(low, low + 256, shape).astype(np.int8 if signed else np.uint8)


def scale(*shape: int) -> np.ndarray:
    """Returns positive scales of bytes."""
    return RNG.uniform(0.005, 0.01, shape).astype(np.float32)


X = normal(B, S, H)
LSTM = [normal(3, 2, 5), packed(2, 5, 16, signed=True), packed(2, 4, 16, signed=True),
        normal(2, 32), np.array([3, 2], np.int32), normal(2, 2, 4), normal(2, 2, 4), None,
        scale(2, 16), np.zeros((2, 16), np.int8), scale(2, 16),
        np.zeros((2, 16), np.int8)]  # fmt: skip
ZERO = np.uint8(99)
IDS = RNG.integers(0, 2, (B, S)).astype(np.int32)
CONV = [normal(1, 3, 6, 6), normal(4, 3, 3, 3), normal(4), normal(1, 4, 6, 6)]
OPERATORS: dict[str, tuple[str, list[Any], dict[str, Any], dict[str, Any]]] = {
    "skip": ("SkipLayerNormalization", [X, normal(S, H), normal(H), normal(H), normal(H)], {}, {}),
    "skip, simplified": (
        "SkipSimplifiedLayerNormalization", [X, X, normal(H), normal(H)], {"epsilon": 1e-5}, {},
    ),
    "simplified, in ONNX's domain": (
        "SimplifiedLayerNormalization", [X, normal(H)], {"axis": -1, "stash_type": 1},
        {"domain": ""},
    ),
    "embeddings": (
        "EmbedLayerNormalization",
        [IDS, IDS, normal(9, H), normal(7, H), normal(2, H), normal(H), normal(H), MASK], {},
        {"outputs": 2},
    ),
    "gelu": ("Gelu", [X], {}, {}),
    "gelu, biased": ("BiasGelu", [X, normal(H)], {}, {}),
    "gelu, by tanh": ("FastGelu", [X, normal(H)], {}, {}),
    "gelu, by sigmoid": ("QuickGelu", [X], {}, {}),
    "product": (
        "FusedMatMul", [normal(4, 2, 3, 5), normal(6, 2, 3, 5)],
        {"transBatchA": 1, "transBatchB": 1, "transB": 1, "alpha": 0.5}, {},
    ),
    "product of 2 bits": ("MatMulNBits", *bits(2)),
    "product of 4 bits": ("MatMulNBits", *bits(4)),
    "product of 4 bits, with zeros": ("MatMulNBits", *bits(4, zeros=True)),
    "product of 8 bits": ("MatMulNBits", *bits(8)),
    "product of 4 bits in another order": (
        "MatMulNBits", [*bits(4)[0], RNG.integers(0, 3, 48).astype(np.int32), normal(6)],
        {**bits(4)[1], "accuracy_level": 1}, {"known": (1, 2, 4, 5)},
    ),
    **{
        f"rows of {name}": (
            "GatherBlockQuantized", [packed(9, 96 * b // 8), IDS.astype(np.int64), scale(9, 3), z],
            {"bits": b, "block_size": 32, "gather_axis": 0, "quantize_axis": 1},
            {"known": (0, 2, 3) if z is not None else (0, 2)},
        )
        for name, b, z in (("4 bits", 4, None), ("4 bits, with zeros", 4, packed(9, 2)),
                           ("8 bits, with zeros", 8, packed(9, 3)))
    },
    "triangle": ("Trilu", [X], {"upper": 0}, {}),
    "samples of a grid": ("GridSample", [normal(1, 2, 4, 4), normal(1, 3, 3, 2)], {}, {}),
    "quantized attention": (
        "QAttention",
        [packed(B, S, H), packed(H, 3 * H, signed=True), normal(3 * H), scale(), scale(3 * H), MASK,
         ZERO, np.zeros(3 * H, np.int8)], HEADS, {"known": (1, 2, 3, 4, 6, 7)},
    ),
    "quantized embeddings": (
        "QEmbedLayerNormalization",
        [IDS, IDS, packed(9, H), packed(7, H), packed(2, H), packed(H), packed(H), MASK,
         *(scale() for _ in range(5)), *[ZERO] * 5], {},
        {"outputs": 2, "known": (*range(2, 7), *range(8, 18))},
    ),
    "quantized choice": (
        "QLinearWhere",
        [MASK > 0, packed(B, S), scale(), ZERO, packed(S), scale(), ZERO, scale(), ZERO], {},
        {"known": (2, 3, 5, 6, 7, 8)},
    ),
    "quantized convolution, channels last": (
        "QLinearConv",
        # Of 7 bits: with 8, ONNX Runtime's sums saturate without dot products of bytes.
        [packed(1, 6, 6, 3), scale(), ZERO, packed(4, 3, 3, 3, signed=True) // 2, scale(4),
         np.zeros(4, np.int8), np.float32(0.3), ZERO], {"channels_last": 1, "pads": [1] * 4},
        {"known": tuple(range(1, 8))},
    ),
    "quantized means, channels last": (
        "QLinearAveragePool", [packed(1, 6, 6, 4), scale(), ZERO, scale(), ZERO],
        {"channels_last": 1, "kernel_shape": [3, 3]}, {"known": (1, 2, 3, 4)},
    ),
    "quantized linear of a table": (
        "QGemm", [packed(3, 8), scale(), ZERO, packed(5, 8, signed=True), scale(), np.int8(0),
                  RNG.integers(-999, 999, (3, 5)).astype(np.int32)],
        {"transB": 1, "alpha": 0.5}, {"known": (1, 2, 3, 4, 5, 6)},
    ),
    "quantized recurrence": (
        "DynamicQuantizeLSTM", LSTM, {"hidden_size": 4, "direction": "bidirectional"},
        {"outputs": 3, "known": (1, 2, 3, 8, 9, 10, 11)},
    ),
    "linear, softplus": (
        "FusedGemm", [normal(3, 4), normal(4, 5), normal(5)], {"activation": "Softplus"}, {},
    ),
    "linear, softsign": (
        "FusedGemm", [normal(3, 4), normal(4, 5), normal(5)], {"activation": "Softsign"}, {},
    ),
    "linear": (
        "FusedGemm", [normal(3, 4), normal(4, 5), normal(5)],
        {"activation": "LeakyRelu", "activation_alpha": 0.2, "alpha": 0.5}, {},
    ),
    **{
        f"convolution, {act}": (
            "FusedConv", CONV,
            {"activation": act, "pads": [1] * 4, **({"activation_params": p} if p else {})},
            {"known": (1, 2)},
        )
        for act, p in (("Relu", []), ("Clip", [-0.5, 0.5]), ("LeakyRelu", [0.1]), ("Tanh", []),
                       ("Sigmoid", []), ("HardSigmoid", [0.2, 0.5]), ("HardSwish", []))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name: str) -> None:
    op, operands, attrs, more = OPERATORS[name]
    rtol = 5e-3 if name == "quantized recurrence" else 1e-4  # a state may round to another byte
    assert_agrees(*model_of(op, operands, attrs, **more), rtol)


@pytest.mark.parametrize("value", [1, 2.5, "PER_TENSOR", [0, 1]])
def test_an_attribute_that_nobody_reads_is_refused(value: Any) -> None:
    model, _ = model_of("Gelu", [X], {})
    model.graph.node[0].attribute.append(helper.make_attribute("of_tomorrow", value))
    with pytest.raises(ExportError, match=r"Gelu.*of_tomorrow is not read"):
        from_onnx(model)


@pytest.mark.parametrize("value", [0, 0.0, "NONE", ""])
def test_an_attribute_that_says_nothing_is_read_over(value: Any) -> None:
    model, _ = model_of("Gelu", [X], {})
    model.graph.node[0].attribute.append(helper.make_attribute("of_tomorrow", value))
    assert from_onnx(model).graph.nodes

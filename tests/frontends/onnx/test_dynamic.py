"""ONNX models with open dimensions: one program agrees with ONNX Runtime at all of their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import parser
from torch import nn
from torch.export import Dim

import npusim
from npusim.ir.symbolic import Symbol
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig
from tests.end_to_end.dynamic_models import MODELS
from tests.frontends.onnx.runtime import expected

pytest.importorskip("onnxscript")

BOUNDS = {"n": 8, "s": (1, 12)}
SIZES = ({"n": 3, "s": 7}, {"n": 8, "s": 12}, {"n": 1, "s": 1}, {"n": 1, "s": 5})


def model(inputs: str, body: str, opset: int = 21) -> onnx.ModelProto:
    """Returns a model with an output y, from ONNX's text."""
    text = f'<ir_version: 10, opset_import: ["" : {opset}]>\ng ({inputs}) => (float y) {{{body}}}'
    return parser.parse_model(text)


def feed(proto: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    generator, arrays = np.random.default_rng(0), {}
    for info in proto.graph.input:
        dims = info.type.tensor_type.shape.dim
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            arrays[info.name] = generator.standard_normal(shape).astype(np.float32)
        else:
            arrays[info.name] = generator.integers(0, 3, shape)
    return arrays


def check(source: onnx.ModelProto | Path, bounds: Mapping[str, object], sizes) -> npusim.IR:
    """Compares with ONNX Runtime at each combination of sizes; returns the graph."""
    proto = onnx.load(source) if isinstance(source, Path) else source
    imported = npusim.from_onnx(source, dynamic_shapes=bounds)
    session = npusim.load(npusim.compile(imported.graph), imported.weights or None)
    for chosen in sizes:
        arrays = feed(proto, chosen)
        results = session(*(arrays[v.name] for v in imported.graph.inputs))
        for got, want in zip(results, expected(source, arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=str(chosen))
    return imported.graph


ONE = "two = Constant<value_ints = [2]>() one = Constant<value_ints = [1]>()"
CHAINS = {
    "reshape": f"{ONE} h = Shape(x) n = Gather<axis = 0>(h, zero) r = Constant<value_ints = [-1]>()"
    " t = Concat<axis = 0>(n, r, two) y = Reshape(x, t)",
    "reshape_zero": "t = Constant<value_ints = [0, -1, 2, 2]>() y = Reshape(x, t)",
    "flatten": "y = Flatten<axis = 2>(x)",
    "expand": f"{ONE} h = Shape<start = 1, end = 2>(x) t = Concat<axis = 0>(two, one, h, one)"
    " y = Expand(x, t)",
    "expand_minus_one": "h = Shape(x) e = ConstantOfShape<value = int64[1] {1}>(three)"
    " m = Constant<value_ints = [-1]>() q = Equal(h, m) w = Where(q, e, h) y = Expand(x, w)",
    "fill": "h = Shape(x) f = ConstantOfShape<value = float[1] {0.5}>(h) y = Add(x, f)",
    "range": f"{ONE} h = Shape(x) l = Gather(h, i1) r = Range(i0, l, i1) u = Unsqueeze(r, one)"
    " f = Cast<to = 1>(u) y = Mul(x, f)",
    "slice_to_half": f"{ONE} s = Shape<start = 1, end = 2>(x) half = Div(s, two)"
    " y = Slice(x, zero, half, one)",
    "slice_from_end": f"{ONE} m = Constant<value_ints = [-1]>()"
    " e = Constant<value_ints = [9223372036854775807]>() y = Slice(x, m, e, one)",
    "reverse": f"{ONE} m = Constant<value_ints = [-1]>()"
    " e = Constant<value_ints = [-9223372036854775807]>() y = Slice(x, m, e, one, m)",
    "double": "y = Concat<axis = 1>(x, x)",
    "split": "a, b = Split<axis = 2, num_outputs = 2>(x) y = Concat<axis = 0>(b, a)",
    "tile": f"{ONE} t = Concat<axis = 0>(one, two, one) y = Tile(x, t)",
    "scaled_by_length": "h = Shape(x) l = Gather(h, i1) f = Cast<to = 1>(l) q = Sqrt(f)"
    " y = Div(x, q)",
    "size": "c = Size(x) f = Cast<to = 1>(c) y = Div(x, f)",
    "last_row": f"{ONE} m = Constant<value_ints = [-1]>() y = Gather<axis = 1>(x, m)",
    "row_of_length": f"{ONE} s = Shape<start = 1, end = 2>(x) l = Sub(s, one)"
    " y = Gather<axis = 1>(x, l)",
    "mask": "t = Transpose<perm = [0, 2, 1]>(x) p = MatMul(x, t) h = Shape(p)"
    " o = ConstantOfShape<value = float[1] {1.0}>(h) l = Trilu<upper = 0>(o) y = Mul(p, l)",
    "softmax": "t = Transpose<perm = [0, 2, 1]>(x) p = MatMul(x, t) y = Softmax<axis = -1>(p)",
    "means": f"{ONE} a = ReduceMean(x, one) b = ReduceSum(x, two) c = ReduceMax(x, zero)"
    " d = Add(a, b) y = Add(d, c)",
    "running_sum": "y = CumSum(x, i1)",
    "padded": "p = Constant<value_ints = [0, 1, 0, 0, 2, 0]>() y = Pad(x, p)",
    "grown": f"{ONE} z = Constant<value_ints = [0, 0, 0, 0]>() s = Shape<start = 1, end = 2>(x)"
    " p = Concat<axis = 0>(z, s, zero) y = Pad(x, p)",
    "hardmax": "y = Hardmax<axis = 1>(x)",
    "one_hot": "h = Shape(x) l = Gather(h, i1) v = Constant<value = float[2] {0.0, 1.0}>()"
    " q = ArgMax<axis = 1, keepdims = 0>(x) y = OneHot<axis = -1>(q, l, v)",
    "product_of_sizes": "h = Shape(x) p = ReduceProd<keepdims = 1>(h) y = Reshape(x, p)",
    "conditional": "h = Shape(x) l = Gather(h, i2) c = Greater(l, i1)"
    " y = If(c) <then_branch = a () => (float u) {u = Neg(x)},"
    " else_branch = b () => (float v) {v = Abs(x)}>",
    "resized_rows": "k = Constant<value = float[3] {1, 1, 2}>()"
    ' y = Resize<mode = "linear">(x, , k)',
    "resized_to_a_number": "h = Shape<end = 2>(x) l = Constant<value_ints = [7]>()"
    ' t = Concat<axis = 0>(h, l) y = Resize<mode = "linear">(x, , , t)',
    **{
        f"resized_{name}": "u = Transpose<perm = [0, 2, 1]>(x)"
        f" k = Constant<value = float[3] {{1, 1, 3}}>() y = Resize<{how}>(u, , k)"
        for name, how in {
            "nearest": 'coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
            "nearest_middle": 'mode = "nearest"',
            "linear": 'mode = "linear"',
            "corners": 'mode = "linear", coordinate_transformation_mode = "align_corners"',
        }.items()
    },
    "resized_to_half": f"{ONE} u = Transpose<perm = [0, 2, 1]>(x) h = Shape<end = 2>(u)"
    " l = Shape<start = 2>(u) p = Add(l, one) q = Div(p, two) t = Concat<axis = 0>(h, q)"
    ' y = Resize<mode = "linear">(u, , , t)',
    "pairs": "k = Constant<value = int64[2, 2] {0, 0, 0, 0}>() y = GatherND(x, k)",
}
ALWAYS = (
    "zero = Constant<value_ints = [0]>() three = Constant<value_ints = [3]>()"
    " i0 = Constant<value_int = 0>() i1 = Constant<value_int = 1>() i2 = Constant<value_int = 2>() "
)


@pytest.mark.parametrize("name", CHAINS)
def test_sizes_fold_through_chains(name: str) -> None:
    check(model("float[n, s, 4] x", ALWAYS + CHAINS[name]), BOUNDS, SIZES)


@pytest.mark.parametrize("columns", ["7", "s", "2"])
def test_products_of_bytes_between_open_sizes(columns: str) -> None:
    """Powers of two as scales: what rounds is the same number everywhere."""
    proto = model(
        f"float[n, 3, s, 5] x, float[n, 3, 5, {columns}] w",
        "h = Constant<value = float {0.5}>() e = Constant<value = float {2.0}>()"
        " z = Constant<value = uint8 {9}>() a = QuantizeLinear(x, h, z) b = QuantizeLinear(w, h, z)"
        " c = DequantizeLinear(a, h, z) d = DequantizeLinear(b, h, z) p = MatMul(c, d)"
        " q = QuantizeLinear(p, e, z) y = DequantizeLinear(q, e, z)",
    )
    check(proto, BOUNDS, SIZES)
    graph = npusim.from_onnx(proto, dynamic_shapes=BOUNDS).graph
    compiled = run_passes(graph, TargetConfig.named("cpu"))
    assert "npu.int8_matmul" in {node.op for node in compiled.nodes}


def test_what_shapes_say_becomes_no_node() -> None:
    graph = check(model("float[n, s, 4] x", ALWAYS + CHAINS["reshape"]), BOUNDS, SIZES)
    assert [node.op for node in graph.nodes] == ["aten.view.default"]
    assert graph.symbols == (Symbol("n", 1, 8), Symbol("s", 1, 12))


# The shapes of x and of the weight, and the attributes. x has 16 channels, a size that n may have.
CONVOLUTIONS = {
    "conv1d": ("n, 16, 9", "6, 16, 3", "Conv<pads = [1, 1]>"),
    "conv2d": ("n, 16, 9, 7", "6, 16, 3, 3", "Conv<strides = [2, 2]>"),
    "conv3d": ("n, 16, 3, 4, 5", "2, 16, 3, 3, 3", "Conv<pads = [1, 1, 1, 1, 1, 1]>"),
    "depthwise": ("n, 16, 9, 7", "16, 1, 3, 3", "Conv<group = 16>"),
    "transposed1d": ("n, 16, 5", "16, 3, 3", "ConvTranspose<strides = [2]>"),
    "transposed2d": ("n, 16, 5, 4", "16, 3, 3, 3", "ConvTranspose<strides = [2, 2]>"),
    "transposed3d": ("n, 16, 3, 2, 2", "16, 2, 2, 2, 2", "ConvTranspose"),
    "of_any_width": ("1, 16, 9, n", "6, 16, 3, 3", "Conv<pads = [1, 1, 1, 1]>"),
}


def convolution(name: str) -> onnx.ModelProto:
    """Returns a model of one convolution, whose weight is an initializer."""
    shape, weight, call = CONVOLUTIONS[name]
    proto = model(f"float[{shape}] x", f"y = {call}(x, w)")
    values = (
        np.random.default_rng(1)
        .standard_normal(tuple(map(int, weight.split(","))))
        .astype(np.float32)
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    return proto


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_few_and_many(name: str) -> None:
    """PyTorch takes other kernels from a batch of 16 on; the type of the result is the same."""
    check(convolution(name), {"n": 40}, [{"n": n} for n in (1, 15, 16, 17, 40)])


@pytest.mark.parametrize("bounds", [(2, 40), (1, 2)])
def test_a_convolution_that_does_not_fit_all_sizes_is_refused(bounds: tuple[int, int]) -> None:
    proto = convolution("of_any_width")
    del proto.graph.node[0].attribute[:]  # no padding
    with pytest.raises(npusim.Error, match="Conv"):
        npusim.from_onnx(proto, dynamic_shapes={"n": bounds})
    check(proto, {"n": (3, 40)}, [{"n": 3}, {"n": 40}])


def test_a_convolution_of_open_channels_is_refused() -> None:
    proto = convolution("conv2d")
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "c"
    with pytest.raises(npusim.Error, match="Conv"):
        npusim.from_onnx(proto, dynamic_shapes={"n": 40, "c": 40})


@pytest.mark.parametrize("attributes", ["", "<is_causal = 1>"])
def test_attention(attributes: str) -> None:
    check(model("float[n, 2, s, 4] x", f"y = Attention{attributes}(x, x, x)", 23), BOUNDS, SIZES)


def _weights(name: str, *shape: int) -> str:
    numbers = np.random.default_rng(len(name)).standard_normal(shape).reshape(-1) / 2
    listed = ", ".join(f"{number:.3f}" for number in numbers)
    return f"{name} = Constant<value = float{list(shape)} {{{listed}}}>() "


def recurrent(op: str, direction: str, extra: str = "", more: str = "") -> onnx.ModelProto:
    """Returns a recurrent layer of 4 inputs and 3 units over sequences of any length."""
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if direction == "bidirectional" else 1
    sizes = ((("w",), 4), (("rec",), 3))
    body = "".join(_weights(*name, ways, gates * 3, k) for name, k in sizes)
    body += _weights("bias", ways, 2 * gates * 3)
    cell = ", cell" if op == "LSTM" else ""
    how = f'hidden_size = 3, direction = "{direction}"{extra}'
    body += f"y, last{cell} = {op}<{how}>(x, w, rec, bias{more})"
    given = "float[s, n, 4] x" + (", int32[n] lengths" if more else "")
    results = f"float y, float last{cell.replace('cell', 'float cell')}"
    text = f'<ir_version: 10, opset_import: ["" : 21]>\ng ({given}) => ({results}) {{{body}}}'
    return parser.parse_model(text)


@pytest.mark.parametrize(
    ("op", "direction", "extra"),
    [
        *(("LSTM", "bidirectional", ""), ("LSTM", "reverse", ""), ("RNN", "bidirectional", "")),
        ("GRU", "bidirectional", ", linear_before_reset = 1"),
        ("RNN", "forward", ', activations = ["Relu"]'),
    ],
)
def test_recurrences_of_any_length(op: str, direction: str, extra: str) -> None:
    graph = check(recurrent(op, direction, extra), BOUNDS, SIZES)
    found = [node for node in graph.nodes if node.op == "npu.recurrence"]
    assert len(found) == (2 if direction == "bidirectional" else 1)


@pytest.mark.parametrize(
    ("op", "extra", "more"),
    [("GRU", "", ""), ("LSTM", ", clip = 1.0", ""), ("LSTM", "", ", lengths")],
)
def test_recurrences_that_need_a_fixed_length_say_so(op: str, extra: str, more: str) -> None:
    with pytest.raises(npusim.Error, match=f"{op} over a number of steps that calls choose"):
        npusim.from_onnx(recurrent(op, "forward", extra, more), dynamic_shapes=BOUNDS)


def test_several_inputs_share_dimensions_and_sums_of_them() -> None:
    proto = model("float[n, s] x, float[n, p] past, float[n, t] z", "y = Concat<axis = 1>(x, past)")
    proto.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "s + p"
    del proto.graph.node[:]
    proto.graph.node.add(op_type="Concat", input=["past", "x"], output=["both"]).attribute.add(
        name="axis", i=1, type=onnx.AttributeProto.INT
    )
    proto.graph.node.add(op_type="Add", input=["both", "z"], output=["y"])
    imported = npusim.from_onnx(proto, dynamic_shapes={**BOUNDS, "p": (0, 9)})
    session = npusim.load(npusim.compile(imported.graph))
    for n, s, p in ((2, 3, 4), (8, 12, 9), (1, 1, 0)):
        x, past, z = (np.random.rand(n, k).astype(np.float32) for k in (s, p, s + p))
        np.testing.assert_allclose(session(x, past, z)[0], np.concatenate([past, x], 1) + z)
    with pytest.raises(npusim.ShapeError, match=r"input z: dimension 1 is 9, expected p \+ s = 7"):
        session(np.ones((2, 3), "f"), np.ones((2, 4), "f"), np.ones((2, 9), "f"))


class Scores(nn.Module):
    """A language model's step: embeddings, causal attention written out, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        x = self.embedding(ids) + self.position(torch.arange(length, device=ids.device))
        heads = self.qkv(x).view(batch, length, 3, 4, 4).permute(2, 0, 3, 1, 4)
        scores = heads[0] @ heads[1].transpose(-1, -2) * 0.5
        mask = torch.full((length, length), float("-inf")).triu(1)
        y = (scores + mask).softmax(-1) @ heads[2]
        return self.head(y.transpose(1, 2).reshape(batch, length, 16))


EXPORTED = {
    "perceptron": (MODELS["perceptron"].model, (torch.randn(4, 16),), ({0: "n"},)),
    "scores": (Scores, (torch.randint(0, 50, (2, 7)),), ({0: "n", 1: "s"},)),
    "convolutions": (
        MODELS["convolutions"].model,
        (torch.randn(2, 3, 16, 24),),
        ({0: "n", 2: "h", 3: "w"},),
    ),
}
IMAGES = {"h": (9, 33), "w": (9, 40)}


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "legacy"])
@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.filterwarnings("ignore")  # of the legacy exporter, of itself
def test_exported_models(name: str, dynamo: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, arguments, names = EXPORTED[name]
    path = tmp_path / "model.onnx"
    bounds = {**BOUNDS, **IMAGES}
    if dynamo:
        pairs = {k: b if isinstance(b, tuple) else (1, b) for k, b in bounds.items()}
        dims = {k: Dim(k, min=low, max=high) for k, (low, high) in pairs.items()}
        shapes = tuple({axis: dims[k] for axis, k in shape.items()} for shape in names)
        how = {"dynamic_shapes": shapes}
    else:
        inputs = [f"x{i}" for i in range(len(arguments))]
        how = {"dynamic_axes": dict(zip(inputs, names, strict=True)), "input_names": inputs}
        how["opset_version"] = 17
    torch.onnx.export(make().eval(), arguments, path, dynamo=dynamo, verbose=False, **how)
    used = {k: bounds[k] for shape in names for k in shape.values()}
    extents = ((16, 24), (33, 40), (9, 9), (10, 39))
    sizes = [{**c, "h": h, "w": w} for c, (h, w) in zip(SIZES, extents, strict=True)]
    check(path, used, sizes)


OPEN = model("float[n, s, 4] x, float[s, 4] z", "y = Add(x, z)")


def test_dimensions_without_bounds_are_listed() -> None:
    with pytest.raises(npusim.ExportError, match=r"leaves open n, for which.*--dynamic n=8"):
        npusim.from_onnx(OPEN, dynamic_shapes={"s": 4})
    with pytest.raises(npusim.ExportError, match=r'x has the shape \[n, s, 4\].*"n": \(1, 8\)'):
        npusim.from_onnx(OPEN)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"n": 8, "s": 4, "t": 3}, "no open dimension t; it has: n, s"),
        ({"n": 8, "s": (5, 4)}, "size s ranges from 5 to 4"),
        ({"n": 8, "s": -1}, "size s ranges from -1 to -1"),
    ],
)
def test_impossible_bounds(bounds, message: str) -> None:
    with pytest.raises(npusim.ShapeError, match=message):
        npusim.from_onnx(OPEN, dynamic_shapes=bounds)


def test_a_size_may_be_fixed_and_inputs_given() -> None:
    fixed = npusim.from_onnx(OPEN, dynamic_shapes={"n": 8, "s": (4, 4)}).graph
    assert fixed.symbols == (Symbol("n", 1, 8),)
    given = npusim.from_onnx(OPEN, shapes={"z": (4, 4)}, dynamic_shapes={"n": 8, "s": (4, 4)})
    assert [v.type.shape[-1] for v in given.graph.inputs] == [4, 4]


def test_dimensions_without_names_are_called_after_their_places() -> None:
    proto = model("float[?, 4] x", "y = Neg(x)")
    assert npusim.from_onnx(proto, dynamic_shapes={"x_0": 5}).graph.symbols == (
        Symbol("x_0", 1, 5),
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("h = Shape(x) l = Gather(h, i1) c = Greater(l, i2) y = If(c)"
         " <then_branch = a () => (float u) {u = Neg(x)},"
         " else_branch = b () => (float v) {v = Abs(x)}>", "the condition of If"),
        ("t = Constant<value_ints = [0, 3, -1]>() y = Reshape(x, t)", "cannot be seen as"),
        ("y, i = TopK<axis = 1>(x, three)", "TopK"),
        ("t = Transpose<perm = [1, 0, 2]>(x) y = Add(x, t)", "Add"),
    ],
)  # fmt: skip
def test_what_depends_on_the_sizes_is_refused_by_name(body: str, message: str) -> None:
    with pytest.raises(npusim.Error, match=message):
        npusim.from_onnx(model("float[n, s, 4] x", ALWAYS + body), dynamic_shapes=BOUNDS)

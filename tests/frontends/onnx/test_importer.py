"""Importing ONNX files: values as ONNX Runtime computes them, and refusals that say what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import npusim
from npusim.errors import Error, ExportError, ShapeError
from npusim.frontends.onnx import from_onnx, register_translation
from npusim.frontends.onnx.builder import NeedsValues
from npusim.frontends.onnx.evaluate import BeyondReference
from npusim.frontends.onnx.registry import TRANSLATIONS
from npusim.runtime.safetensors_files import save_safetensors

RNG = np.random.default_rng(3)
W = RNG.standard_normal((4, 3)).astype(np.float32)


def model(text: str, **initialisers: np.ndarray) -> onnx.ModelProto:
    """Returns a model of ONNX's textual form `(inputs) => (outputs) { nodes }`."""
    head = '<ir_version: 10, opset_import: ["" : 21, "com.example" : 1, "com.microsoft" : 1]>\nnet '
    proto = onnx.parser.parse_model(head + text)
    for name, array in initialisers.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


LINEAR = "(float[2, 4] x) => (float[2, 3] y) { h = MatMul(x, w) \n y = Relu(h) }"


def run(imported, *inputs):
    session = npusim.load(npusim.compile(imported.graph), imported.weights or None)
    return session(*inputs)


def reference(proto, **inputs):
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def test_weights_are_named_after_initialisers() -> None:
    proto = model(LINEAR, w=W)
    imported = from_onnx(proto)
    assert [w.key for w in imported.graph.weights] == ["w"]
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    np.testing.assert_allclose(run(imported, x)[0], reference(proto, x=x)[0], rtol=1e-5)


def test_a_network_agrees_with_onnx_runtime() -> None:
    text = """(float[2, 3, 8, 8] x) => (float[2, 4] y) {
        c = Conv<pads = [1, 1, 1, 1]>(x, k, b)
        r = Relu(c)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
        s = Shape<start = 0, end = 1>(p)
        m = Constant<value_ints = [-1]>()
        t = Concat<axis = 0>(s, m)
        f = Reshape(p, t)
        g = Gemm<transB = 1>(f, w)
        y = Softmax(g)
    }"""
    arrays = {
        "k": RNG.standard_normal((5, 3, 3, 3)).astype(np.float32),
        "b": RNG.standard_normal(5).astype(np.float32),
        "w": RNG.standard_normal((4, 80)).astype(np.float32) / 9,
    }
    proto, x = model(text, **arrays), RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
    imported = from_onnx(proto)
    assert {n.op for n in imported.graph.nodes} >= {"aten.conv2d.default", "aten.linear.default"}
    expected = reference(proto, x=x)[0]
    np.testing.assert_allclose(run(imported, x)[0], expected, rtol=1e-4, atol=1e-6)


# ---- structure that depends on values ----

RESHAPE = "(float[2, 6] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }"


def test_a_shape_computed_while_running_is_refused() -> None:
    with pytest.raises(NeedsValues, match=r"the shape of Reshape is computed.* from s;.*values="):
        from_onnx(model(RESHAPE))


def test_results_whose_number_is_a_value_are_refused_with_what_to_do() -> None:
    text = "(float[4] x) => (int64[1, k] y) { h = Relu(x) \n y = NonZero(h) }"
    with pytest.raises(NeedsValues, match=r"NonZero \(y\): the shape.*extract_model.*values=") as e:
        from_onnx(model(text))
    assert "what follows h" in str(e.value)
    assert e.value.inputs == {"x"}


def test_a_given_value_is_fixed() -> None:
    imported = from_onnx(model(RESHAPE), values={"s": np.array([3, 4])})
    assert [v.name for v in imported.graph.inputs] == ["x"]
    assert imported.graph.types[imported.graph.outputs[0].value].shape == (3, 4)


def test_open_dimensions_are_listed() -> None:
    proto = model("(float[batch, 4] x) => (float[batch, 4] y) { y = Relu(x) }")
    with pytest.raises(ExportError, match=r"x has the shape \[batch, 4\].*--shape"):
        from_onnx(proto)
    assert from_onnx(proto, shapes={"x": (5, 4)}).graph.inputs[0].type.shape == (5, 4)
    with pytest.raises(ShapeError, match=r"\[5, 3\] does not fit"):
        from_onnx(proto, shapes={"x": (5, 3)})
    with pytest.raises(ShapeError, match="has no input z; it has: x"):
        from_onnx(proto, shapes={"x": (5, 4), "z": (1,)})


def test_a_loop_is_unrolled() -> None:
    text = """(float[3] x) => (float[3] y, float[4, 3] all) {
        n = Constant<value_int = 4>()
        t = Constant<value = bool {1}>()
        y, all = Loop(n, t, x) <body = step (int64 i, bool c, float[3] v)
            => (bool d, float[3] w, float[3] o) {
            d = Identity(c)
            f = Cast<to = 1>(i)
            w = Add(v, f)
            o = Mul(w, w)
        }>
    }"""
    imported, x = from_onnx(model(text)), np.float32([1, 2, 3])
    y, every = run(imported, x)
    np.testing.assert_array_equal(y, x + 6)
    np.testing.assert_array_equal(every, np.stack([(x + s) ** 2 for s in (0, 1, 3, 6)]))


def test_a_condition_on_values_is_refused() -> None:
    text = """(float[3] x, bool c) => (float[3] y) {
        y = If(c) <
            then_branch = a () => (float[3] p) { p = Relu(x) },
            else_branch = b () => (float[3] q) { q = Neg(x) }
        >
    }"""
    with pytest.raises(NeedsValues, match="the condition of If"):
        from_onnx(model(text))
    imported, x = from_onnx(model(text), values={"c": np.array(False)}), np.float32([1, -2, 3])
    np.testing.assert_array_equal(run(imported, x)[0], -x)


GATHER = """(float[2, 3] x) => (float[2, 3] y) {
    t = GatherElements<axis = 1>(table, places)
    f = Cast<to = 1>(t)
    y = Add(x, f)
}"""
TABLE, PLACES = np.arange(200).reshape(4, 50), np.array([[0, -1, 40], [1, 2, 3]])


def test_known_elements_are_gathered_while_importing() -> None:
    """ONNX's own reference chooses among 32."""
    proto, x = model(GATHER, table=TABLE, places=PLACES), np.zeros((2, 3), np.float32)
    imported = from_onnx(proto)
    assert [n.op for n in imported.graph.nodes] == ["aten.add.Tensor"]
    np.testing.assert_array_equal(run(imported, x)[0], reference(proto, x=x)[0])


@pytest.mark.parametrize(
    ("table", "places"), [(TABLE, PLACES + 48), (TABLE[0], PLACES), (TABLE[:1], PLACES)]
)
def test_elements_outside_are_refused(table: np.ndarray, places: np.ndarray) -> None:
    with pytest.raises(Error, match="GatherElements"):
        from_onnx(model(GATHER, table=table, places=places))


def test_what_the_reference_cannot_compute_is_left_to_the_program(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise BeyondReference("no")

    monkeypatch.setattr("npusim.frontends.onnx.importer.evaluate", refuse)
    proto, x = model(GATHER, table=TABLE, places=PLACES), np.zeros((2, 3), np.float32)
    imported = from_onnx(proto)
    assert imported.graph.nodes[0].op == "aten.gather.default"
    np.testing.assert_array_equal(run(imported, x)[0], reference(proto, x=x)[0])


# ---- operators ----


@pytest.mark.parametrize("values", [[0, 0, 0], [-2, -2, -2], [0, 1, 510], [-7, 0, 7]])
def test_a_range_of_its_own(values: list[float]) -> None:
    """The range of nothing but zeros has a scale of 1, as ONNX Runtime gives it."""
    text = """(float[3] x) => (uint8[3] y, float s, uint8 z) {
        y, s, z = DynamicQuantizeLinear(x)
    }"""
    proto, x = model(text), np.array(values, np.float32)
    for got, want in zip(run(from_onnx(proto), x), reference(proto, x=x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_unknown_operators_are_listed_at_once() -> None:
    proto = model("""(float[2] x) => (float[2] y) {
        a = com.example.Twist(x)
        b = com.example.Twist(a)
        y = com.example.Turn(b)
    }""")
    with pytest.raises(ExportError) as caught:
        from_onnx(proto)
    assert "com.example.Turn (1)" in str(caught.value)
    assert "com.example.Twist (2)" in str(caught.value)
    assert "register_translation" in str(caught.value)


def test_a_custom_operator_gets_a_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(TRANSLATIONS, ("com.example", "Double"), raising=False)
    register_translation("com.example", "Double", lambda call, x: x * call.float("by", 2.0))
    text = "(float[2] x) => (float[2] y) { y = com.example.Double<by = 3.0>(x) }"
    x = np.float32([1, 2])
    np.testing.assert_array_equal(run(from_onnx(model(text)), x)[0], 3 * x)
    with pytest.raises(Error, match="ONNX's own"):
        register_translation("", "Relu", lambda call, x: x)


def test_what_an_operator_cannot_take_names_the_node() -> None:
    with pytest.raises(ExportError, match=r"TopK .*k is 5, and the axis has 2 elements"):
        from_onnx(
            model(
                "(float[2] x) => (float[k] v, int64[k] i) { v, i = TopK(x, n) }",
                n=np.array([5]),
            )
        )


@pytest.mark.parametrize("op", ["Div", "Mod", "Max", "Min", "Sub", "Mul"])
def test_unsigned_arithmetic_beyond_signed_range(op: str) -> None:
    from npusim.onnx_backend import run_model

    x = np.array([2**64 - 1, 2**63, 2**63 + 5, 7, 2**64 - 2, 3], np.uint64)
    y = np.array([3, 2**63 + 1, 2**63, 2, 2**64 - 1, 2**63], np.uint64)
    expected = {"Div": x // y, "Mod": x % y, "Max": np.maximum(x, y), "Min": np.minimum(x, y),
                "Sub": x - y, "Mul": x * y}[op]  # fmt: skip
    text = f"(uint64[6] x, uint64[6] y) => (uint64[6] z) {{ z = {op}(x, y) }}"
    (z,) = run_model(model(text), [x, y])
    np.testing.assert_array_equal(z, expected)
    assert z.dtype == np.uint64


@pytest.mark.parametrize(
    "call",
    [
        "com.microsoft.BiasGelu(x)",
        "com.microsoft.BiasGelu(x, x, x)",
        "com.microsoft.Gelu()",
        "com.microsoft.FusedMatMul(x, w)",
        "com.microsoft.Attention<num_heads = 0>(x, w)",
        "com.microsoft.MatMulNBits<K = 0, N = 0, block_size = 0>(x, w, w)",
        "MatMul(w, w)",
        "Cast<to = 77>(x)",
    ],
)
def test_operands_that_do_not_fit_are_refused_by_the_node(call: str) -> None:
    text = f"(float[2, 4] x) => (float[a, b] y) {{ y = {call} }}"
    arrays = {"w": np.ones((3, 5), np.float32)} if "w" in call.partition("(")[2] else {}
    with pytest.raises(Error):
        from_onnx(model(text, **arrays))


def test_a_result_that_nothing_gives() -> None:
    proto = model("(float[2] x) => (float[2] y) { h, z = com.microsoft.Gelu(x) y = Add(x, z) }")
    with pytest.raises(ExportError, match="nothing gives the value z"):
        from_onnx(proto)


# ---- the backend ----


def test_a_prepared_model_is_specialised_at_the_call() -> None:
    from npusim.onnx_backend import prepare

    prepared, x = prepare(model(RESHAPE)), np.arange(12, dtype=np.float32).reshape(2, 6)
    for shape in ([3, 4], [4, -1], [3, 4]):
        (y,) = prepared.run([x, np.array(shape)])
        np.testing.assert_array_equal(y, x.reshape(shape))
    assert prepared.ran == "native"
    assert len(prepared._programs) == 2


def test_a_node_runs_alone() -> None:
    from npusim.onnx_backend import run_node, supports_device

    x = np.float32([[1, -2]])
    (y,) = run_node(onnx.helper.make_node("Relu", ["x"], ["y"]), [x])
    np.testing.assert_array_equal(y, [[1, 0]])
    assert supports_device("CPU") and not supports_device("TPU")


# ---- files ----


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """Returns the path of a model whose weight is in weights.bin."""
    path = tmp_path / "model.onnx"
    onnx.save_model(
        model(LINEAR, w=W), path, save_as_external_data=True, location="weights.bin",
        size_threshold=0,
    )  # fmt: skip
    return path


def test_external_data_is_mapped_and_written_once(external: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    imported = from_onnx(external)
    assert isinstance(imported.weights["w"].base, (np.memmap, np.ndarray))
    assert imported.graph.name == "model"
    written = save_safetensors(imported.weights, tmp_path / "w.safetensors")
    assert written == (tmp_path / "w.safetensors").stat().st_size
    np.testing.assert_array_equal(load_file(tmp_path / "w.safetensors")["w"], W)


def test_missing_external_data(external: Path) -> None:
    (external.parent / "weights.bin").unlink()
    with pytest.raises(ExportError, match=r"data of w is missing.*Copy the data files"):
        from_onnx(external)


def test_truncated_external_data(external: Path) -> None:
    data = external.parent / "weights.bin"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ExportError, match=r"which has 47.*truncated"):
        from_onnx(external)


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "folder/../../w", ""])
def test_external_data_outside_the_folder(external: Path, location: str) -> None:
    proto = onnx.load(external, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    external.write_bytes(proto.SerializeToString())
    with pytest.raises(ExportError, match="outside the model's folder"):
        from_onnx(external)


def test_a_link_that_leaves_the_folder(external: Path, tmp_path_factory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "weights.bin"
    data = external.parent / "weights.bin"
    data.rename(elsewhere)
    data.symlink_to(elsewhere)
    with pytest.raises(ExportError, match="outside the model's folder"):
        from_onnx(external)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ExportError, match="No such file"):
        from_onnx(path)
    whole = model(LINEAR, w=W).SerializeToString()
    for data in (whole[: len(whole) // 2], b"\xff" * 64, b""):
        path.write_bytes(data)
        with pytest.raises(ExportError):
            from_onnx(path)


@pytest.mark.parametrize("word", ["net", "first", "x", "h", "w", "MatMul", "axis", "batch", "dom"])
def test_names_that_are_no_text_are_refused(word: str, tmp_path: Path) -> None:
    """Whatever the field: of the graph, nodes, values, weights, attributes, dimensions, domains."""
    proto = model(
        """(float[batch, 4] x) => (float[batch, 3] y) {
            [first] h = MatMul(x, w)
            y = Softmax<axis = 1>(h)
        }""",
        w=W,
    )
    proto.opset_import.append(onnx.helper.make_opsetid("dom", 1))
    data = proto.SerializeToString()
    name = bytes([len(word)]) + word.encode()  # as the wire has it
    assert name in data
    path = tmp_path / "model.onnx"
    path.write_bytes(data.replace(name, name[:-1] + b"\xff"))
    broken = onnx.load_from_string(path.read_bytes())
    for source in (path, broken):
        with pytest.raises(ExportError, match=r"\\xff.* no UTF-8 text"):
            from_onnx(source, shapes={"x": (2, 4)})


def test_comments_may_be_of_any_encoding() -> None:
    proto = model(LINEAR, w=W)
    proto.graph.node[0].doc_string = "here"
    proto = onnx.load_from_string(proto.SerializeToString().replace(b"here", b"\xe9t\xe9."))
    assert from_onnx(proto).graph.nodes


def test_rules_of_onnx_are_passed_on() -> None:
    proto = model(LINEAR, w=W)
    proto.graph.node[0].input[0] = "h"  # reads its own result
    with pytest.raises(ExportError, match=r"breaks ONNX's rules.*Export it again"):
        from_onnx(proto)


def test_an_opset_of_the_future() -> None:
    proto = model(LINEAR, w=W)
    proto.opset_import[0].version = 999
    with pytest.raises(ExportError, match=r"opset 999.*pip install -U onnx"):
        from_onnx(proto)

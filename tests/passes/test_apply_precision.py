"""apply_precision: what is stored and multiplied in 16 bits, and what stays in float32."""

from dataclasses import replace

import pytest
import torch

import npusim
from npusim.analysis.narrow_values import MULTIPLIED
from npusim.errors import TargetConstraintError
from npusim.ir.printer import format_graph
from npusim.ir.verify import verify_graph
from npusim.ops.fused import NO_EPILOGUE
from npusim.ops.reference import check_node, run_graph
from npusim.passes.apply_precision import apply_precision
from npusim.passes.eliminate_dead_code import eliminate_dead_code
from npusim.passes.run import check_signature
from tests.passes.conftest import random_tensor, weights_of

LEAST = {"bfloat16": 40, "mixed": 40, "float16": 60}  # dB


@pytest.fixture
def check_precision(golden, cpu):
    """Holds the pass to what a pass promises, but for the values: they are close."""

    def check(graph, precision="bfloat16"):
        target = replace(cpu, precision=precision)
        result = eliminate_dead_code(verify_graph(apply_precision(graph, target)), target)
        for node in result.nodes:
            check_node(node, result.types)
        check_signature(graph, result)
        assert apply_precision(graph, cpu) is graph, "nobody asked for it"
        generator = torch.Generator().manual_seed(0)
        inputs = [random_tensor(v.type, generator) for v in graph.inputs]
        weights = weights_of(graph, generator)
        pairs = zip(run_graph(result, inputs, weights), run_graph(graph, inputs, weights),
                    strict=True)  # fmt: skip
        for actual, expected in pairs:
            noise, signal = (actual - expected).double(), expected.double()
            assert 20 * torch.log10(signal.norm() / noise.norm()) > LEAST[precision]
        golden(format_graph(result))
        return result

    return check


def linear(draft, x, k, n, residual=None, **epilogue):
    mode = {"residual": 1} if residual else {}
    attrs = {**NO_EPILOGUE, **mode, **epilogue}
    return draft.call("npu.linear", x, draft.w(n, k), draft.w(n), residual, **attrs)


def norm(draft, x, k):
    return draft.call("aten.layer_norm.default", x, draft.w(k), draft.w(k), normalized_shape=(k,),
                      eps=1e-5, cudnn_enable=False)  # fmt: skip


def block(draft, x, k):
    """A residual block, as transformers have them."""
    hidden = linear(draft, norm(draft, x, k), k, 4 * k, act="gelu")
    return linear(draft, hidden, 4 * k, k, residual=x)


def dtypes(graph):
    """Returns the dtypes of the operands that products multiply."""
    return [graph.types[n.inputs[0]].dtype for n in graph.nodes if n.op in MULTIPLIED]


@pytest.mark.parametrize("precision", LEAST)
def test_the_last_product_and_what_comes_behind_it_stay_float32(draft, check_precision, precision):
    y = block(draft, block(draft, draft.x(6, 32), 32), 32)
    graph = check_precision(draft.graph(linear(draft, norm(draft, y, 32), 32, 4)), precision)
    narrow = "float16" if precision == "float16" else "bfloat16"
    assert dtypes(graph) == [narrow] * 4 + ["float32"]


def test_what_only_products_read_is_stored_narrow_by_mixed_as_well(draft, check_precision):
    x = linear(draft, draft.x(6, 32), 32, 64, act="relu")
    y = linear(draft, linear(draft, x, 64, 64), 64, 64)
    graph = check_precision(draft.graph(linear(draft, y, 64, 2)), "mixed")
    assert [n.type.dtype for n in graph.nodes if n.op == "npu.linear"] == [
        *("bfloat16", "bfloat16", "float32", "float32")
    ]


@pytest.mark.parametrize("op", ["exp", "log", "sin", "floor"])
def test_formulas_that_enlarge_errors_read_float32(draft, cpu, op):
    x = draft.call("aten.abs.default", linear(draft, draft.x(6, 32), 32, 64))
    y = linear(draft, draft.call(f"aten.{op}.default", x), 64, 64)
    graph = apply_precision(
        draft.graph(linear(draft, y, 64, 2)), replace(cpu, precision="bfloat16")
    )
    assert graph.types[x].dtype == "float32"
    assert {n.type.dtype for n in graph.nodes if n.op == "npu.linear"} >= {"float32"}
    before = next(n for n in graph.nodes if n.op == "npu.linear")
    assert before.type.dtype == "float32", "what its operand is made of counts as well"


def test_scores_of_a_written_out_softmax_stay_float32(draft, check_precision):
    q, k = (linear(draft, draft.x(2, 8, 32, name=n), 32, 32) for n in "qk")
    scores = draft.call("aten.matmul.default", q, draft.call(
        "aten.transpose.int", k, dim0=1, dim1=2))  # fmt: skip
    weights = draft.call("aten.softmax.int", scores, dim=-1, dtype=None)
    y = draft.call("aten.matmul.default", weights, k)
    graph = check_precision(draft.graph(linear(draft, y, 32, 1)))
    types = {n.op: n.type.dtype for n in graph.nodes}
    assert types["aten.softmax.int"] == types["npu.matmul"] == "float32"
    product = next(n for n in graph.nodes if n.op == "npu.matmul")
    assert {graph.types[i].dtype for i in product.inputs} == {"bfloat16"}


@pytest.mark.parametrize(("terms", "dtype"), [(8, "float32"), (16, "bfloat16")])
def test_few_terms_average_no_error(draft, cpu, terms, dtype):
    positions = draft.call("aten.abs.default", linear(draft, draft.x(6, 32), 32, terms))
    angles = draft.call("aten.matmul.default", positions, draft.x(terms, 16, name="f"))
    y = linear(draft, draft.call("aten.sin.default", angles), 16, 64)
    graph = draft.graph(linear(draft, y, 64, 1))
    graph = apply_precision(graph, replace(cpu, precision="bfloat16"))
    product = next(n for n in graph.nodes if "matmul" in n.op)
    assert (graph.types[product.inputs[0]].dtype, product.type.dtype) == (dtype, "float32")


@pytest.mark.parametrize(("terms", "dtype"), [(3, "float32"), (15, "float32"), (16, "bfloat16")])
def test_few_terms_of_weights_average_none_either(draft, cpu, terms, dtype):
    angles = linear(draft, draft.x(6, terms), terms, 32)
    features = [draft.call(f"aten.{f}.default", angles) for f in ("sin", "cos")]
    y = linear(draft, draft.call("aten.cat.default", *features, tensors=2, dim=-1), 64, 64)
    graph = apply_precision(
        draft.graph(linear(draft, y, 64, 1)), replace(cpu, precision="bfloat16")
    )
    first, second = [n for n in graph.nodes if n.op == "npu.linear"][:2]
    assert {graph.types[i].dtype for i in first.inputs[:2]} == {dtype}
    assert first.type.dtype == "float32"
    assert {graph.types[i].dtype for i in second.inputs[:2]} == {"bfloat16"}


@pytest.mark.parametrize("before", ["exp", "relu"])
def test_windows_of_few_taps_do_as_their_readers_bear(draft, cpu, before):
    window = dict.fromkeys(("stride", "padding", "padding_back", "dilation"), (1, 1))
    attrs = {**NO_EPILOGUE, **window, "output_padding": (0, 0), "groups": 8, "transposed": False}
    x = draft.call("npu.conv", draft.x(1, 8, 6, 6), draft.w(8, 1, 3, 3), None, None, **attrs)
    y = draft.call("aten.reshape.default", draft.call(f"aten.{before}.default", x), shape=(8, 36))
    graph = draft.graph(linear(draft, linear(draft, y, 36, 64), 64, 1))
    graph = apply_precision(graph, replace(cpu, precision="bfloat16"))
    conv = next(n for n in graph.nodes if n.op == "npu.conv")
    dtype = "float32" if before == "exp" else "bfloat16"
    assert {graph.types[i].dtype for i in conv.inputs[:2]} == {dtype}


def test_targets_that_cannot_widen_multiply_float32(draft, cpu):
    q, k = (linear(draft, draft.x(32, 32, name=n), 32, 32) for n in "qk")
    weights = draft.call("aten.softmax.int", draft.call("aten.matmul.default", q, k), dim=-1,
                         dtype=None)  # fmt: skip
    graph = draft.graph(linear(draft, linear(draft, weights, 32, 32), 32, 1))
    kernels = tuple(k for k in cpu.kernels if k != "widening_matmul")
    graph = apply_precision(graph, replace(cpu, precision="bfloat16", kernels=kernels))
    product = next(n for n in graph.nodes if "matmul" in n.op)
    assert {graph.types[i].dtype for i in product.inputs} == {"float32"}


def test_a_residual_stream_stays_float32(draft, check_precision):
    x = linear(draft, draft.x(6, 32), 32, 32)
    for _ in range(4):
        x = block(draft, x, 32)
    graph = check_precision(draft.graph(linear(draft, norm(draft, x, 32), 32, 4)))
    sums = [n.type.dtype for n in graph.nodes if n.op == "npu.linear" and n.attrs["residual"]]
    assert sums == ["float32"] * 4
    norms = [n for n in graph.nodes if "norm" in n.op]
    assert [n.type.dtype for n in norms] == ["bfloat16"] * 4 + ["float32"]
    assert all(n.op == "npu.row_norm" for n in norms[1:4]), "they convert by themselves"


@pytest.mark.parametrize(("columns", "dtype"), [(512, "bfloat16"), (1024, "float32")])
def test_a_stream_is_converted_for_large_products_alone(draft, cpu, columns, dtype):
    x = linear(draft, draft.x(6, 32), 32, 32)
    for _ in range(4):
        hidden = linear(draft, x, 32, columns, act="gelu")
        x = norm(draft, linear(draft, hidden, columns, 32, residual=x), 32)
    graph = apply_precision(
        draft.graph(linear(draft, x, 32, 4)), replace(cpu, precision="bfloat16")
    )
    norms = [n.output.name for n in graph.nodes if "norm" in n.op]
    assert {graph.types[name].dtype for name in norms[:-1]} == {dtype}
    converted = [n for n in graph.nodes if n.op == "aten._to_copy.default" and n.inputs[0] in norms]
    assert len(converted) == (3 if dtype == "float32" else 0), "once for each product"


def test_a_norm_keeps_the_epsilon_of_float32(draft, cpu):
    x = linear(draft, draft.x(6, 32), 32, 32)
    y = draft.call("aten.rms_norm.default", x, draft.w(32), normalized_shape=(32,), eps=None)
    graph = draft.graph(linear(draft, linear(draft, y, 32, 32), 32, 1))
    graph = apply_precision(graph, replace(cpu, precision="bfloat16"))
    normed = next(n for n in graph.nodes if "norm" in n.op)
    assert normed.type.dtype == "bfloat16"
    assert normed.attrs["eps"] == 2.0**-23


def test_float16_saturates_where_it_would_overflow(draft, cpu):
    x = linear(draft, draft.x(4, 32), 32, 32, act="relu")
    y = linear(draft, linear(draft, x, 32, 32, act="gelu"), 32, 32)
    graph = draft.graph(linear(draft, y, 32, 1))
    narrow = apply_precision(graph, replace(cpu, precision="float16"))
    weights = weights_of(graph, torch.Generator().manual_seed(0))
    inputs = [torch.full((4, 32), 1e6)]
    assert run_graph(graph, inputs, weights)[0].isfinite().all()
    assert run_graph(narrow, inputs, weights)[0].isfinite().all()
    inputs[0][0, 0] = torch.nan
    assert run_graph(narrow, inputs, weights)[0][0].isnan().all(), "NaN is not hidden"


def test_a_mask_keeps_its_dtype(draft, check_precision):
    q, k, v = (linear(draft, draft.x(1, 2, 8, 16, name=n), 16, 16) for n in "qkv")
    y = draft.call("aten.scaled_dot_product_attention.default", q, k, v, draft.x(8, 8, name="m"),
                   dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False)  # fmt: skip
    graph = check_precision(draft.graph(linear(draft, linear(draft, y, 16, 16), 16, 1)))
    attention = next(n for n in graph.nodes if "attention" in n.op)
    assert [graph.types[i].dtype for i in attention.inputs] == ["bfloat16"] * 3 + ["float32"]


def test_a_model_of_16_bits_is_left_or_refused(cpu):
    model = torch.nn.Linear(8, 8).bfloat16().eval()
    x = torch.zeros(2, 8, dtype=torch.bfloat16)
    left = npusim.compile((model, (x,)), precision="bfloat16")
    assert left.input_specs[0].dtype == "bfloat16"
    with pytest.raises(TargetConstraintError, match="are of bfloat16 already"):
        npusim.compile((model, (x,)), precision="float16")


def test_unknown_precisions_are_refused():
    model = (torch.nn.Linear(8, 8).eval(), (torch.zeros(2, 8),))
    with pytest.raises(TargetConstraintError, match=r"'half' is not a precision.*bfloat16"):
        npusim.compile(model, precision="half")

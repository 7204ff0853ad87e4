"""What tinygrad writes as multiply and reduce is recovered, and what only looks like it is not."""

from __future__ import annotations

from importlib import metadata

import pytest

pytest.importorskip("tinygrad")

import numpy as np
from tinygrad import Tensor, dtypes, nn

import npusim
from npusim.frontends.tinygrad import from_tinygrad
from npusim.passes.run import run_passes
from tests.frontends.tinygrad.models import settle
from tests.frontends.tinygrad.running import (
    assert_same,
    check,
    compiled_ops,
    integers,
    run,
    tensor,
)

IMAGE, ROWS = (2, 4, 7, 7), (3, 5, 8)


def conv(**options):
    return settle(nn.Conv2d(4, 8, **{"kernel_size": 3, **options}))


CONVOLUTIONS = {
    "plain": (conv(), {}),
    "padded": (conv(padding=1), {"padding": (1, 1)}),
    "strided": (conv(stride=2, padding=1), {"stride": (2, 2), "padding": (1, 1)}),
    "stride without window": (conv(kernel_size=1, stride=2), {"stride": (2, 2)}),
    "pointwise": (conv(kernel_size=1), {}),
    "dilated": (conv(dilation=2, padding=2), {"dilation": (2, 2), "padding": (2, 2)}),
    "grouped": (conv(groups=2), {"groups": 2}),
    "depthwise": (conv(groups=4, padding=1), {"groups": 4, "padding": (1, 1)}),
    "oblong": (conv(kernel_size=(3, 2), padding=(1, 0)), {"padding": (1, 0)}),
    "patches": (conv(kernel_size=3, stride=3), {"stride": (3, 3)}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    layer, attrs = CONVOLUTIONS[name]
    imported = check(layer, tensor(*IMAGE))
    assert imported.report.recovered == {"conv2d": 1}
    (node,) = (n for n in imported.graph.nodes if n.op == "aten.conv2d.default")
    defaults = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    assert {k: node.attrs[k] for k in defaults} == {**defaults, **attrs}
    assert node.inputs[0] == "x", "no padding, no window is left before it"


def test_other_convolutions():
    assert check(settle(nn.Conv1d(4, 6, 3, padding=1)), tensor(2, 4, 9)).report.recovered == {
        "conv1d": 1
    }
    kernels = tensor(3, 2, 2, 2, 2)
    volume = check(lambda x, w: x.conv2d(w), tensor(1, 2, 4, 4, 4), kernels)
    assert volume.report.recovered == {"conv3d": 1}
    uneven = check(
        lambda x, w: x.conv2d(w, padding=(1, 0, 0, 2)), tensor(*IMAGE), tensor(2, 4, 3, 3)
    )
    assert uneven.report.recovered["conv2d"] == 1
    transposed = check(settle(nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1)), tensor(1, 4, 5, 5))
    assert transposed.report.recovered["conv2d"] == 1


PRODUCTS = {
    "matrices": (lambda x, y: x @ y, (4, 8), (8, 5), "matmul"),
    "batches": (lambda x, y: x @ y, (2, 3, 4, 8), (2, 3, 8, 5), "matmul"),
    "one batch for all": (lambda x, y: x @ y, (2, 3, 4, 8), (8, 5), "matmul"),
    "transposed": (lambda x, y: x @ y.transpose(-1, -2), (2, 4, 8), (2, 5, 8), "matmul"),
    "a vector": (lambda x, y: x @ y, (4, 8), (8,), "matmul"),
    "rows of one": (lambda x, y: x @ y, (2, 1, 8), (2, 8, 5), "matmul"),
    "einsum": (lambda x, y: Tensor.einsum("bik,bjk->bji", x, y), (2, 3, 8), (2, 4, 8), "matmul"),
    "two axes": (lambda x, y: (x.unsqueeze(1) * y).sum((2, 3)), (2, 3, 4), (5, 3, 4), "matmul"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    function, first, second, op = PRODUCTS[name]
    imported = check(function, tensor(*first), tensor(*second, seed=1))
    assert imported.report.recovered == {op: 1}
    assert imported.report.unrecovered == ()


def test_a_flat_matrix_is_no_row_of_windows():
    flat = tensor(12, seed=1)
    imported = check(lambda x, y: x @ y.reshape(3, 4), tensor(2, 3), flat)
    assert imported.report.recovered == {"matmul": 1}


@pytest.mark.parametrize("kind", [dtypes.int32, dtypes.float64])
def test_windows_of_what_no_convolution_takes_stay(kind) -> None:
    check(lambda x: x.cast(kind).conv2d(Tensor.ones(2, 3, 3, dtype=kind)), tensor(2, 3, 8) * 9)


def test_sorting() -> None:
    """Its places are sums over windows of integers."""
    x = Tensor(np.float32([[3, 1, 2, 2, -5, 9], [0, 0, 7, -1, 4, 4]])).realize()
    check(lambda x: x.sort(dim=1), x)
    check(lambda x: x.topk(3), x)


def test_a_linear_reads_its_weight_as_it_is():
    layer = settle(nn.Linear(8, 6))
    imported = check(
        lambda x: layer(x).gelu(), tensor(*ROWS), weights=nn.state.get_state_dict(layer)
    )
    assert imported.report.recovered == {"linear": 1}
    assert compiled_ops(imported.graph) == {"npu.linear": 1}, "bias and activation are in it"


def test_a_product_of_halves_is_rounded_once():
    x, y = tensor(4, 8, dtype=dtypes.half), tensor(8, 5, seed=1, dtype=dtypes.half)
    imported = check(lambda x, y: x @ y, x, y, tolerance=2e-3)
    assert [n.op for n in imported.graph.nodes] == ["aten.matmul.default"]


def test_sums_of_products_that_are_no_contraction_stay():
    x, y = tensor(4, 8), tensor(4, 8, seed=1)
    assert not check(lambda x, y: (x * y).sum(1), x, y).report.recovered
    scaled = check(lambda x, y: (x * y[:, :1]).sum(1), x, y)
    assert not scaled.report.recovered
    (line,) = scaled.report.unrecovered
    assert "[4, 8]" in line


POOLS = {
    "maximum": (lambda x: x.max_pool2d(2), "max_pool2d"),
    "overlapping": (lambda x: x.max_pool2d(3, stride=2, padding=1), "max_pool2d"),
    "dilated": (lambda x: x.max_pool2d(2, stride=1, dilation=2), "max_pool2d"),
    "average": (lambda x: x.avg_pool2d(3, stride=2), "avg_pool2d"),
    "average with padding": (lambda x: x.avg_pool2d(3, stride=2, padding=1), "avg_pool2d"),
    "average of what is there": (
        lambda x: x.avg_pool2d(3, stride=2, padding=1, count_include_pad=False),
        "sum_pool2d",
    ),
    "mean": (lambda x: x.mean((2, 3)), "mean"),
    "a row": (lambda x: x[0].avg_pool2d(kernel_size=(3,), stride=2), "avg_pool2d"),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_pooling(name):
    function, op = POOLS[name]
    assert check(function, tensor(*IMAGE)).report.recovered == {op: 1}


def test_zeros_around_a_maximum_are_not_its_padding():
    imported = check(lambda x: (x - 5).pad((1, 1, 1, 1)).max_pool2d(3), tensor(*IMAGE))
    assert imported.report.recovered["max_pool2d"] == 1


LOOKUPS = {
    "rows": (lambda t, i: t[i], (7, 4), [[1, 6], [0, 3]], "embedding"),
    "columns": (lambda t, i: t[:, i], (4, 7), [2, 5, 2], "embedding"),
    "an axis": (lambda t, i: t.gather(1, i), (2, 7), [[0, 6, 3], [1, 1, 5]], "gather"),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups(name):
    function, shape, index, op = LOOKUPS[name]
    assert check(function, tensor(*shape), integers(index)).report.recovered.get(op) == 1


def test_a_one_hot_sum_over_other_numbers_is_no_lookup():
    def shifted(table, index):
        places = Tensor.arange(1, 6).reshape(1, 5, 1)
        return (places == index.reshape(-1, 1, 1)).where(table, 0).sum(1)

    imported = check(shifted, tensor(5, 3), integers([1, 3, 5, 0]))
    assert not imported.report.recovered
    assert imported.report.unrecovered == ("sum of [5, 3] where [4, 5, 1] (in Tensor.sum)",)


NORMS = {
    "layer": (settle(nn.LayerNorm(8)), ROWS, "aten.layer_norm.default"),
    "rms": (settle(nn.RMSNorm(8)), ROWS, "aten.rms_norm.default"),
    "softmax": (lambda x: x.softmax(-1), ROWS, "aten.softmax.int"),
    "softmax of columns": (lambda x: x.softmax(0), (5, 8), "aten.softmax.int"),
    "log softmax": (lambda x: x.log_softmax(-1), ROWS, "aten.log_softmax.int"),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
def test_norms_compile_to_what_they_are(name):
    function, shape, op = NORMS[name]
    imported = check(function, tensor(*shape))
    assert compiled_ops(imported.graph)[op] == 1


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(affine):
    layer = settle(nn.BatchNorm(4, affine=affine))
    imported = check(layer, tensor(*IMAGE))
    assert [n.op for n in imported.graph.nodes] == ["aten.batch_norm.default"]
    assert imported.report.recovered == {"batch_norm": 1}


def test_attention_compiles_to_attention():
    q, k = tensor(1, 2, 4, 8), tensor(1, 2, 4, 8, seed=1)
    imported = check(lambda q, k: q.scaled_dot_product_attention(k, k, is_causal=True), q, k)
    lowered = run_passes(imported.graph, npusim.TargetConfig.named("cpu"))
    (node,) = (n for n in lowered.nodes if "attention" in n.op)
    assert node.attrs["is_causal"] is True


# The older release writes a stack as a sum of padded parts, which is a concatenation.
STACK = (
    ["stack.default"]
    if not metadata.version("tinygrad").startswith("0.13.")
    else ["reshape.default", "reshape.default", "cat.default"]
)
JOINS = {
    "different parts": (
        lambda x, y: x.cat(y[:, :3], x * 2, dim=1),
        ["mul.Scalar", "slice.Tensor", "cat.default"],
    ),
    "equal parts": (lambda x, y: x.cat(y, dim=1), ["cat.default"]),
    "stack": (lambda x, y: Tensor.stack(x, y, dim=1), STACK),
    "padding with a number": (
        lambda x, y: x.pad((1, 2), value=3.0) + 1,
        ["constant_pad_nd.default", "add.Scalar"],
    ),
}


@pytest.mark.parametrize("name", JOINS)
def test_joins(name):
    function, ops = JOINS[name]
    imported = check(function, tensor(2, 5), tensor(2, 5, seed=1))
    assert [n.op.removeprefix("aten.") for n in imported.graph.nodes] == ops


def test_writes_to_parts_of_a_state():
    grid = Tensor(np.zeros((4, 6), np.float32)).realize()

    def write(x):
        grid[1:3, 2:5].assign(x)
        grid[3:, :2].assign(x[:1, :2] * 2)
        return grid + 1

    imported = from_tinygrad(write, tensor(2, 3), weights={"grid": grid})
    assert [u.name for u in imported.graph.updates] == ["grid"]
    (got,) = run(imported, [tensor(2, 3)])
    assert_same(got, write(tensor(2, 3)).numpy(), 1e-6)


def test_a_long_range_is_counted_and_never_laid_out():
    length = 50_000  # its windows have 2.5 billion elements
    table = Tensor(np.zeros((length, 4), np.float32)).realize()
    imported = from_tinygrad(lambda i: table[i], integers([7, 0]), weights={"table": table})
    assert imported.report.recovered == {"embedding": 1}


@pytest.mark.parametrize(("factor", "exact"), [(1 / np.log(2), True), (1.442696, False)])
def test_numbers_of_formulas_are_exact(factor, exact):
    imported = check(lambda x: (x * float(factor)).exp2(), tensor(3, 5))
    ops = {node.op for node in imported.graph.nodes}
    assert ("aten.exp.default" in ops) == exact


def test_the_sign_of_nan_stays_what_it_is():
    imported = check(lambda x: x.sign(), tensor(3, 5))
    assert "aten.sign.default" not in {node.op for node in imported.graph.nodes}

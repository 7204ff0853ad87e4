"""fuse_norms: a product takes the norm before it, where the target does that.

Of few rows always; of many rows, where another product is before the norm.
"""

import pytest

from npusim.ops.fused import NO_EPILOGUE
from npusim.passes.fuse_norms import fuse_norms
from npusim.targets import TargetConfig

CUDA = TargetConfig.named("cuda:sm_90a")


def normed(draft, rows=1, eps=1e-6, weight=True):
    x = draft.x(rows, 8)
    scale = draft.w(8, name="scale") if weight else None
    attrs = {"normalized_shape": (8,), "eps": eps}
    return x, draft.call("aten.rms_norm.default", x, scale, **attrs)


def linear(draft, x, residual=None):
    w, bias = draft.w(6, 8, name="w"), draft.w(6, name="bias")
    attrs = NO_EPILOGUE if residual is None else {**NO_EPILOGUE, "residual": 1}
    return draft.call("npu.linear", x, w, bias, residual, **attrs)


def test_with_an_epilogue(draft, check_pass):
    _, norm = normed(draft)
    y = linear(draft, norm, draft.x(1, 6, name="r"))
    check_pass(fuse_norms, draft.graph(y), CUDA)


def test_of_a_gated_product(draft, check_pass):
    _, norm = normed(draft)
    y = draft.call("npu.gated_linear", norm, draft.w(12, 8, name="w"), None, act="silu")
    check_pass(fuse_norms, draft.graph(y), CUDA)


@pytest.mark.parametrize("change", ["rows", "no_eps", "no_weight", "read_twice"])
def test_what_stays(draft, check_pass, change):
    options = {"rows": {"rows": 2}, "no_eps": {"eps": None}, "no_weight": {"weight": False}}
    _, norm = normed(draft, **options.get(change, {}))
    y = linear(draft, norm)
    more = [draft.call("aten.exp.default", norm)] if change == "read_twice" else []
    check_pass(fuse_norms, draft.graph(y, *more), CUDA)


@pytest.mark.parametrize(("rows", "fused"), [(1, True), (4, True), (5, False)])
def test_of_as_many_rows_as_the_target_normalises(draft, rows, fused):
    metal = TargetConfig.named("metal")
    graph = draft.graph(linear(draft, normed(draft, rows)[1]))
    assert (fuse_norms(graph, metal) is not graph) == fused
    assert fuse_norms(graph, metal.with_arch("apple4")) is not graph or not fused


def between(draft, rows=20, dtype="bfloat16", width=16, read=False, act="copy"):
    """A product of many rows, a norm, and another product."""
    x, residual = draft.x(rows, 8, dtype=dtype), draft.x(rows, width, dtype=dtype, name="r")
    w, scale = draft.w(width, 8, dtype=dtype), draft.w(width, dtype=dtype, name="scale")
    attrs = {**NO_EPILOGUE, "residual": 1, "act": act}
    y = draft.call("npu.linear", x, w, None, residual, **attrs)
    norm = draft.call("aten.rms_norm.default", y, scale, normalized_shape=(width,), eps=1e-6)
    up = draft.w(12, width, dtype=dtype, name="up")
    z = draft.call("npu.linear", norm, up, None, None, **NO_EPILOGUE)
    return draft.graph(z, y, *([norm] if read else []))


def test_between_products_of_many_rows(draft, check_pass):
    check_pass(fuse_norms, between(draft), CUDA)


@pytest.mark.parametrize(
    "change",
    [{"rows": 16}, {"dtype": "float16"}, {"dtype": "float32"}, {"width": 12}, {"read": True}],
    ids=["few_rows", "float16", "float32", "odd_rows", "read_twice"],
)
def test_what_stays_between_products(draft, change):
    graph = between(draft, **change)
    assert fuse_norms(graph, CUDA) is graph


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_architectures_whose_products_leave_no_norm(draft, arch):
    graph = between(draft)
    assert fuse_norms(graph, CUDA.with_arch(arch)) is graph


def test_a_target_without_such_a_kernel(draft, cpu):
    _, norm = normed(draft)
    graph = draft.graph(linear(draft, norm))
    assert fuse_norms(graph, cpu) is graph

"""center_pooled: channel shifts leave pooled 16-bit floats that 1x1 convolutions read."""

from dataclasses import replace

import pytest

from npusim.passes.canonicalize_conv import canonicalize_conv
from npusim.passes.center_pooled import center_pooled
from npusim.passes.run import run_passes

NORM = {"training": False, "momentum": 0.1, "eps": 1e-3, "cudnn_enabled": True}
POOL = {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1),
        "ceil_mode": False}  # fmt: skip


def centered(graph, target):
    return center_pooled(canonicalize_conv(graph, target), target)


def pooled(draft, dtype="float16"):
    kind = {"dtype": dtype}
    y = draft.call("aten.conv2d.default", draft.x(1, 3, 8, 8, **kind),
                   draft.w(4, 3, 3, 3, **kind), None)  # fmt: skip
    vectors = [draft.w(4, name=n, **kind) for n in ("gamma", "beta", "mean", "var")]
    y = draft.call("aten.batch_norm.default", y, *vectors, **NORM)
    return draft.call("aten.max_pool2d.default", draft.call("aten.relu.default", y), **POOL)


def point(draft, x, bias=True, **options):
    size = options.pop("size", 1)
    weight = draft.w(5, 4, size, size, dtype=draft.types[x].dtype)
    bias = draft.w(5, dtype=draft.types[x].dtype) if bias else None
    return draft.call("aten.conv2d.default", x, weight, bias, **options)


def test_two_readers(draft, check_pass):
    y = pooled(draft)
    strided = point(draft, y, bias=False, stride=(2, 2))
    check_pass(centered, draft.graph(point(draft, y), strided))


@pytest.mark.parametrize("why", ["windows", "padding", "another reader", "a result", "float32"])
def test_what_needs_the_shift_keeps_it(draft, cpu, why):
    y = pooled(draft, "float32" if why == "float32" else "float16")
    size, padding = 3 if why == "windows" else 1, (1, 1) if why == "padding" else (0, 0)
    results = [point(draft, y, size=size, padding=padding)]
    if why == "another reader":
        results.append(draft.call("aten.neg.default", y))
    if why == "a result":
        results.append(y)
    graph = canonicalize_conv(draft.graph(*results), cpu)
    assert center_pooled(graph, cpu) == graph


def test_the_shift_becomes_an_offset_of_the_convolution(draft, cpu):
    graph = run_passes(draft.graph(point(draft, pooled(draft))), cpu)
    first, pool, second = (n for n in graph.nodes if n.name not in graph.static_values)
    assert (first.op, pool.op, second.op) == ("npu.conv", "aten.max_pool2d.default", "npu.conv")
    assert graph.types[first.inputs[2]].shape == (3, 4) and first.attrs["act"] == "relu"


@pytest.mark.parametrize("vectors", [1, 2])
def test_a_target_whose_convolutions_take_no_offsets_keeps_the_shift(draft, cpu, vectors):
    target = replace(cpu, conv_vectors=vectors)
    graph = run_passes(draft.graph(point(draft, pooled(draft))), target)
    ranks = [
        graph.types[n.inputs[2]].shape
        for n in graph.nodes
        if n.op == "npu.conv" and n.name not in graph.static_values
    ]
    assert (
        max(shape[0] for shape in ranks if len(shape) == 2) == 2
        if vectors == 2
        else all(len(shape) == 1 for shape in ranks)
    )

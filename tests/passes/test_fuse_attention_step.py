"""fuse_attention_step: one op for a new token's attention, unless somebody looks in between."""

import pytest

from npusim.passes.fuse_attention_step import fuse_attention_step
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig

CUDA = TargetConfig.named("cuda:sm_90a")
ATTRS = {"interleaved": False, "rotary_dim": 16}
ATTENTION = {"scale": 0.25, "softcap": 0.0, "window": 0}


def build(draft, change=""):
    """Returns (attention, keys, values, queries)."""
    dtype = "float32" if change == "float32" else "bfloat16"
    length = 2 if change == "two_tokens" else 1

    def x(*shape, name):
        return draft.x(*shape, dtype=dtype, name=name)

    dim = 24 if change == "odd_heads" else 16
    attrs = {**ATTRS, "rotary_dim": dim}
    position = draft.x(1, dtype="int64", name="position")
    new = [x(1, heads, length, dim, name=name) for name, heads in (("q", 4), ("k", 2), ("v", 2))]
    angles = [x(1, length, dim, name=name) for name in ("cos", "sin")]
    caches = [x(1, 2, 32, dim, name=name) for name in ("k_cache", "v_cache")]
    q, keys, values = draft.call("npu.rope_append", *new, *angles, *caches, position, **attrs)
    if change == "read_between":
        draft.call("aten.exp.default", keys)
    at = draft.x(1, dtype="int64", name="other") if change == "position" else position
    y = draft.call("npu.cached_attention", q, keys, values, at, **ATTENTION)
    return y, keys, values, q


def test_caches_are_seen_outside(draft, check_pass):
    y, keys, values, _ = build(draft)
    check_pass(fuse_attention_step, draft.graph(y, keys, values), CUDA)


@pytest.mark.parametrize(
    "change", ["float32", "two_tokens", "odd_heads", "position", "read_between", "read_q"]
)
def test_what_stays(draft, change):
    y, keys, values, q = build(draft, change)
    graph = draft.graph(y, keys, values, *([q] if change == "read_q" else []))
    assert fuse_attention_step(graph, CUDA) is graph


def test_a_target_without_such_a_kernel(draft, cpu):
    y, keys, values, _ = build(draft)
    graph = draft.graph(y, keys, values)
    assert run_passes(graph, cpu, pipeline=(fuse_attention_step,)) is graph
    assert run_passes(graph, CUDA, pipeline=(fuse_attention_step,)) is not graph

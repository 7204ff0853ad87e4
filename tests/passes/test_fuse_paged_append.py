"""fuse_paged_append: one op prepares an attention over pages, unless somebody looks in between."""

import pytest

from npusim.passes.fuse_paged_append import fuse_paged_append
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig

CUDA = TargetConfig.named("cuda:sm_90a")
ATTRS = {"interleaved": False, "rotary_dim": 4}
ATTENTION = {"scale": 0.5, "softcap": 0.0, "window": 0}


def build(draft, change=""):
    """Returns (attention, turned q, turned k, keys, values)."""
    positions, requests = (draft.x(3, dtype="int64", name=n) for n in ("positions", "requests"))
    places = [positions, requests, draft.x(2, 4, dtype="int64", name="tables")]
    angles = [draft.x(1, 3, 4, name=name) for name in ("cos", "sin")]
    q = draft.call("npu.rope", draft.x(1, 4, 3, 6, name="q"), *angles, **ATTRS)
    others = [draft.x(1, 3, 4, name=f"{n}2") for n in "cs"] if change == "angles" else angles
    k = draft.call("npu.rope", draft.x(1, 2, 3, 6, name="k"), *others, **ATTRS)
    keys = draft.call("npu.paged_append", k, draft.x(5, 2, 16, 6, name="k_pool"), *places)
    v = draft.x(1, 2, 3, 6, name="v")
    at = [draft.x(3, dtype="int64", name="other"), *places[1:]] if change == "places" else places
    values = draft.call("npu.paged_append", v, draft.x(5, 2, 16, 6, name="v_pool"), *at)
    y = draft.call("npu.paged_attention", q, keys, values, *places, **ATTENTION)
    return y, q, k, keys, values


def test_pools_are_seen_outside(draft):
    y, _, _, keys, values = build(draft)
    fused, attention = fuse_paged_append(draft.graph(y, keys, values), CUDA).nodes
    assert fused.op == "npu.paged_rope_append" and attention.op == "npu.paged_attention"
    places = ("positions", "requests", "tables")
    assert fused.inputs == ("q", "k", "v", "cos", "sin", "k_pool", "v_pool", *places)
    assert attention.inputs == (*(value.name for value in fused.outputs), *places)
    assert [value.name for value in fused.outputs[1:]] == [keys, values]


@pytest.mark.parametrize("change", ["angles", "places", "read_q", "read_k"])
def test_what_does_not_belong_together_stays(draft, change):
    y, q, k, keys, values = build(draft, change)
    extra = {"read_q": [q], "read_k": [k]}.get(change, [])
    graph = draft.graph(y, keys, values, *extra)
    assert fuse_paged_append(graph, CUDA) is graph


def test_a_target_without_such_a_kernel(draft, cpu):
    y, _, _, keys, values = build(draft)
    graph = draft.graph(y, keys, values)
    assert run_passes(graph, cpu, pipeline=(fuse_paged_append,)) is graph
    assert run_passes(graph, CUDA, pipeline=(fuse_paged_append,)) is not graph

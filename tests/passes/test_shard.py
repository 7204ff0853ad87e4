"""shard: a model among ranks. Every rank's graph is run in turn (npusim.verify.ranks) and compared
with the whole one: of small integers exactly, of floats within the bound of sums in another order.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from npusim.errors import ShapeError, TargetConstraintError
from npusim.ir.graph import Graph
from npusim.ir.printer import format_graph
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.symbolic import symbol
from npusim.ir.types import TensorType
from npusim.ir.verify import verify_graph
from npusim.ops.check_types import check_types
from npusim.ops.reference import run_graph
from npusim.passes import PIPELINE
from npusim.passes.run import run_passes
from npusim.passes.shard import SHARD_BEFORE, Sharded, shard
from npusim.targets.target_config import TargetConfig
from npusim.verify.ranks import RankedRun

CPU = TargetConfig.named("cpu")
HALF = PIPELINE[: PIPELINE.index(SHARD_BEFORE)]


def spelled(graph: Graph, target: TargetConfig = CPU) -> Graph:
    return run_passes(graph, target, pipeline=HALF)


def sharded(graph: Graph, ranks: int, target: TargetConfig = CPU) -> Sharded:
    result = shard({"forward": spelled(graph, target)}, target, ranks)
    for one in result.methods.values():
        check_types(verify_graph(one))
    return result


def integers(type: TensorType, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(-2, 3, type.shape, generator=generator).to(getattr(torch, type.dtype))


def floats(type: TensorType, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(type.shape, generator=generator).to(getattr(torch, type.dtype))


def check(graph: Graph, ranks: int, make=integers, tolerance: float = 0.0) -> Sharded:
    """All ranks give what the whole graph gives, and the same bits."""
    result = sharded(graph, ranks)
    generator = torch.Generator().manual_seed(ranks)
    inputs = [make(v.type, generator) for v in graph.inputs]
    weights = {w.key: make(w.type, generator) for w in graph.weights}
    expected = run_graph(graph, inputs, weights)
    run = RankedRun(result.methods["forward"], ranks, inputs, weights)
    for rank in range(ranks):
        for own, first, whole in zip(run.outputs(rank), run.outputs(0), expected, strict=True):
            assert torch.equal(own, first)
            torch.testing.assert_close(own, whole, rtol=tolerance, atol=tolerance)
    return result


def linear(draft, x, n, *, bias=True, name="w"):
    k = draft.types[x].shape[-1]
    b = draft.w(n, name=f"{name}_bias") if bias else None
    return draft.call("aten.linear.default", x, draft.w(n, k, name=name), b)


def mlp(draft, widths=(8, 12, 8), rows=3, bias=True, act="aten.relu.default"):
    y = draft.x(rows, widths[0])
    for index, width in enumerate(widths[1:]):
        y = linear(draft, y, width, bias=bias, name=f"w{index}")
        if index + 2 < len(widths):
            y = draft.call(act, y)
    return draft.graph(y)


def attention(draft, heads=4, groups=2, size=8, rows=5, mask=False):
    """Queries, keys and values of one x, attention of grouped heads, and the projection after."""
    x = draft.x(1, rows, 16)

    def split(name, count):
        y = linear(draft, x, count * size, name=name)
        y = draft.call("aten.view.default", y, size=(1, rows, count, size))
        return draft.call("aten.permute.default", y, dims=(0, 2, 1, 3))

    hidden = draft.x(rows, rows, name="mask") if mask else None
    operands = split("q", heads), split("k", groups), split("v", groups)
    y = draft.call("aten.scaled_dot_product_attention.default", *operands, hidden, enable_gqa=True)
    y = draft.call("aten.permute.default", y, dims=(0, 2, 1, 3))
    y = draft.call("aten.view.default", y, size=(1, rows, heads * size))
    return draft.graph(linear(draft, y, 16, name="o"))


def test_mlp(draft, golden):
    result = check(mlp(draft), 2)
    assert result.split == {"w0": "rows", "w1": "columns"} and not result.whole
    golden(format_graph(result.methods["forward"]))


def test_attention_of_grouped_heads(draft, golden):
    result = check(attention(draft), 2, floats, 1e-5)
    assert set(result.split) == {"q", "k", "v", "o"}
    golden(format_graph(result.methods["forward"]))


def test_heads_of_keys_are_on_several_ranks_where_there_are_fewer(draft, golden):
    result = check(attention(draft), 4, floats, 1e-5)
    assert set(result.split) == {"q", "k", "v", "o"}
    golden(format_graph(result.methods["forward"]))


@pytest.mark.parametrize("ranks", [3, 8])
def test_heads_are_not_cut(draft, ranks):
    graph = attention(draft)
    try:
        whole = sharded(graph, ranks).whole
        assert any("would cut heads" in why or "no multiple" in why for why in whole.values())
    except TargetConstraintError as refused:
        assert "Nothing in this model can be split" in str(refused)


def test_a_head_is_gathered(draft, golden):
    x = draft.x(1, 32)
    result = check(draft.graph(linear(draft, x, 64, name="head")), 4)
    assert result.split == {"head": "rows, gathered"}
    golden(format_graph(result.methods["forward"]))


def test_a_head_of_several_tokens_is_gathered_along_its_columns(draft):
    x = draft.x(2, 3, 64)
    assert check(draft.graph(linear(draft, x, 64)), 2).split == {"w": "rows, gathered"}


def test_tied_embeddings_are_whole_for_lookups_and_in_parts_for_the_head(draft):
    table = draft.w(64, 32, name="table")
    tokens = draft.x(1, 1, dtype="int64", name="tokens")
    x = draft.call("aten.embedding.default", table, tokens)
    y = draft.call("aten.linear.default", x, table, None)

    def make(type, generator):
        if type.dtype == "int64":
            return torch.randint(0, 64, type.shape, generator=generator)
        return integers(type, generator)

    assert check(draft.graph(y), 2, make).split == {"table": "rows, gathered"}


def test_transposed_weights(draft):
    x = draft.x(3, 8)
    y = draft.call("aten.mm.default", x, draft.w(8, 12, name="a"))
    y = draft.call("aten.relu.default", y)
    result = check(draft.graph(draft.call("aten.mm.default", y, draft.w(12, 8, name="b"))), 3)
    assert result.split == {"a": "rows", "b": "columns"}


def test_residuals_and_gates(draft):
    x = draft.x(3, 8)
    gate = draft.call("aten.silu.default", linear(draft, x, 12, bias=False, name="gate"))
    y = draft.call("aten.mul.Tensor", gate, linear(draft, x, 12, bias=False, name="up"))
    y = draft.call("aten.add.Tensor", x, linear(draft, y, 8, bias=False, name="down"))
    result = check(draft.graph(y), 4, floats, 1e-5)
    assert result.split == {"gate": "rows", "up": "rows", "down": "columns"}


def test_a_result_within_a_region_keeps_it_whole(draft):
    x = draft.x(3, 8)
    hidden = draft.call("aten.relu.default", linear(draft, x, 12, name="a"))
    graph = draft.graph(linear(draft, hidden, 8, name="b"), hidden)
    with pytest.raises(TargetConstraintError, match="is a result, which callers get whole"):
        sharded(graph, 2)


def test_softmax_across_the_parts_keeps_it_whole(draft):
    x = draft.x(3, 8)
    hidden = draft.call("aten.softmax.int", linear(draft, x, 12, name="a"), dim=-1)
    with pytest.raises(TargetConstraintError, match=r"aten\.softmax\.int needs all"):
        sharded(draft.graph(linear(draft, hidden, 8, name="b")), 2)


def test_norm_across_the_parts_keeps_it_whole(draft):
    x = draft.x(3, 8)
    hidden = linear(draft, x, 12, name="a")
    norm = draft.call("aten.rms_norm.default", hidden, draft.w(12), normalized_shape=(12,))
    with pytest.raises(TargetConstraintError, match="needs all"):
        sharded(draft.graph(linear(draft, norm, 8, name="b")), 2)


def test_a_mask_of_all_heads_is_whole(draft):
    assert set(check(attention(draft, mask=True), 2, floats, 1e-5).split) == {"q", "k", "v", "o"}


def test_groups_of_codes_are_not_cut(draft):
    target = replace(CPU, weight_quantization="int4-g32")
    graph = mlp(draft, (64, 96, 64), rows=40)
    with pytest.raises(TargetConstraintError, match="2 parts of 96 columns would cut groups of 32"):
        sharded(graph, 2, target)
    assert sharded(graph, 3, target).split["w1"] == "columns"


@pytest.mark.parametrize("ranks", [0, 1, -1, 65])
def test_ranks_that_cannot_be(draft, ranks):
    with pytest.raises(TargetConstraintError, match="cannot be split among"):
        shard({"forward": mlp(draft)}, CPU, ranks)


@pytest.mark.parametrize("target", ["metal", "npu-edge-32x32"])
def test_targets_without_an_exchange(draft, target):
    with pytest.raises(TargetConstraintError, match=r"all_gather|not simulated"):
        shard({"forward": mlp(draft)}, TargetConfig.named(target), 2)


def test_sizes_that_do_not_divide_say_so(draft):
    with pytest.raises(TargetConstraintError, match="12 columns are no multiple of 5"):
        sharded(mlp(draft), 5)


def test_other_ranks_than_it_was_split_for(draft):
    graph = sharded(mlp(draft), 2).methods["forward"]
    weights = {w.key: torch.zeros(w.type.shape) for w in graph.weights}
    with pytest.raises(ShapeError, match="is of 2 ranks, and 3 run"):
        RankedRun(graph, 3, [torch.zeros(3, 8)], weights)


@pytest.mark.parametrize("seed", range(12))
def test_random_mlps(draft, seed):
    chance = random.Random(seed)
    ranks = chance.choice([2, 3, 4])
    widths = [4 * chance.randint(1, 3) * chance.choice([1, ranks]) for _ in range(5)]
    graph = mlp(draft, widths, rows=chance.randint(1, 3), bias=chance.random() < 0.5)
    try:
        check(graph, ranks)
    except TargetConstraintError as refused:
        assert "Nothing in this model" in str(refused)


@pytest.mark.parametrize("seed", range(8))
def test_random_attentions(draft, seed):
    chance = random.Random(seed)
    ranks, groups = chance.choice([2, 3, 4]), chance.choice([1, 2, 3, 4])
    heads = groups * chance.choice([1, 2, 3, 4])
    graph = attention(draft, heads, groups, chance.choice([4, 8]), rows=chance.randint(1, 4))
    try:
        result = check(graph, ranks, floats, 1e-5)
    except TargetConstraintError:
        result = None
    fits = heads % ranks == 0 and (groups % ranks == 0 or ranks % groups == 0)
    assert fits == (result is not None and result.split.get("o") == "columns")


def paged(draft, heads=4, groups=2, size=8, rows=6, page=4, rope=False, fused=False):
    """A step over pages: what makes queries, keys and values, their turn and append, attention of
    grouped heads over two requests, and the projection after."""
    x = draft.x(1, rows, 16)
    places = [
        draft.c([0, 1, 2, 0, 3, 1], "int64", "positions"),
        draft.c([0, 0, 0, 1, 0, -1], "int64", "requests"),
        draft.c([[3, 1], [0, -1]], "int64", "tables"),
    ]
    pools = []
    for name in ("keys", "values"):
        type = TensorType("float32", (5, groups, page, size))
        pools.append(draft._typed(draft.state(name, type), type))

    def split(name, count):
        y = linear(draft, x, count * size, name=name)
        y = draft.call("aten.view.default", y, size=(1, rows, count, size))
        return draft.call("aten.permute.default", y, dims=(0, 2, 1, 3))

    q, k, v = split("q", heads), split("k", groups), split("v", groups)
    angles = [draft.x(1, rows, size, name=name) for name in ("cos", "sin")]
    turned = {"interleaved": False, "rotary_dim": size}
    if fused:
        q, *left = draft.call("npu.paged_rope_append", q, k, v, *angles, *pools, *places, **turned)
    else:
        if rope:
            q, k = (draft.call("npu.rope", y, *angles, **turned) for y in (q, k))
        both = zip((k, v), pools, strict=True)
        left = [draft.call("npu.paged_append", y, pool, *places) for y, pool in both]
    for pool, value in zip(pools, left, strict=True):
        draft.update(pool, value)
    attrs = {"scale": 0.3, "softcap": 0.0, "window": 3}
    y = draft.call("npu.paged_attention", q, *left, *places, **attrs)
    y = draft.call("aten.permute.default", y, dims=(0, 2, 1, 3))
    y = draft.call("aten.view.default", y, size=(1, rows, heads * size))
    return draft.graph(linear(draft, y, 16, name="o"))


@pytest.mark.parametrize("way", [{}, {"rope": True}, {"fused": True}])
@pytest.mark.parametrize(("ranks", "held"), [(2, 1), (4, 1)])
def test_a_step_over_pages(draft, way, ranks, held):
    result = check(paged(draft, **way), ranks, floats, 1e-4)
    assert result.split == {"q": "rows", "k": "rows", "v": "rows", "o": "columns"}
    assert [s.type.shape for s in result.methods["forward"].states] == [(5, held, 4, 8)] * 2


@pytest.mark.parametrize("way", [{}, {"fused": True}])
@pytest.mark.parametrize(("heads", "groups", "ranks"), [(6, 2, 3), (4, 4, 8), (3, 3, 2), (2, 1, 4)])
def test_a_step_over_pages_cuts_no_heads(draft, way, heads, groups, ranks):
    graph = paged(draft, heads, groups, **way)
    with pytest.raises(TargetConstraintError, match="Nothing in this model can be split"):
        sharded(graph, ranks)


def test_sizes_that_calls_choose_are_not_split():
    tokens = symbol("tokens", 1, 9)
    b = GraphBuilder("test")
    x, k, n = (b.input("x", TensorType("float32", (tokens, 8))), 8, 16)

    def product(name, x, n, k, rows):
        weight = b.weight(name, TensorType("float32", (n, k)))
        type = TensorType("float32", (rows, n))
        return b.node("aten.linear.default", (x, weight, None), type)

    h = product("a", x, n, k, tokens)
    y = b.node("aten.view.default", (h,), TensorType("float32", (2 * tokens, 8)), {"size": (-1, 8)})
    b.output("first", product("b", h, 8, n, tokens))
    b.output("second", product("c", y, 8, 8, 2 * tokens))
    # b is not split as y is made of all of h; what is left are products by rows, gathered.
    assert set(sharded(b.build(), 4).split.values()) <= {"rows, gathered"}


def test_a_head_of_any_number_of_rows_is_gathered():
    rows = symbol("rows", 1, 256)
    b = GraphBuilder("test")
    x = b.input("x", TensorType("float32", (rows, 32)))
    weight = b.weight("head", TensorType("float32", (64, 32)))
    y = b.node("aten.linear.default", (x, weight, None), TensorType("float32", (rows, 64)))
    b.output("y", y)
    assert sharded(b.build(), 4).split == {"head": "rows, gathered"}

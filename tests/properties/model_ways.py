"""Ways to add what models call between the commonest operators, with neighbours to fuse with.

Resizing, pools of a fixed result, transposed convolutions, powers and remainders, selections by
numbers, writes into a part, splits, lookups, and products of batches. `random_graphs.py` draws
from them as from its own.
"""

from __future__ import annotations

from npusim.ir.graph import Attr
from tests.properties.drafts import Draft, kind_of

Call = tuple[str, dict[str, Attr]]
_NARROW = ("float16", "bfloat16")


def _apply(draft: Draft, name: str, call: Call, *others: str | None, exact: bool) -> None:
    op, attrs = call
    draft.add(f"aten.{op}", [name, *others], attrs, exact=exact)


def resized(draft: Draft) -> None:
    """Interpolation, pools whose result has a size, and padding by mirrors, of pictures."""
    found = draft.pick("f", least_rank=3)
    if found is None or found[1].rank > 4 or found[1].dtype == "float64" or 0 in found[1].shape:
        return
    name, type = found
    rank = type.rank - 2
    size = tuple(draft.random.choice((1, 2, 3, 5, 8)) for _ in range(rank))
    to: dict[str, Attr] = {"output_size": size, "scale_factors": None}
    if draft.random.random() < 0.5:
        to = {"output_size": None, "scale_factors": (2.0,) * rank}
    mode = ("linear1d", "bilinear2d")[rank - 1]
    corners: dict[str, Attr] = {"align_corners": draft.random.random() < 0.5}
    pad = tuple(draft.random.choice((0, 1, 2)) for _ in range(2 * rank))
    calls: list[tuple[Call, bool]] = [
        ((f"upsample_nearest{rank}d.vec", to), True),
        ((f"_upsample_nearest_exact{rank}d.vec", to), True),
        ((f"upsample_{mode}.vec", {**to, **corners}), False),
        ((f"adaptive_avg_pool{rank}d.default", {"output_size": size}), False),
        ((f"reflection_pad{rank}d.default", {"padding": pad}), True),
        ((f"replication_pad{rank}d.default", {"padding": pad}), True),
    ]
    if rank == 2:
        calls.append((("upsample_bicubic2d.vec", {**to, **corners}), False))
        calls.append((("pixel_shuffle.default", {"upscale_factor": 2}), True))
        calls.append((("channel_shuffle.default", {"groups": 2}), True))
    call, exact = draft.random.choice(calls)
    _apply(draft, name, call, exact=exact)


def transposed_convolution(draft: Draft) -> None:
    """Convolutions that enlarge, in groups or not, and instance norms."""
    found = draft.pick("f", least_rank=3)
    if found is None or found[1].rank > 4 or found[1].dtype == "float64" or 0 in found[1].shape:
        return
    name, type = found
    rank, channels = type.rank - 2, type.shape[1]
    if draft.random.random() < 0.3:
        vectors = [draft.fresh(type.dtype, [channels]) for _ in range(2)]
        attrs: dict[str, Attr] = {"use_input_stats": True, "momentum": 0.1, "eps": 1e-3}
        attrs["cudnn_enabled"] = False
        norm: Call = ("instance_norm.default", attrs)
        _apply(draft, name, norm, *vectors, None, None, exact=False)
        return
    groups = draft.random.choice([g for g in (1, 2, channels) if channels % g == 0])
    kernel = [draft.random.choice((1, 2, 3)) for _ in range(rank)]
    per_group = draft.random.choice((1, 2, 3))
    weight = draft.fresh(type.dtype, [channels, per_group, *kernel])
    bias = draft.fresh(type.dtype, [groups * per_group]) if draft.random.random() < 0.5 else None
    stride = draft.random.choice((1, 2, 3))
    attrs = {
        "stride": (stride,) * rank,
        "padding": tuple(draft.random.choice((0, 1)) for _ in range(rank)),
        "output_padding": (draft.random.randint(0, stride - 1),) * rank,
        "groups": groups,
        "dilation": (draft.random.choice((1, 1, 2)),) * rank,
    }
    op = "conv_transpose1d.default" if rank == 1 else "conv_transpose2d.input"
    _apply(draft, name, (op, attrs), weight, bias, exact=False)


def by_a_number(draft: Draft) -> None:
    """Powers, remainders, quotients, bounds and fills by a number."""
    found = draft.pick("fi", exact=True)
    if found is None or found[1].dtype in _NARROW:
        return  # they round their number: edge_graphs.py has them
    name, type = found
    number = draft.random.choice((2, 3, -2, 7))
    calls: list[Call] = [
        ("pow.Tensor_Scalar", {"exponent": draft.random.choice((0, 1, 2, 3))}),
        ("remainder.Scalar", {"other": number}),
        ("fmod.Scalar", {"other": number}),
        ("div.Scalar_mode", {"other": number, "rounding_mode": "floor"}),
        ("div.Scalar_mode", {"other": number, "rounding_mode": "trunc"}),
        ("leaky_relu.default", {"negative_slope": 0.25}),
        ("hardtanh.default", {"min_val": -1, "max_val": 1}),
        ("threshold.default", {"threshold": 1, "value": number}),
        ("clamp_min.default", {"min": -1}),
        ("clamp_max.default", {"max": 1}),
        ("full_like.default", {"fill_value": number}),
    ]
    call = draft.random.choice(calls)
    if call[0][:5] == "leaky" and kind_of(type.dtype) == "i":
        return
    _apply(draft, name, call, exact=call[0][:4] in ("clam", "hard", "thre", "full", "fmod"))


def by_another(draft: Draft) -> None:
    """Selections and mixtures of two or three tensors of one shape."""
    found = draft.pick("f")
    if found is None or found[1].dtype in _NARROW:
        return
    name, type = found
    other, mask = draft.fresh(type.dtype, type.shape), draft.fresh("bool", type.shape)
    calls: list[tuple[Call, tuple[str, ...], bool]] = [
        (("lerp.Scalar", {"weight": 0.25}), (other,), False),
        (("addcmul.default", {"value": 2}), (other, other), False),
        (("masked_fill.Scalar", {"value": 2}), (mask,), True),
        (("clamp.Tensor", {}), (other, other), True),
        (("copysign.Tensor", {}), (other,), False),
        (("fmin.default", {}), (other,), True),
    ]
    call, others, exact = draft.random.choice(calls)
    if call[0].startswith("copysign") and name not in draft.exact:
        return
    _apply(draft, name, call, *others, exact=exact)


def written_into(draft: Draft) -> None:
    """Writes into a part of a tensor, chosen by place or by indices."""
    found = draft.pick(least_rank=1)
    if found is None or 0 in found[1].shape:
        return
    name, type = found
    dim = draft.random.randrange(type.rank)
    size, shape = type.shape[dim], list(type.shape)
    count = draft.random.randint(1, size)
    part = draft.fresh(type.dtype, [*shape[:dim], count, *shape[dim + 1 :]])
    start = draft.random.randint(0, size - count)
    at: dict[str, Attr] = {"dim": dim, "start": start, "end": start + count, "step": 1}
    way = draft.random.randrange(5)
    if way == 0:
        _apply(draft, name, ("slice_scatter.default", at), part, exact=True)
    elif way == 1:
        row = draft.fresh(type.dtype, [*shape[:dim], *shape[dim + 1 :]])
        chosen: Call = ("select_scatter.default", {"dim": dim - type.rank, "index": start})
        _apply(draft, name, chosen, row, exact=True)
    elif way == 2:
        fill: Call = ("index_fill.int_Scalar", {"dim": dim, "value": 1})
        _apply(draft, name, fill, draft.indices((count,), size), exact=True)
    elif way == 3 and kind_of(type.dtype) != "b":
        add: Call = ("index_add.default", {"dim": dim, "alpha": 1})
        _apply(draft, name, add, draft.indices((count,), size), part, exact=False)
    elif type.dtype in ("float32", "int64"):
        places = [None] * dim + [draft.indices((1,), size)]
        values = draft.fresh(type.dtype, [1] * type.rank)
        put: dict[str, Attr] = {"indices": dim + 1, "accumulate": draft.random.random() < 0.5}
        exact = not put["accumulate"]
        _apply(draft, name, ("index_put.default", put), *places, values, exact=exact)


def taken_apart(draft: Draft) -> None:
    """Several results, other orders of dimensions, and rows looked up."""
    found = draft.pick(least_rank=1)
    if found is None:
        return
    name, type = found
    dim = draft.random.randrange(type.rank)
    size = type.shape[dim]
    first = draft.random.randint(0, size)
    calls: list[Call] = [
        ("split_with_sizes.default", {"split_sizes": (first, size - first), "dim": dim}),
        ("chunk.default", {"chunks": 2, "dim": dim - type.rank}),
        ("transpose.int", {"dim0": 0, "dim1": dim}),
        ("flatten.using_ints", {"start_dim": dim, "end_dim": -1}),
    ]
    if 0 < size <= 8:
        calls.append(("unbind.int", {"dim": dim}))
    if type.rank == 2 and type.shape[0]:
        rows = draft.indices((2, 3), type.shape[0])
        draft.add("aten.embedding.default", [name, rows], {}, exact=True)
        return
    _apply(draft, name, draft.random.choice(calls), exact=True)


def batched_product(draft: Draft) -> None:
    """Products of matrices, alone and in batches, with and without a sum."""
    found = draft.pick("f", least_rank=2)
    if found is None or found[1].rank > 3:
        return
    name, type = found
    *lead, rows, inner = type.shape
    columns = draft.random.choice((1, 2, 5, 17))
    other = draft.fresh(type.dtype, [*lead, inner, columns])
    if type.rank == 2:
        draft.add("aten.mm.default", [name, other], {}, exact=False)
    elif draft.random.random() < 0.5:
        draft.add("aten.bmm.default", [name, other], {}, exact=False)
    else:
        start = draft.fresh(type.dtype, [*lead, rows, columns])
        attrs: dict[str, Attr] = {"beta": 1, "alpha": draft.random.choice((1, 2))}
        draft.add("aten.baddbmm.default", [start, name, other], attrs, exact=False)


MODEL_WAYS = (
    *(resized, transposed_convolution, by_a_number, by_another),
    *(written_into, taken_apart, batched_product),
)

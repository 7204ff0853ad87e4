"""Random graphs: a table of ways to add a node to a draft, and the loop that draws from it.

Each way picks operands among the values there are, makes fresh ones where shapes have to fit, and
leaves it to the op's inference whether the result is legal.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from npusim.ir.graph import Attr, Graph
from npusim.ir.opdef import REGISTRY, find
from tests.properties.drafts import Draft, kind_of
from tests.properties.model_ways import MODEL_WAYS

DTYPES = ("float32",) * 6 + ("bfloat16", "float16", "float64", "int64", "int32", "int64", "bool")
_EXTENTS = (0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33)

# Ops of one exact element each; the others of one tensor round.
_EXACT = ("neg", "abs", "relu", "sign", "floor", "ceil", "round", "trunc", "isnan", "logical_not")
_JUMPS = ("sign", "floor", "ceil", "round", "trunc", "logical_not", "signbit", "isinf")
_BOUNDED = ("tan", "acosh", "asin", "acos", "atanh", "logit", "log", "log2", "log10", "rsqrt")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def random_graph(random: Random) -> Graph:
    """Returns a legal graph of one to nine nodes."""
    while True:
        draft = Draft(random)
        for _ in range(random.choice((1, 1, 2))):
            draft.fresh(random.choice(DTYPES), _shape(random, random.choice((0, 1, 2, 2, 3, 3, 4))))
        wanted = random.randint(1, 9)
        for _ in range(4 * wanted):
            if len(draft.nodes) < wanted:
                random.choice(WAYS)(draft)
        if draft.nodes:
            return draft.graph()


def _shape(random: Random, rank: int) -> list[int]:
    shape = [random.choice(_EXTENTS) for _ in range(rank)]
    if rank > 2:
        shape = [min(n, 8) for n in shape]
    return shape


def _unary_names() -> list[str]:
    """Returns the pointwise ops of one tensor that need nothing else."""
    find("aten.neg.default")
    chosen = []
    for name, op in REGISTRY.items():
        if op.scalar is None or not name.endswith(".default") or name.startswith("npu."):
            continue
        if op.cases and all(len(c.inputs) == 1 and not c.attrs for c in op.cases[:1]):
            chosen.append(name.split(".")[1])
    return sorted(chosen)


_UNARY = _unary_names()


def _pointwise(draft: Draft) -> None:
    name = draft.random.choice(_UNARY)
    found = draft.pick(exact=name in _JUMPS)
    if found is not None and name not in _BOUNDED:
        draft.add(f"aten.{name}.default", [found[0]], {}, exact=name in _EXACT)


def _partner(draft: Draft, name: str) -> str:
    """Returns a value that broadcasts with another: itself, one of the others, or a fresh one."""
    type = draft.type(name)
    others = [n for n, t in draft.values.items() if t.shape == type.shape]
    if draft.random.random() < 0.5:
        return draft.random.choice(others)
    shape = [n if draft.random.random() < 0.7 else 1 for n in type.shape]
    shape = shape[draft.random.randint(0, len(shape)) :] if draft.random.random() < 0.3 else shape
    dtype = type.dtype if draft.random.random() < 0.7 else draft.random.choice(DTYPES)
    return draft.fresh(dtype, shape)


def _binary(draft: Draft) -> None:
    found = draft.pick()
    if found is None:
        return
    operands = [found[0], _partner(draft, found[0])]
    draft.random.shuffle(operands)
    name = draft.random.choice(("add.Tensor", "sub.Tensor", "mul.Tensor", "maximum.default",
                                "minimum.default", "atan2.default", "div.Tensor", "fmax.default",
                                "hypot.default"))  # fmt: skip
    if name[:3] in ("div", "ata") and any(o not in draft.exact for o in operands):
        return  # 0 / 0, and the sign of 0, are matters of rounding
    attrs: dict[str, Attr] = {}
    if name in ("add.Tensor", "sub.Tensor"):
        attrs["alpha"] = draft.random.choice((1, 1, 2))
    draft.add(f"aten.{name}", operands, attrs, exact=name in ("maximum.default", "fmax.default"))


def _with_number(draft: Draft) -> None:
    found = draft.pick()
    if found is not None:
        number = draft.random.choice((0, 1, -2, 3))
        name = draft.random.choice(("add.Scalar", "mul.Scalar", "sub.Scalar", "rsub.Scalar"))
        attrs: dict[str, Attr] = {"other": number}
        if not name.startswith("mul"):
            attrs["alpha"] = 1
        draft.add(f"aten.{name}", [found[0]], attrs, exact=False)


def _comparison(draft: Draft) -> None:
    found = draft.pick(exact=True)
    if found is None:
        return
    name = draft.random.choice(_COMPARISONS)
    if draft.random.random() < 0.5:
        draft.add(f"aten.{name}.Scalar", [found[0]], {"other": 0}, exact=True)
        return
    other = _partner(draft, found[0])
    if other in draft.exact:
        draft.add(f"aten.{name}.Tensor", [found[0], other], {}, exact=True)


def _logical(draft: Draft) -> None:
    found = draft.pick("ib")
    if found is not None:
        other = _partner(draft, found[0])
        if other in draft.exact:
            name = draft.random.choice(("logical_and.default", "logical_or.default",
                                        "logical_xor.default", "bitwise_and.Tensor",
                                        "bitwise_xor.Tensor"))  # fmt: skip
            if "bitwise" not in name or kind_of(draft.type(other).dtype) != "f":
                draft.add(f"aten.{name}", [found[0], other], {}, exact=True)


def _where(draft: Draft) -> None:
    condition, found = draft.pick("b"), draft.pick()
    if condition is None or found is None:
        return
    other = _partner(draft, found[0])
    draft.add("aten.where.self", [condition[0], found[0], other], {}, exact=True)


def _clamp(draft: Draft) -> None:
    found = draft.pick("fi")
    if found is not None:
        draft.add("aten.clamp.default", [found[0]], {"min": -1, "max": 2}, exact=True)


def _cast(draft: Draft) -> None:
    found = draft.pick()
    if found is None:
        return
    dtype = draft.random.choice(DTYPES)
    jumps = kind_of(found[1].dtype) == "f" and kind_of(dtype) != "f"
    if not jumps or found[0] in draft.exact:
        draft.add("aten._to_copy.default", [found[0]], {"dtype": dtype}, exact=False)


def _view(draft: Draft) -> None:
    """Another shape of the same elements."""
    found = draft.pick()
    if found is None:
        return
    count, shape = found[1].numel, []
    for _ in range(draft.random.randint(0, 3)):
        divisors = [d for d in (1, 2, 3, 4, 5, 8) if count and count % d == 0]
        if not divisors:
            break
        shape.append(draft.random.choice(divisors))
        count //= shape[-1]
    shape.insert(draft.random.randint(0, len(shape)), count)
    draft.add("aten.view.default", [found[0]], {"size": tuple(shape)}, exact=True)


def _one_dim(draft: Draft) -> None:
    """Ops on one dimension that move elements or look at fewer."""
    found = draft.pick(least_rank=1)
    if found is None:
        return
    name, type = found
    dim = draft.random.randrange(type.rank)
    size = type.shape[dim]
    start, step = draft.random.randint(0, max(size, 1)), draft.random.choice((1, 1, 2, 3))
    signed = dim - type.rank if draft.random.random() < 0.5 else dim
    calls: list[tuple[str, dict[str, Attr]]] = [
        ("slice.Tensor", {"dim": signed, "start": start, "end": size, "step": step}),
        ("unsqueeze.default", {"dim": dim}),
        ("squeeze.dim", {"dim": signed}),
        ("flip.default", {"dims": (dim,)}),
        ("roll.default", {"shifts": (start,), "dims": (dim,)}),
        ("split.Tensor", {"split_size": max(1, (size + 1) // 2), "dim": signed}),
        ("repeat.default", {"repeats": (2,) + (1,) * (type.rank - 1)}),
        ("constant_pad_nd.default", {"pad": (1, 2), "value": 1}),
    ]
    if size:
        calls.append(("select.int", {"dim": signed, "index": min(start, size - 1)}))
        calls.append(("unfold.default", {"dimension": dim, "size": (size + 1) // 2, "step": step}))
        index = draft.indices((draft.random.randint(0, 4),), size)
        op, attrs = draft.random.choice([*calls, ("index_select.default", {"dim": signed})])
        operands = [name, index] if op.startswith("index") else [name]
        draft.add(f"aten.{op}", operands, attrs, exact=True)
        return
    op, attrs = draft.random.choice(calls)
    draft.add(f"aten.{op}", [name], attrs, exact=True)


def _permute(draft: Draft) -> None:
    found = draft.pick(least_rank=2)
    if found is not None:
        dims = list(range(found[1].rank))
        draft.random.shuffle(dims)
        draft.add("aten.permute.default", [found[0]], {"dims": tuple(dims)}, exact=True)


def _expand(draft: Draft) -> None:
    found = draft.pick()
    if found is not None:
        shape = [n if n != 1 else draft.random.choice((1, 2, 5)) for n in found[1].shape]
        lead = [draft.random.choice((1, 2, 3))] if draft.random.random() < 0.4 else []
        draft.add("aten.expand.default", [found[0]], {"size": (*lead, *shape)}, exact=True)


def _join(draft: Draft) -> None:
    found = draft.pick(least_rank=1)
    if found is None:
        return
    dim = draft.random.randrange(found[1].rank)
    shape = list(found[1].shape)
    shape[dim] = draft.random.choice((0, 1, 2, 5))
    name = draft.random.choice(("cat", "stack"))
    if name == "stack":
        shape = list(found[1].shape)
    other = draft.fresh(found[1].dtype, shape)
    attrs: dict[str, Attr] = {"tensors": 2, "dim": dim}
    draft.add(f"aten.{name}.default", [found[0], other], attrs, exact=True)


def _triangle(draft: Draft) -> None:
    found = draft.pick(least_rank=2)
    if found is not None:
        name = draft.random.choice(("tril", "triu"))
        attrs: dict[str, Attr] = {"diagonal": draft.random.randint(-2, 2)}
        draft.add(f"aten.{name}.default", [found[0]], attrs, exact=True)


def _reduction(draft: Draft) -> None:
    found = draft.pick()
    if found is None:
        return
    rank = found[1].rank
    dims = tuple(d for d in range(rank) if draft.random.random() < 0.5)
    keep = draft.random.random() < 0.5
    name = draft.random.choice(
        ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "any.dims", "all.dims",
         "var.correction", "logsumexp.default", "prod.default", "linalg_vector_norm.default")
    )  # fmt: skip
    if name[:3] in ("any", "all") and found[0] not in draft.exact:
        return
    if name == "prod.default" and found[1].dtype in ("float16", "bfloat16"):
        return  # PyTorch rounds every product
    attrs: dict[str, Attr] = {"dim": dims, "keepdim": keep}
    if name == "prod.default":
        attrs = {}
    if name == "var.correction":
        attrs["correction"] = 0
    if name == "linalg_vector_norm.default":
        attrs["ord"] = draft.random.choice((1, 2))
    draft.add(f"aten.{name}", [found[0]], attrs, exact=False)


def _along(draft: Draft) -> None:
    """Softmax, scans and sorts along one dimension."""
    found = draft.pick("fi", least_rank=1)
    if found is None:
        return
    dim = draft.random.randrange(found[1].rank)
    name = draft.random.choice(("softmax.int", "log_softmax.int", "cumsum.default",
                                "argmax.default", "sort.stable", "max.dim"))  # fmt: skip
    attrs: dict[str, Attr] = {"dim": dim}
    if name in ("argmax.default", "max.dim"):
        attrs["keepdim"] = False
    if name == "sort.stable":
        attrs |= {"stable": True, "descending": draft.random.random() < 0.5}
    jumps = name in ("argmax.default", "sort.stable", "max.dim")
    if not jumps or found[0] in draft.exact:
        draft.add(f"aten.{name}", [found[0]], attrs, exact=jumps)


def _product(draft: Draft) -> None:
    found = draft.pick("f", least_rank=1)
    if found is None:
        return
    name, type = found
    inner, n = type.shape[-1], draft.random.choice((1, 3, 16, 17))
    way = draft.random.randrange(4)
    if way == 0:
        bias = draft.fresh(type.dtype, [n]) if draft.random.random() < 0.5 else None
        operands = [name, draft.fresh(type.dtype, [n, inner]), bias]
        draft.add("aten.linear.default", operands, {}, exact=False)
    elif way == 1:
        lead = [m for m in type.shape[:-2] if draft.random.random() < 0.5]
        operands = [name, draft.fresh(type.dtype, [*lead, inner, n])]
        draft.add("aten.matmul.default", operands, {}, exact=False)
    elif way == 2 and type.rank == 2:
        operands = [draft.fresh(type.dtype, [n]), name, draft.fresh(type.dtype, [inner, n])]
        draft.add("aten.addmm.default", operands, {}, exact=False)
    else:
        norm = draft.random.choice(("layer_norm", "rms_norm"))
        weight = draft.fresh(type.dtype, [inner]) if draft.random.random() < 0.5 else None
        bias = [None] if norm == "layer_norm" else []
        attrs: dict[str, Attr] = {"normalized_shape": (inner,), "eps": 1e-3}
        draft.add(f"aten.{norm}.default", [name, weight, *bias], attrs, exact=False)


def _window(draft: Draft) -> None:
    """Convolutions and pools over one or two spatial dimensions."""
    found = draft.pick("f", least_rank=3)
    if found is None or found[1].rank > 4 or found[1].dtype == "float64":
        return
    name, type = found
    rank = type.rank - 2
    kernel = tuple(draft.random.choice((1, 2, 3)) for _ in range(rank))
    stride = tuple(draft.random.choice((1, 1, 2)) for _ in range(rank))
    if draft.random.random() < 0.5:
        pool = draft.random.choice(("max_pool", "avg_pool"))
        attrs: dict[str, Attr] = {"kernel_size": kernel, "stride": stride}
        draft.add(f"aten.{pool}{rank}d.default", [name], attrs, exact=pool == "max_pool")
        return
    channels = type.shape[1]
    groups = channels if channels and draft.random.random() < 0.3 else 1
    out = groups * draft.random.choice((1, 2, 3))
    weight = draft.fresh(type.dtype, [out, channels // max(groups, 1), *kernel])
    bias = draft.fresh(type.dtype, [out]) if draft.random.random() < 0.5 else None
    padding = tuple(draft.random.choice((0, 1)) for _ in range(rank))
    attrs = {"stride": stride, "padding": padding, "dilation": (1,) * rank, "groups": groups}
    draft.add(f"aten.conv{rank}d.default", [name, weight, bias], attrs, exact=False)


def _gather(draft: Draft) -> None:
    found = draft.pick(least_rank=1)
    if found is None:
        return
    name, type = found
    dim = draft.random.randrange(type.rank)
    if not type.shape[dim]:
        return
    shape = [draft.random.randint(1, max(1, n)) if n else 0 for n in type.shape]
    way = draft.random.choice(("gather", "scatter_add", "index"))
    if way == "gather":
        index = draft.indices(shape, type.shape[dim])
        draft.add("aten.gather.default", [name, index], {"dim": dim}, exact=True)
    elif way == "scatter_add" and kind_of(type.dtype) != "b":
        index = draft.indices(shape, type.shape[dim])
        source = draft.fresh(type.dtype, shape)
        draft.add("aten.scatter_add.default", [name, index, source], {"dim": dim}, exact=False)
    else:
        index = draft.indices(_shape(draft.random, draft.random.randint(0, 2)), type.shape[dim])
        operands: list[str | None] = [name, *(None,) * dim, index]
        draft.add("aten.index.Tensor", operands, {"indices": dim + 1}, exact=True)


def _norm(draft: Draft) -> None:
    """Norms over channels, and batch norm, which a convolution may take in."""
    found = draft.pick("f", least_rank=2)
    if found is None or found[1].dtype == "float64" or not found[1].shape[1]:
        return
    name, type = found
    channels = type.shape[1]
    if draft.random.random() < 0.5:
        vectors = [draft.fresh(type.dtype, [channels]) for _ in range(3)]
        spread = draft.fresh(type.dtype, [channels])
        if not draft.add("aten.exp.default", [spread], {}, exact=False):
            return
        variance = draft.nodes[-1].outputs[0].name
        attrs: dict[str, Attr] = {
            "training": False,
            "momentum": 0.1,
            "eps": 1e-3,
            "cudnn_enabled": False,
        }
        draft.add("aten.batch_norm.default", [name, *vectors, variance], attrs, exact=False)
        return
    groups = draft.random.choice([g for g in (1, 2, 3, 4) if channels % g == 0])
    weight = draft.fresh(type.dtype, [channels]) if draft.random.random() < 0.5 else None
    attrs = {"num_groups": groups, "eps": 1e-3, "cudnn_enabled": False}
    draft.add("aten.group_norm.default", [name, weight, None], attrs, exact=False)


def _attention(draft: Draft) -> None:
    found = draft.pick("f", exact=True, least_rank=4)  # PyTorch's fused kernel makes 0 of NaN
    if found is None or found[1].dtype == "float64" or 0 in found[1].shape:
        return
    name, type = found
    batch, heads, _, width = type.shape[-4:]
    if type.rank != 4:
        return
    length = draft.random.choice((1, 3, 8))
    keys, values = (draft.fresh(type.dtype, [batch, heads, length, width]) for _ in range(2))
    mask = draft.fresh("bool", [type.shape[2], length]) if draft.random.random() < 0.2 else None
    attrs: dict[str, Attr] = {"dropout_p": 0.0, "is_causal": False, "scale": None}
    attrs["enable_gqa"] = False
    op = "aten.scaled_dot_product_attention.default"
    draft.add(op, [name, keys, values, mask], attrs, exact=False)


def _rare(draft: Draft) -> None:
    """Ops that models seldom call."""
    found = draft.pick(exact=True, least_rank=1)
    if found is None:
        return
    name, type = found
    dim = draft.random.randrange(type.rank)
    least = min(type.shape)
    calls: list[tuple[str, dict[str, Attr]]] = [
        ("cummax.default", {"dim": dim}),
        ("cummin.default", {"dim": dim}),
        ("as_strided.default", {"size": (2, least), "stride": (0, 1), "storage_offset": 0}),
        ("diagonal.default", {"offset": draft.random.randint(-1, 1)}),
        ("pixel_unshuffle.default", {"downscale_factor": 2}),
        ("signbit.default", {}),
        ("round.decimals", {"decimals": 1}),
        ("bitwise_left_shift.Tensor_Scalar", {"other": 2}),
    ]
    op, attrs = draft.random.choice(calls)
    draft.add(f"aten.{op}", [name], attrs, exact="round" not in op)


def _reduced_into(draft: Draft) -> None:
    """scatter_reduce with and without the elements that are there."""
    found = draft.pick("fi", least_rank=1)
    if found is None:
        return
    name, type = found
    dim = draft.random.randrange(type.rank)
    if not type.shape[dim]:
        return
    shape = [draft.random.randint(1, max(1, n)) if n else 0 for n in type.shape]
    index = draft.indices(shape, type.shape[dim])
    source = draft.fresh(type.dtype, shape)
    reduce = draft.random.choice(("sum", "amax", "amin", "mean"))
    if reduce == "mean" and kind_of(type.dtype) == "i":
        return
    attrs: dict[str, Attr] = {"dim": dim, "reduce": reduce}
    attrs["include_self"] = draft.random.random() < 0.5
    draft.add("aten.scatter_reduce.two", [name, index, source], attrs, exact=False)


Way = Callable[[Draft], None]
WAYS: tuple[Way, ...] = (
    *(_pointwise, _pointwise, _pointwise, _binary, _binary, _binary, _with_number, _comparison),
    *(_logical, _where, _clamp, _cast, _view, _one_dim, _one_dim, _one_dim, _permute, _expand),
    *(_join, _triangle, _reduction, _reduction, _along, _product, _product, _window, _gather),
    *(_window, _norm, _attention, _rare, _reduced_into),
    *MODEL_WAYS,
)

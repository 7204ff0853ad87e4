"""Linears, matmuls, convolutions and attention for graphs of edge values, in 32 and 16 bits.

Owns how they are drawn; `edge_bounds.py` says what they are and how far off results may be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.ir.graph import Attr, Constant
from npusim.ir.types import TensorType
from tests.properties.drafts import Draft

_DTYPES = ("float32", "float16", "bfloat16")
_DEPTHS = (1, 3, 8, 17, 40)
_ROWS = (1, 3, 9)
_COLUMNS = (1, 4, 17)


def linear(draft: Draft) -> None:
    """A linear, with and without a bias, and with what an epilogue takes up."""
    random, dtype = draft.random, draft.random.choice(_DTYPES)
    k, n = random.choice(_DEPTHS), random.choice(_COLUMNS)
    rows = random.choice(_ROWS)
    x, weight = draft.fresh(dtype, (rows, k)), draft.fresh(dtype, (n, k))
    bias = draft.fresh(dtype, (n,)) if random.random() < 0.5 else None
    _add(draft, "linear.default", [x, weight, bias], {})
    _epilogue(draft, dtype, (rows, n))


def matmul(draft: Draft) -> None:
    """Of two computed tensors, of a batch at times."""
    random, dtype = draft.random, draft.random.choice(_DTYPES)
    batch = (2,) * random.randrange(2)
    m, k, n = random.choice(_ROWS), random.choice(_DEPTHS), random.choice(_COLUMNS)
    operands = [draft.fresh(dtype, (*batch, m, k)), draft.fresh(dtype, (*batch, k, n))]
    _add(draft, "matmul.default", operands, {})
    _epilogue(draft, dtype, (*batch, m, n))


def convolution(draft: Draft) -> None:
    """Over one or two dimensions, of so few channels that nobody takes Winograd's algorithm."""
    random, dtype = draft.random, draft.random.choice(_DTYPES)
    rank, groups = random.choice((1, 2)), random.choice((1, 1, 3))
    size, outputs = (5,) * rank, 3 if groups == 3 else random.choice((1, 4, 17))
    window = random.choice((1, 3))
    x = draft.fresh(dtype, (1, 3, *size))
    weight = draft.fresh(dtype, (outputs, 3 // groups, *(window,) * rank))
    bias = draft.fresh(dtype, (outputs,)) if random.random() < 0.5 else None
    attrs: dict[str, Attr] = {
        "padding": (random.randrange(2) if window == 3 else 0,) * rank,
        "stride": (random.choice((1, 2)),) * rank,
        "dilation": (1,) * rank,
        "groups": groups,
    }
    _add(draft, f"conv{rank}d.default", [x, weight, bias], attrs)


def _add(
    draft: Draft,
    name: str,
    operands: Sequence[str | None],
    attrs: dict[str, Attr],
    *,
    exact: bool = False,
) -> str:
    """Adds a node that the op takes, and returns its result's name."""
    assert draft.add(f"aten.{name}", operands, attrs, exact=exact), (name, operands, attrs)
    return draft.nodes[-1].outputs[0].name


def _epilogue(draft: Draft, dtype: str, shape: tuple[int, ...]) -> None:
    """Adds what moves or joins a result without enlarging its error: a bound, a sum, a sign."""
    way = draft.random.randrange(5)
    value = draft.nodes[-1].outputs[0].name
    if way == 0:
        _add(draft, "relu.default", [value], {}, exact=True)
    elif way == 1:
        _add(draft, "clamp.default", [value], {"min": -1.0, "max": 6.0}, exact=True)
    elif way == 2:
        _add(draft, "add.Tensor", [value, draft.fresh(dtype, shape)], {"alpha": 1})


def attention(draft: Draft) -> None:
    """As the operator: with no mask, one of bools or of floats, a causal one, or shared keys."""
    random, dtype = draft.random, draft.random.choice(_DTYPES)
    heads = random.choice((1, 2, 4))
    groups = random.choice((1, heads))
    q, k, v = _operands(draft, dtype, heads, groups)
    queries, keys = draft.type(q).shape[2], draft.type(k).shape[2]
    attrs: dict[str, Attr] = {"dropout_p": 0.0}
    attrs |= {"enable_gqa": True} if groups != heads else {}
    attrs |= {"scale": random.choice((0.5, 1.0, 2.0))} if random.random() < 0.5 else {}
    way, mask = random.randrange(4), None
    if way == 1:
        attrs["is_causal"] = True
    elif way == 2:
        mask = draft.fresh("bool", (queries, keys))
    elif way == 3:
        mask = _mask(draft, dtype, queries, keys)
    _add(draft, "scaled_dot_product_attention.default", [q, k, v, mask], attrs)


def written_attention(draft: Draft) -> None:
    """As softmax(q·kᵀ · s + mask)·v."""
    random, dtype = draft.random, draft.random.choice(_DTYPES)
    q, k, v = _operands(draft, dtype, 2, 2)
    queries, keys = draft.type(q).shape[2], draft.type(k).shape[2]

    turned = _add(draft, "transpose.int", [k], {"dim0": -2, "dim1": -1}, exact=True)
    scores = _add(draft, "matmul.default", [q, turned], {})
    if random.random() < 0.7:
        scale = random.choice((0.125, 0.5, 0.3))
        scores = _add(draft, "mul.Scalar", [scores], {"other": scale})
    if random.random() < 0.6:
        mask = _mask(draft, dtype, queries, keys)
        scores = _add(draft, "add.Tensor", [scores, mask], {"alpha": 1})
    weights = _add(draft, "softmax.int", [scores], {"dim": -1})
    _add(draft, "matmul.default", [weights, v], {})


def _operands(draft: Draft, dtype: str, heads: int, groups: int) -> tuple[str, str, str]:
    """Returns queries, keys and values: few or many queries, so that both kernels run."""
    random = draft.random
    size = random.choice((1, 5, 16))
    queries, keys = random.choice((1, 3, 12)), random.choice((1, 4, 17))
    q = draft.fresh(dtype, (1, heads, queries, size))
    k, v = (draft.fresh(dtype, (1, groups, keys, size)) for _ in range(2))
    return q, k, v


def _mask(draft: Draft, dtype: str, queries: int, keys: int) -> str:
    """Returns a mask of floats: any numbers, or a constant that hides the future."""
    if draft.random.random() < 0.5:
        return draft.fresh(dtype, (queries, keys))
    hides = draft.random.choice((-np.inf, -1e4, -30.0))
    data = np.triu(np.full((queries, keys), hides, np.float32), 1)
    data[np.tril_indices(queries, 0, keys)] = 0.0
    name = f"c{len(draft.constants)}"
    if dtype == "bfloat16":
        stored = (data.view(np.uint32) >> 16).astype(np.uint16)
    else:
        stored = data.astype(dtype)
    type = TensorType(dtype, (queries, keys))
    draft.constants.append(Constant(name, type, stored.tobytes()))
    return name

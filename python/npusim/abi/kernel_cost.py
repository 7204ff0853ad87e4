"""What a command moves and computes, by its kernel's parameters: bytes of each operand, operations.

The yardstick for achieved rates, so it counts what the kernel's definition in `abi/kernels.py`
needs, not what an implementation does: every element that is read or written counts once, however
often a kernel goes there, and a broadcast one counts once, too. A multiplication with an addition
is two operations, any function of a scalar one. Products count their definition's operations also
where zeros of a padding are multiplied, and where an algorithm (Winograd's) needs fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, prod

from npusim.abi.cost_rules import Cost, Rule, distinct, size_of, window_of
from npusim.abi.kernels import RANK, Params
from npusim.abi.matmul_cost import MATMULS
from npusim.ir.types import CODE_SIZES

_RESIZE_TAPS = {0: 0, 1: 8, 2: 16, 3: 0}


@dataclass(frozen=True, slots=True)
class KernelCost:
    """What one call of a kernel costs at least.

    Attributes:
        operand_bytes: of each operand, in order: what is read of it, or written to it.
        operations: of arithmetic on elements; none of addresses.
    """

    operand_bytes: tuple[int, ...]
    operations: int


def kernel_cost(stem: str, params: Params, position: int | None = None) -> KernelCost:
    """Returns the cost of a call of a kernel.

    Args:
        stem: a key of `KERNELS`.
        params: its fields.
        position: what the operand `position` of a kernel that has one holds; None when unknown:
            then the whole cache counts.
    """
    operand_bytes, operations = _RULES[stem](params, position)
    return KernelCost(tuple(operand_bytes), operations)


def _pointwise(p: Params, _: int | None) -> Cost:
    shape = p["shape"]
    strides = [p["x_strides"][i * RANK : (i + 1) * RANK] for i in range(p["n_inputs"])]
    inputs = [
        distinct(shape, s) * CODE_SIZES[code]
        for s, code in zip(strides, p["x_dtype"], strict=False)
    ]
    written = distinct(shape, p["y_strides"]) * size_of(p, "y")
    return [*inputs, written], p["n_instructions"] * prod(shape)


def _copy(p: Params, _: int | None) -> Cost:
    return [_reached(p, name) * p["element_size"] for name in "xy"], 0


def _fill(p: Params, _: int | None) -> Cost:
    return [_reached(p, "y") * p["element_size"]], 0


def _reached(p: Params, name: str) -> int:
    """Returns the elements of an operand; sizes behind `rank` may be zeros as well as ones.

    Windows that overlap are read where they lie: there are no more elements than places.
    """
    shape, strides = p["shape"][: p["rank"]], p[f"{name}_strides"][: p["rank"]]
    places = 1 + sum((n - 1) * abs(stride) for n, stride in zip(shape, strides, strict=True))
    return min(distinct(shape, strides), places)


def _reduce(p: Params, _: int | None) -> Cost:
    rank, reduced = p["rank"], p["reduced_rank"]
    out, inner = p["shape"][:rank], p["reduced"][:reduced]
    strides = (*p["x_strides"][:rank], *p["reduced_strides"][:reduced])
    read = distinct((*out, *inner), strides) * size_of(p, "x")
    return [read, prod(out) * size_of(p, "y")], prod(out) * prod(inner)


def _softmax(p: Params, _: int | None) -> Cost:
    n = p["outer"] * p["size"] * p["inner"]
    operations = 5 * n  # maximum, difference, exponential, sum, quotient
    return [n * size_of(p, "x"), n * size_of(p, "y")], operations


def _norm(p: Params, _: int | None) -> Cost:
    n = p["rows"] * p["size"]
    return _normalised(p, n, p["size"], 5 if p["kind"] == 0 else 3)


def _group_norm(p: Params, _: int | None) -> Cost:
    n = p["batch"] * p["channels"] * p["spatial"]
    return _normalised(p, n, p["channels"], 5 + (p["act"] != 0))


def _normalised(p: Params, n: int, affine: int, each: int) -> Cost:
    flags = p["has_weight"] + p["has_bias"]
    weights = [affine * size_of(p, "w")] * flags
    return [n * size_of(p, "x"), *weights, n * size_of(p, "y")], n * (each + flags)


def _pool(p: Params, _: int | None) -> Cost:
    x, y, taps = window_of(p)
    indices = [8 * y] * p["has_indices"]
    operations = max(x, y) if p["adaptive"] else y * taps
    return [x * size_of(p, "x"), y * size_of(p, "y"), *indices], operations


def _indexed(p: Params) -> tuple[int, list[int]]:
    """Returns how many elements move, and the bytes of each index."""
    shape, size = p["shape"], size_of(p, "idx")
    strides = [p["idx_strides"][i * RANK : (i + 1) * RANK] for i in range(p["n"])]
    return prod(shape), [distinct(shape, s) * size for s in strides]


def _index(p: Params, _: int | None) -> Cost:
    count, indices = _indexed(p)
    return [count * p["element_size"], *indices, count * p["element_size"]], 0


def _scatter(p: Params, _: int | None) -> Cost:
    count, indices = _indexed(p)
    size = CODE_SIZES[p["dtype"]]
    source = distinct(p["shape"], p["src_strides"]) * size
    # Items that meet move an element of y once.
    places = distinct(p["shape"], p["y_strides"]) * abs(prod(p["k_size"][: p["n"]]))
    return [source, *indices, min(count, places) * size], count if p["mode"] else 0


def _resize(p: Params, _: int | None) -> Cost:
    planes = p["batch"] * p["channels"]
    x, y = planes * prod(p["in_size"]), planes * prod(p["out_size"])
    return [x * size_of(p, "x"), y * size_of(p, "y")], 2 * y * _RESIZE_TAPS[p["mode"]]


def _scan(p: Params, _: int | None) -> Cost:
    n = p["outer"] * p["size"] * p["inner"]
    return [n * size_of(p, "x"), n * size_of(p, "y")], n


def _sort(p: Params, _: int | None) -> Cost:
    rows, size = p["outer"] * p["inner"], p["size"]
    each = CODE_SIZES[p["dtype"]]
    compared = rows * size * ceil(log2(size)) if size > 1 else 0
    return [rows * size * each, rows * p["k"] * each, rows * p["k"] * 8], compared


def _sample(p: Params, _: int | None) -> Cost:
    return [p["size"] * CODE_SIZES[p["dtype"]], 40, 8, 8, 8, p["capacity"] * 8, 8], p["size"]


def _all_gather(p: Params, _: int | None) -> Cost:
    return [p["bytes"], p["bytes"] * p["ranks"]], 0


def _all_reduce(p: Params, _: int | None) -> Cost:
    bytes = p["elements"] * CODE_SIZES[p["dtype"]]
    return [bytes] * (2 + p["residual"]), p["elements"] * (p["ranks"] - 1 + p["residual"])


_RULES: dict[str, Rule] = {
    "pointwise": _pointwise,
    "copy": _copy,
    "fill": _fill,
    "reduce": _reduce,
    "softmax": _softmax,
    "norm": _norm,
    "group_norm": _group_norm,
    "pool": _pool,
    "index": _index,
    "scatter": _scatter,
    "resize": _resize,
    "scan": _scan,
    "sort": _sort,
    "sample": _sample,
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    **MATMULS,
}

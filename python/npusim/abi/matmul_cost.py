"""Costs of the kernels that multiply, and of those that prepare their weights."""

from __future__ import annotations

from math import prod

from npusim.abi.cost_rules import Cost, Rule, distinct, size_of, window_of
from npusim.abi.kernels import PHASED, Params
from npusim.abi.quantization import FORMATS, Quantization, quantized_bytes
from npusim.abi.scalar import OPCODES
from npusim.ir.types import CODE_SIZES

_PANEL = 16  # columns of a packed matrix that lie together
_BOUNDS = (OPCODES["copy"][0], OPCODES["relu"][0])  # activations of bytes that take no floats
_FORMAT_NAMES = {code: name for name, code in FORMATS.items()}


def _epilogue(p: Params, outputs: int, bias: int) -> tuple[list[int], int]:
    """Returns the bytes of bias and residual, where there are any, and the operations."""
    operands = [4 * bias * p["has_bias"]] if p["has_bias"] else []
    if p["residual"]:
        operands.append(outputs * size_of(p, "r"))
    steps = p["has_bias"] + bool(p["residual"]) + (p["act"] != 0)
    return operands, outputs * steps


def _panels(n: int) -> int:
    return -(-n // _PANEL) * _PANEL


def _pack_b(p: Params, _: int | None) -> Cost:
    depth = p["groups"] * p["taps"] * p["channels"]
    return [depth * p["n"] * size_of(p, "x"), depth * _panels(p["n"]) * size_of(p, "y")], 0


def _gemm(p: Params, _: int | None) -> Cost:
    m, n, k = p["m"], p["n"], p["k"]
    more, operations = _epilogue(p, m * n, n)
    packed = k * _panels(n) * size_of(p, "b")
    return [
        m * k * size_of(p, "x"),
        packed,
        *more,
        m * n * size_of(p, "y"),
    ], 2 * m * n * k + operations


def _convolved(p: Params, weight_bytes: int, products: int) -> Cost:
    x, y, _ = window_of(p)
    more, operations = _epilogue(p, y, p["out_channels"])
    operands = [x * size_of(p, "x"), weight_bytes, *more, y * size_of(p, "y")]
    return operands, 2 * products + operations


def _conv(p: Params, _: int | None) -> Cost:
    x, y, taps = window_of(p)
    groups = p["groups"]
    channels, n = p["in_channels"] // groups, p["out_channels"] // groups
    packed = groups * _panels(n) * taps * channels * size_of(p, "w")
    if p["transposed"] == PHASED:
        return _phased(p, packed, y * taps * channels)
    return _convolved(p, packed, x * taps * n if p["transposed"] else y * taps * channels)


def _phased(p: Params, weight_bytes: int, products: int) -> Cost:
    """The cost of all phases, of which one is given."""
    count = prod(p["stride"])
    (x, *others), operations = _convolved(p, weight_bytes, products)
    shared = p["has_bias"] > 0  # by the phases
    vectors, others = others[1 : 1 + shared], [others[0], *others[1 + shared :]]
    weights, *results = (count * size for size in others)
    return [x, weights, *vectors, *results], count * operations


def _conv_depthwise(p: Params, _: int | None) -> Cost:
    _, y, taps = window_of(p)
    return _convolved(p, taps * p["out_channels"] * size_of(p, "w"), y * taps)


def _transformed(p: Params, n: int, channels: int) -> int:
    return 4 * (p["tile"] + 2) ** 2 * _panels(n) * channels


def _conv_winograd(p: Params, _: int | None) -> Cost:
    _, y, taps = window_of(p)
    channels = p["in_channels"]
    return _convolved(p, _transformed(p, p["out_channels"], channels), y * taps * channels)


def _winograd_weights(p: Params, _: int | None) -> Cost:
    n, channels = p["n"], p["channels"]
    return [9 * n * channels * size_of(p, "x"), _transformed(p, n, channels)], 0


def _matmul(p: Params, _: int | None) -> Cost:
    batch, m, n, k = p["batch"], p["m"], p["n"], p["k"]
    size = CODE_SIZES[p["dtype"]]
    a = distinct((*batch, m, k), (*p["a_batch"], p["a_m"], p["a_k"]))
    b = distinct((*batch, k, n), (*p["b_batch"], p["b_k"], p["b_n"]))
    y = prod(batch) * m * n
    return [a * size, b * size, y * size], 2 * y * k + (p["alpha"] != 1) * y


def _widening_matmul(p: Params, _: int | None) -> Cost:
    (a, b, y), operations = _matmul(p, None)
    return [a, b, 2 * y], operations


def _grouped_matmul(p: Params, _: int | None) -> Cost:
    """As if every row belonged to a group, and to as many groups as there can be."""
    m, n, k, size = p["m"], p["n"], p["k"], CODE_SIZES[p["dtype"]]
    groups = p["batch"][5]
    operands = [m * k * size, min(groups, m) * k * n * size, 4 * groups, m * n * size]
    return operands, 2 * m * n * k + (p["alpha"] != 1) * m * n


def _attention(p: Params, position: int | None) -> Cost:
    size, queries, keys = CODE_SIZES[p["dtype"]], p["q_len"], p["kv_len"]
    offset = p["causal_offset"]
    if p["has_position"]:
        offset = max(keys - queries, 0) if position is None else position
        keys = min(keys, offset + queries)
    ends = [min(keys, i + 1 + offset) if p["causal"] else keys for i in range(queries)]
    starts = [
        max(0, i + 1 + offset - p["window"]) if p["window"] > 0 else 0 for i in range(queries)
    ]
    pairs = sum(max(0, end - start) for start, end in zip(starts, ends, strict=True))
    seen = max(0, max(ends, default=0) - min(starts, default=0))
    heads, cache = p["batch"] * p["heads"], (p["batch"], p["kv_heads"], seen)
    asked = distinct((p["batch"], p["heads"], queries), p["q_strides"])
    operands = [
        asked * p["head_dim"] * size,
        distinct(cache, p["k_strides"]) * p["head_dim"] * size,
        distinct(cache, p["v_strides"]) * p["v_dim"] * size,
    ]
    if p["has_mask"]:
        shape = (p["batch"], p["heads"], queries, keys)
        operands.append(distinct(shape, p["mask_strides"]) * size_of(p, "mask"))
    operands += [8] * p["has_position"]
    operands.append(heads * queries * p["v_dim"] * size)
    each = 2 * (p["head_dim"] + p["v_dim"]) + 5 + p["has_mask"] + 2 * (p["softcap"] > 0)
    return operands, heads * pairs * each


def _attention_step(p: Params, position: int | None) -> Cost:
    size, heads, groups = (
        CODE_SIZES[p["dtype"]],
        p["batch"] * p["heads"],
        p["batch"] * p["kv_heads"],
    )
    seen = p["limit"] if position is None else min(position + 1, p["limit"])
    seen = min(seen, p["window"]) if p["window"] > 0 else seen
    dims = p["head_dim"], p["v_dim"]
    new = [heads * dims[0] * size, *(groups * dim * size for dim in dims)]
    tables = [
        distinct((p["batch"],), (stride,)) * p["rotary_dim"] * size_of(p, "cs")
        for stride in p["cs_strides"]
    ]
    caches = [groups * seen * dim * size for dim in dims]
    operands = [*new, *tables, 8, *caches, heads * dims[1] * size]
    each = 2 * sum(dims) + 5 + 2 * (p["softcap"] > 0)
    return operands, heads * seen * each + 3 * (heads + groups) * p["rotary_dim"]


def _paged_attention(p: Params, _: int | None) -> Cost:
    """As if every row saw all keys of a table of its own, as far as there are pages."""
    size, rows, dims = CODE_SIZES[p["dtype"]], p["length"], (p["head_dim"], p["v_dim"])
    keys = p["table_length"] * p["page_tokens"]
    seen = min(p["pages"], p["requests"] * p["table_length"]) * p["page_tokens"]
    caches = [p["kv_heads"] * seen * dim * size for dim in dims]
    vectors = [p["heads"] * rows * dim * size for dim in dims]
    pairs = rows * (min(keys, p["window"]) if p["window"] > 0 else keys)
    each = 2 * sum(dims) + 5 + 2 * (p["softcap"] > 0)
    operands = [vectors[0], *caches, *_places(p), vectors[1]]
    return operands, p["heads"] * pairs * each


def _paged_append(p: Params, _: int | None) -> Cost:
    heads, size = p["heads"] * p["head_dim"], CODE_SIZES[p["dtype"]]
    room = p["pages"] * p["page_tokens"]
    return [heads * p["length"] * size, *_places(p), heads * min(p["length"], room) * size], 0


def _paged_rope_append(p: Params, _: int | None) -> Cost:
    size, rows = CODE_SIZES[p["dtype"]], p["length"]
    kept = min(rows, p["pages"] * p["page_tokens"])
    q, k, v = (
        p[heads] * p[dim] * size
        for heads, dim in (("heads", "head_dim"), ("kv_heads", "head_dim"), ("kv_heads", "v_dim"))
    )
    tables = [
        distinct((rows,), (stride,)) * p["rotary_dim"] * size_of(p, "cs")
        for stride in p["cs_strides"]
    ]
    operands = [q * rows, k * rows, v * rows, *tables, *_places(p), q * rows, k * kept, v * kept]
    return operands, 3 * rows * (p["heads"] + p["kv_heads"]) * p["rotary_dim"]


def _places(p: Params) -> list[int]:
    """Returns the bytes of positions, requests and tables."""
    return [8 * p["length"], 8 * p["length"], 8 * p["requests"] * p["table_length"]]


def _rope(p: Params, _: int | None) -> Cost:
    rows, parts = p["batch"] * p["length"], p["parts"]
    vectors = [rows * heads for heads in p["heads"][:parts]]
    sizes = [
        count * dim * CODE_SIZES[p["dtype"]]
        for count, dim in zip(vectors, p["head_dim"], strict=False)
    ]
    angles = [
        distinct((p["batch"], p["length"]), p["cs_strides"][at : at + 2]) * p["rotary_dim"]
        for at in (0, 2)
    ]
    turned = sum(count for count, turns in zip(vectors, p["rotate"], strict=False) if turns)
    tables = [count * size_of(p, "cs") for count in angles]
    return [*sizes, *tables, *([8] * p["has_position"]), *sizes], 3 * turned * p["rotary_dim"]


def _linear(p: Params, _: int | None) -> Cost:
    segments = [rows * p["k"] * size_of(p, "w") for rows in p["rows"][: p["segments"]]]
    return _multiplied(p, segments)


def _normed_linear(p: Params, _: int | None) -> Cost:
    m, k = p["m"], p["k"]
    operands, operations = _normed_operands(p, k * size_of(p, "w"))
    return operands, operations + 4 * m * k


def _recurrent_step(p: Params, _: int | None) -> Cost:
    m, units, k, size = p["m"], p["units"], p["k"], CODE_SIZES[p["dtype"]]
    gates, others, formula = _CELLS[p["cell"]]
    sums, state = gates * m * units, m * units * size
    more = [4 * gates * units] * p["has_bias"] + [sums * size] * p["has_addend"]
    operations = 2 * sums * k + sums * (p["has_bias"] + p["has_addend"]) + formula * m * units
    return [m * k * size, gates * units * k * size, *more, *[state] * others], operations


def _recurrence(p: Params, _: int | None) -> Cost:
    steps, m, units, size = p["steps"], p["m"], p["units"], CODE_SIZES[p["dtype"]]
    gates, _, formula = _CELLS[p["cell"]]
    sums, state = steps * gates * m * units, m * units * size
    cells = [state] * (p["cell"] == 2)
    bias = [4 * gates * units] * p["has_bias"]
    operations = sums * (2 * units + 1 + p["has_bias"]) + steps * formula * m * units
    weight = gates * units * units * size
    return [sums * size, weight, *bias, state, *cells, steps * state, *cells], operations


# By the number of a recurrent step's cell: its gates, the tensors as large as a state beside x,
# and the operations on each unit of it.
_CELLS = ((1, 1, 1), (3, 2, 7), (4, 3, 9))


def _normed_quantized_linear(p: Params, _: int | None) -> Cost:
    m, k = p["m"], p["k"]
    operands, operations = _with_norm(_quantized_linear(p, None), p, k * size_of(p, "x"))
    return operands, operations + 4 * m * k


def _linear_before_norm(p: Params, _: int | None) -> Cost:
    operands, operations = _normed_operands(p, p["n"] * size_of(p, "w"))
    m, n = p["m"], p["n"]
    return [*operands, m * n * size_of(p, "y"), 4 * m * p["slots"]], operations + 3 * m * n


def _linear_behind_norm(p: Params, _: int | None) -> Cost:
    m, n, slots = p["m"], p["n"], p["slots"]
    operands, operations = _normed_operands(p, 4 * m * slots)
    return operands, operations + m * (slots + n * (1 + p["gated"]))


def _linear_rope_append(p: Params, _: int | None) -> Cost:
    both = {**p, "v_dim": p["head_dim"], "rotary_dim": p["head_dim"]}
    moved, turning = _paged_rope_append(both, None)
    (*operands, _), operations = _linear_behind_norm(p, None) if p["slots"] else _linear(p, None)
    return [*operands, *moved[3:]], operations + turning


def _normed_operands(p: Params, norm: int) -> Cost:
    """The cost of `linear`, with an operand of so many bytes after the weights."""
    return _with_norm(_linear(p, None), p, norm)


def _with_norm(product: Cost, p: Params, norm: int) -> Cost:
    operands, operations = product
    at = 1 + p["segments"]
    return [*operands[:at], norm, *operands[at:]], operations


def _quantized_linear(p: Params, _: int | None) -> Cost:
    scheme = Quantization(_FORMAT_NAMES[p["format"]], p["group"])
    segments = [quantized_bytes(scheme, rows, p["k"]) for rows in p["rows"][: p["segments"]]]
    return _multiplied(p, segments)


def _multiplied(p: Params, segments: list[int]) -> Cost:
    m, n, k, rows = p["m"], p["n"], p["k"], sum(p["rows"][: p["segments"]])
    more, operations = _epilogue(p, m * n, rows)
    operands = [m * k * size_of(p, "x"), *segments, *more, m * n * size_of(p, "y")]
    return operands, 2 * m * rows * k + operations + p["gated"] * m * n


def _token_mixing(p: Params, _: int | None) -> Cost:
    items, m, n, k = p["batch"], p["m"], p["n"], p["k"]
    more, operations = _epilogue(p, items * m * n, m)
    x, w = items * k * n * size_of(p, "x"), m * k * size_of(p, "w")
    return [x, w, *more, items * m * n * size_of(p, "y")], 2 * items * m * n * k + operations


def _quantize(p: Params, _: int | None) -> Cost:
    rows, k = p["rows"], p["k"]
    scheme = Quantization(_FORMAT_NAMES[p["format"]], p["group"])
    return [rows * k * size_of(p, "x"), quantized_bytes(scheme, rows, k)], 2 * rows * k


def _packed_int8(p: Params, columns: int, depth: int) -> int:
    """Returns the bytes of packed columns and of their sums."""
    whole = -(-columns // 64) * 64 if p["depthwise"] else _panels(columns)
    return p["groups"] * whole * (-(-depth // 4) * 4 + 4)


def _pack_int8(p: Params, _: int | None) -> Cost:
    depth = p["taps"] * p["channels"]
    return [p["groups"] * depth * p["n"], _packed_int8(p, p["n"], depth)], 0


def _conv_int8(p: Params, _: int | None) -> Cost:
    x, y, taps = window_of(p)
    groups, n = p["groups"], p["out_channels"]
    depth = taps if p["depthwise"] else taps * (p["in_channels"] // groups)
    makes_bytes = size_of(p, "y") == 1
    vectors = [p["has_x_zero"], p["w_zeros"], 4 * p["scales"]]
    vectors += [4 * n * p["has_sum_bias"], 4 * n * p["has_bias"]]
    if p["residual"]:
        vectors += [y * size_of(p, "r"), 20 * makes_bytes]
    elif makes_bytes and not p["requantization"]:
        vectors.append(4 * (p["act"] not in _BOUNDS))
    vectors.append(p["has_y_zero"])
    operands = [x, _packed_int8(p, n // groups, depth), *filter(None, vectors)]
    steps = (p["scales"] > 0) + p["has_sum_bias"] + p["has_bias"] + 2 * makes_bytes
    operations = 2 * depth + steps + (p["residual"] > 0) + (p["act"] != 0)
    return [*operands, y * size_of(p, "y")], y * operations


MATMULS: dict[str, Rule] = {
    "pack_b": _pack_b,
    "gemm": _gemm,
    "conv": _conv,
    "conv_depthwise": _conv_depthwise,
    "winograd_weights": _winograd_weights,
    "conv_winograd": _conv_winograd,
    "pack_int8": _pack_int8,
    "conv_int8": _conv_int8,
    "matmul": _matmul,
    "widening_matmul": _widening_matmul,
    "grouped_matmul": _grouped_matmul,
    "attention": _attention,
    "attention_step": _attention_step,
    "paged_attention": _paged_attention,
    "paged_append": _paged_append,
    "paged_rope_append": _paged_rope_append,
    "rope": _rope,
    "linear": _linear,
    "normed_linear": _normed_linear,
    "linear_before_norm": _linear_before_norm,
    "linear_behind_norm": _linear_behind_norm,
    "linear_rope_append": _linear_rope_append,
    "recurrence": _recurrence,
    "recurrent_step": _recurrent_step,
    "token_mixing": _token_mixing,
    "quantize": _quantize,
    "quantized_linear": _quantized_linear,
    "normed_quantized_linear": _normed_quantized_linear,
}

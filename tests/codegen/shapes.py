"""Commands of many shapes, without programs around them: what rules of config are tried on.

Sizes are drawn around those at which choices turn: powers of two and their neighbours, the sizes
of common models, few and many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from npusim.abi.kernels import KERNELS, MOST_NORMED_CODES, Params

FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2
_SILU = 34
_ROWS = (1, 2, 4, 5, 8, 9, 15, 16, 17, 31, 32, 64, 100, 128, 197, 512, 1024, 4096)
_WIDTHS = (8, 16, 64, 96, 128, 256, 768, 1000, 1536, 2048, 3072, 4096, 8192, 8960, 50257, 151936)
_SPACE = (1, 2, 3, 7, 8, 14, 16, 17, 28, 32, 56, 64, 112, 130, 224)
_CHANNELS = (1, 3, 4, 8, 16, 24, 32, 60, 64, 128, 256, 512, 1024, 2048)
_EXTENTS = (1, 2, 3, 16, 64, 100, 128, 129, 1000, 1024, 1025, 4096, 8192, 8193, 50000, 1 << 20)


def full(stem: str, given: dict[str, Any]) -> Params:
    """Returns all fields of a stem's parameters, 0 where nothing is given."""
    fields = KERNELS[stem].fields
    return {n: given.get(n, (0,) * count if count > 1 else 0) for n, _, count in fields}


def linear(draw: Random, stem: str) -> Params:
    """`linear` and its likes: of one matrix or three, gated or not."""
    m = 1 if stem == "normed_linear" else draw.choice(_ROWS)
    n, k = draw.choice(_WIDTHS), draw.choice(_WIDTHS[:-2])
    dtype = draw.choice((BFLOAT16, BFLOAT16, FLOAT16, FLOAT32))
    if stem.endswith("_norm"):
        dtype = BFLOAT16
    gated = int(stem != "linear_before_norm" and draw.random() < 0.3)
    rows, segments = ((n, n, 0, 0), 2) if gated else ((n, 0, 0, 0), 1)
    if not gated and n % 4 == 0 and draw.random() < 0.3:
        rows, segments = (n // 2, n // 4, n // 4, 0), 3
    given = {
        "m": m, "n": n, "k": k, "ldx": k, "ldy": n, "ldr": n, "rows": rows, "segments": segments,
        "ldw": tuple(k if r else 0 for r in rows), "x_dtype": dtype, "w_dtype": dtype,
        "y_dtype": dtype, "r_dtype": dtype, "has_bias": draw.randrange(2), "gated": gated,
        "residual": 0 if gated else draw.randrange(2), "act": _SILU * gated, "norm_eps": 1e-6,
        "slots": 2 * -(-n // 128),
    }  # fmt: skip
    names = {name for name, _, _ in KERNELS[stem].fields}
    return full(stem, {k: v for k, v in given.items() if k in names})


def quantized_linear(draw: Random, stem: str) -> Params:
    """`quantized_linear` of int8 and of int4 in groups, behind a norm or without."""
    m, n, k = draw.choice(_ROWS), draw.choice(_WIDTHS), draw.choice(_WIDTHS[:-2])
    normed = stem == "normed_quantized_linear"
    if normed:
        m, k = 1, min(k, MOST_NORMED_CODES)
    gated = draw.randrange(2)
    given = {
        "m": m, "n": n, "k": k, "ldx": k, "ldy": n, "rows": (n * (1 + gated), 0, 0, 0),
        "segments": 1, "gated": gated, "format": draw.choice((1, 2, 3)), "group": 32,
        "x_dtype": (dtype := draw.choice((BFLOAT16, FLOAT16 if normed else FLOAT32))),
        "y_dtype": dtype, **({"norm_eps": 1e-6} if normed else {}),
    }  # fmt: skip
    return full(stem, given)


def matmul(draw: Random, stem: str) -> Params:
    """`matmul` and `grouped_matmul`, b as it is or transposed."""
    m, n, k = draw.choice(_ROWS), draw.choice(_WIDTHS[:-2]), draw.choice(_WIDTHS[:-2])
    inside = draw.randrange(2)
    given = {
        "batch": (1, 1, 1, 1, 1, draw.choice((1, 2, 8, 12, 96))), "m": m, "n": n, "k": k,
        "a_m": k, "a_k": 1, "b_k": n if inside else 1, "b_n": 1 if inside else k, "y_m": n,
        "b_batch": (0, 0, 0, 0, 0, n * k), "alpha": 1.0,
        "dtype": draw.choice((BFLOAT16, FLOAT16, FLOAT32, 3, 4)),
    }  # fmt: skip
    return full(stem, given)


def attention(draw: Random, stem: str) -> Params:
    """`attention` over keys of its own, or over a cache; `attention_step`."""
    kv_heads, each = draw.choice((1, 2, 8, 12)), draw.choice((1, 2, 6, 16))
    q_len, kv_len = draw.choice(_ROWS), draw.choice(_EXTENTS[3:9])
    dim = draw.choice((16, 64, 80, 128, 256, 264))
    position = draw.randrange(2)
    given = {
        "batch": draw.choice((1, 2, 8)), "heads": kv_heads * each, "kv_heads": kv_heads,
        "q_len": q_len, "kv_len": kv_len, "limit": kv_len, "head_dim": dim, "v_dim": dim,
        "rotary_dim": dim, "causal": 1, "has_position": position, "scale": 0.125,
        "dtype": draw.choice((BFLOAT16, FLOAT16, FLOAT32)) if stem == "attention" else BFLOAT16,
    }  # fmt: skip
    names = {name for name, _, _ in KERNELS[stem].fields}
    return full(stem, {k: v for k, v in given.items() if k in names})


def conv(draw: Random, stem: str) -> Params:
    """`conv` in two dimensions, channels last: products, strides, groups, few channels."""
    batch, size, taps = draw.choice((1, 2, 8, 64)), draw.choice(_SPACE), draw.choice((1, 3, 5, 7))
    groups = draw.choice((1, 1, 1, 4, 32))
    x_channels, y_channels = (groups * draw.choice(_CHANNELS[:10]) for _ in range(2))
    stride = draw.choice((1, 2))
    out = (size + 2 * (taps // 2) - taps) // stride + 1
    dtype = draw.choice((BFLOAT16, FLOAT16, FLOAT32))
    y_strides = (out * out * y_channels, 1, 0, out * y_channels, y_channels)
    given = {
        "batch": batch, "in_channels": x_channels, "out_channels": y_channels,
        "in_size": (1, size, size), "out_size": (1, out, out), "kernel": (1, taps, taps),
        "stride": (1, stride, stride), "pad": (0, taps // 2, taps // 2), "dilation": (1, 1, 1),
        "x_strides": (size * size * x_channels, 1, 0, size * x_channels, x_channels),
        "y_strides": y_strides, "r_strides": y_strides, "groups": groups, "x_dtype": dtype,
        "w_dtype": dtype, "y_dtype": dtype, "r_dtype": dtype, "has_bias": draw.randrange(4),
        "residual": draw.randrange(2),
    }  # fmt: skip
    return full(stem, given)


def pool(draw: Random, stem: str) -> Params:
    """`pool` of windows of two, channels last."""
    batch, channels, out = draw.choice((1, 8, 64)), draw.choice(_CHANNELS), draw.choice(_SPACE)
    dtype = draw.choice((BFLOAT16, FLOAT32))
    given = {
        "batch": batch, "in_channels": channels, "out_channels": channels,
        "in_size": (1, 2 * out, 2 * out), "out_size": (1, out, out), "kernel": (1, 2, 2),
        "stride": (1, 2, 2), "dilation": (1, 1, 1), "x_dtype": dtype, "y_dtype": dtype,
        "x_strides": (4 * out * out * channels, 1, 0, 2 * out * channels, channels),
        "y_strides": (out * out * channels, 1, 0, out * channels, channels),
    }  # fmt: skip
    return full(stem, given)


def rows(draw: Random, stem: str) -> Params:
    """`softmax`, `norm`, `group_norm`, `scan`, `sort` and `sample`."""
    outer, size = draw.choice(_EXTENTS[:12]), draw.choice(_EXTENTS)
    given = {
        "outer": outer, "size": size, "inner": draw.choice((1, 1, 7, 5000)), "rows": outer,
        "x_row_stride": size, "y_row_stride": size, "batch": draw.choice((1, 8)), "groups": 32,
        "channels": 32 * draw.choice((1, 4, 16)), "spatial": draw.choice(_EXTENTS[:11]),
        "k": min(size, draw.choice((1, 5, 1 << 20))), "has_weight": 1, "eps": 1e-5,
        "capacity": 512,
    }  # fmt: skip
    dtype = draw.choice((BFLOAT16, FLOAT32))
    given |= dict.fromkeys(("x_dtype", "y_dtype", "w_dtype", "dtype"), dtype)
    names = {name for name, _, _ in KERNELS[stem].fields}
    return full(stem, {k: v for k, v in given.items() if k in names})


def reduce(draw: Random, stem: str) -> Params:
    """`reduce` along rows or across them."""
    outputs, elements = draw.choice(_EXTENTS), draw.choice(_EXTENTS)
    across = draw.randrange(2)
    given = {
        "op": draw.choice((0, 2, 7, 9, 14)), "rank": 1, "reduced_rank": 1,
        "shape": (outputs, *[1] * 7), "reduced": (elements, *[1] * 7),
        "x_strides": (1 if across else elements, *[0] * 7), "y_strides": (1, *[0] * 7),
        "reduced_strides": (outputs if across else 1, *[0] * 7),
    }  # fmt: skip
    return full(stem, given)


BUILDERS: dict[str, Callable[[Random, str], Params]] = {
    **dict.fromkeys(
        ("linear", "normed_linear", "linear_before_norm", "linear_behind_norm"), linear
    ),
    **dict.fromkeys(("quantized_linear", "normed_quantized_linear"), quantized_linear),
    **dict.fromkeys(("matmul", "grouped_matmul"), matmul),
    **dict.fromkeys(("attention", "attention_step"), attention),
    "conv": conv,
    "pool": pool,
    **dict.fromkeys(("softmax", "norm", "group_norm", "scan", "sort", "sample"), rows),
    "reduce": reduce,
}


def commands(stem: str, count: int) -> Iterator[Params]:
    """Yields the parameters of so many commands of a stem, always the same ones."""
    draw = Random(stem)
    for _ in range(count):
        yield BUILDERS[stem](draw, stem)

"""What a command is to a machine: loops, operands and their axes, by its kernel's parameters.

The bytes of operands are those that `abi/kernel_cost.py` counts. What a machine does of a kernel:
products and convolutions on its array, arithmetic on elements on its vector unit, the rest by DMA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, log2, prod

from npusim.abi.kernel_cost import kernel_cost
from npusim.abi.kernels import KERNELS, Params
from npusim.abi.scalar import OPCODES
from npusim.ir.types import DTYPE_NAMES, dtype_size
from npusim.schedule.schedule import AXES, Form, Sizes

_NAMES = {code: name for name, (code, *_) in OPCODES.items()}
_FIELDS = 6  # numbers of an instruction of a pointwise kernel
_COMPUTED_IN = ("x_dtype", "dtype")


@dataclass(frozen=True, slots=True)
class Part:
    """An operand: which axes it has, the bytes of all of it, and what of it lies side by side.

    Attributes:
        operand: its index in the command; -1: within the command alone.
        inner: the axis along which its elements lie side by side.
        halo_bytes: that neighbouring tiles along m share, of each of them.
    """

    operand: int
    role: str
    axes: str
    nbytes: int
    write: bool = False
    inner: str = "n"
    halo_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """What one schedule is chosen for.

    Attributes:
        vector: by scalar opcode, elements that pass the vector unit.
        whole_rows: n is not cut: what is computed of a row needs all of it.
        sums, addends: how many sums over lanes are made, and of how many elements each.
    """

    form: Form
    dtype: str
    sizes: Sizes
    parts: tuple[Part, ...]
    vector: Mapping[str, float] = field(default_factory=dict, hash=False)
    taps: int = 1
    whole_rows: bool = False
    sums: int = 0
    addends: int = 1


def works_of(stem: str, params: Params, position: int | None = None) -> tuple[Work, ...]:
    """Returns what a command does, in order; nothing of one that has no elements.

    Args:
        stem: a key of `KERNELS`.
        params: its kernel's fields.
        position: what the operand `position` holds, where a kernel has one; None: as if the whole
            cache were in use.
    """
    cost = kernel_cost(stem, params, position)
    if not any(cost.operand_bytes):
        return ()
    rule = _RULES.get(stem, _other)
    return rule(stem, params, list(cost.operand_bytes), cost.operations)


def product_work(m: int, n: int, k: int, dtype: str) -> Work:
    """Returns a product without a program: y[m, n] = x[m, k] · w[n, k]ᵀ, all of one dtype."""
    size = dtype_size(dtype)
    parts = (
        Part(0, "x", "mk", m * k * size, inner="k"),
        Part(1, "w", "nk", n * k * size, inner="k"),
        Part(2, "y", "mn", m * n * size, write=True),
    )
    return Work("product", dtype, Sizes(1, m, n, k), parts)


def conv_work(
    image: tuple[int, int, int],
    channels: int,
    kernel: tuple[int, int],
    dtype: str,
    stride: int = 1,
    padding: int = 0,
) -> Work:
    """Returns a convolution of one channels-last image without a program, all of one dtype.

    Args:
        image: channels, height and width.
        channels: that it makes.
        kernel: height and width; with the padding the image is no smaller.

    Raises:
        ValueError: a size is below 1, or the kernel larger than the padded image.
    """
    (k, height, width), size = image, dtype_size(dtype)
    if stride < 1 or padding < 0:
        raise ValueError("a stride is at least 1, and a padding not negative")
    out = [(a + 2 * padding - b) // stride + 1 for a, b in zip(image[1:], kernel, strict=True)]
    if min(*image, channels, *kernel, *out) < 1:
        raise ValueError("a size is below 1, or the kernel is larger than the padded image")
    taps, pixels = prod(kernel), prod(out)
    parts = (
        Part(
            *(0, "x", "mk", k * height * width * size),
            inner="k",
            halo_bytes=max(0, kernel[0] - stride) * width * k * size,
        ),
        Part(1, "w", "nk", channels * k * taps * size),
        Part(2, "y", "mn", pixels * channels * size, write=True),
    )
    return Work("conv", dtype, Sizes(1, pixels, channels, k), parts, taps=taps)


def _dtype(p: Params) -> str:
    """Returns what is computed with; of what only moves, the integers of its elements' size."""
    if "element_size" in p:
        return {1: "int8", 2: "int16", 4: "int32"}.get(p["element_size"], "int64")
    code = next((p[name] for name in _COMPUTED_IN if name in p), 0)
    return DTYPE_NAMES[code[0] if isinstance(code, tuple) else code]


def _epilogue(p: Params, outputs: int) -> dict[str, float]:
    vector: dict[str, float] = {}
    adds = bool(p.get("has_bias")) + bool(p.get("residual"))
    if adds:
        vector["add"] = float(adds * outputs)
    if act := p.get("act", 0):
        vector[_NAMES[act]] = float(outputs)
    if p.get("gated"):
        vector["mul"] = float(outputs)
    return vector


def _linear(stem: str, p: Params, nbytes: list[int], _: int) -> tuple[Work, ...]:
    """Matrices of a merged linear count as one, whose rows follow one another."""
    segments = p.get("segments", 1)
    rows = "rows" in p
    sizes = Sizes(1, p["m"], sum(p["rows"][:segments]) if rows else p["n"], p["k"])
    parts = [
        Part(0, "x", "mk", nbytes[0], inner="k"),
        Part(1, "w", "nk", sum(nbytes[1 : 1 + segments]), inner="k" if rows else "n"),
    ]
    at = 1 + segments
    if p["has_bias"]:
        parts.append(Part(at, "bias", "n", nbytes[at]))
        at += 1
    if p["residual"]:
        parts.append(Part(at, "residual", "mn", nbytes[at]))
    parts.append(Part(len(nbytes) - 1, "y", "mn", nbytes[-1], write=True))
    return (Work("product", _dtype(p), sizes, tuple(parts), _epilogue(p, p["m"] * p["n"])),)


def _matmul(stem: str, p: Params, nbytes: list[int], _: int) -> tuple[Work, ...]:
    sizes = Sizes(prod(p["batch"]), p["m"], p["n"], p["k"])
    size = dtype_size(_dtype(p))
    axes = [
        "b" + pair if nbytes[at] > size * sizes.of(pair[0]) * sizes.of(pair[1]) else pair
        for at, pair in enumerate(("mk", "nk"))
    ]
    parts = (
        Part(0, "x", axes[0], nbytes[0], inner="k"),
        Part(1, "w", axes[1], nbytes[1], inner="n" if p["b_n"] == 1 else "k"),
        Part(len(nbytes) - 1, "y", "bmn", nbytes[-1], write=True),
    )
    outputs = float(sizes.b * sizes.m * sizes.n)
    return (Work("product", _dtype(p), sizes, parts, {"mul": outputs} if p["alpha"] != 1 else {}),)


def _grouped_matmul(stem: str, p: Params, nbytes: list[int], _: int) -> tuple[Work, ...]:
    """Rows that are spread evenly over as many groups as there can be, each with its own matrix."""
    groups, size = min(p["batch"][5], p["m"]), dtype_size(_dtype(p))
    least, more = divmod(p["m"], groups)
    found: list[Work] = []
    for count, rows in ((more, least + 1), (groups - more, least)):
        moved = [count * size * n for n in (rows * p["k"], p["k"] * p["n"], rows * p["n"])]
        one = {**p, "batch": (count,), "m": rows}
        if count:
            found += _matmul(stem, one, [*moved[:2], nbytes[2], moved[2]], 0)
    return tuple(found)


def _conv(stem: str, p: Params, nbytes: list[int], _: int) -> tuple[Work, ...]:
    groups, outputs = p.get("groups", 1), p["batch"] * prod(p["out_size"])
    # A transposed convolution multiplies what comes in, tap by tap: nothing is there between.
    taps, pixels = prod(p["kernel"]), outputs
    if p.get("transposed"):
        pixels = p["batch"] * prod(p["in_size"])
    n, k = p["out_channels"] // groups, p["in_channels"] // groups
    if stem == "conv_int8" and p["depthwise"] and taps == 1:
        return _scaled_bytes(p, nbytes)
    depthwise = stem == "conv_depthwise" or bool(p.get("depthwise")) or k == n == 1 < groups
    if depthwise:
        sizes, form, axes = Sizes(1, pixels, p["out_channels"], 1), "depthwise", ("mn", "n", "mn")
    else:
        sizes, form = Sizes(groups, pixels, n, k), "conv"
        axes = ("bmk", "bnk", "bmn") if groups > 1 else ("mk", "nk", "mn")
    row = prod(p["in_size"][2:]) * p["in_channels"] * dtype_size(_dtype(p))
    reach = (p["kernel"][1] - 1) * p["dilation"][1] + 1  # rows of a window
    halo = max(0, reach - p["stride"][1]) * row
    parts = [
        Part(0, "x", axes[0], nbytes[0], inner="n" if depthwise else "k", halo_bytes=halo),
        Part(1, "w", axes[1], nbytes[1]),
    ]
    parts += [
        Part(at, "vector", "n", size) if size < nbytes[-1] else Part(at, "residual", axes[2], size)
        for at, size in enumerate(nbytes[2:-1], 2)
    ]
    parts.append(Part(len(nbytes) - 1, "y", axes[2], nbytes[-1], write=True))
    vector = _epilogue(p, outputs * p["out_channels"])
    if p.get("scales"):
        vector["mul"] = vector.get("mul", 0.0) + outputs * p["out_channels"]
        vector["round"] = float(outputs * p["out_channels"])
    return (Work(form, _dtype(p), sizes, tuple(parts), vector, taps),)  # type: ignore[arg-type]


def _scaled_bytes(p: Params, nbytes: list[int]) -> tuple[Work, ...]:
    """Bytes times a number each, which no array multiplies: sums and other quantizations."""
    count = p["batch"] * prod(p["out_size"]) * p["out_channels"]
    last = len(nbytes) - 1
    vector = {"mul": float(count), "round": float(count)}
    if added := bool(p["residual"]) + bool(p["has_sum_bias"] or p["has_bias"]):
        vector["add"] = float(added * count)
    parts = tuple(
        Part(at, "y" if at == last else "x", "m", size, write=at == last, inner="m")
        for at, size in enumerate(nbytes)
        if size
    )
    return (Work("elements", _dtype(p), Sizes(m=max(count, 1)), parts, vector),)


def _attention(stem: str, p: Params, nbytes: list[int], _: int) -> tuple[Work, ...]:
    at_k, at_v = (6, 7) if stem == "attention_step" else (1, 2)
    row = p["batch"] * p["kv_heads"] * p["head_dim"] * dtype_size(_dtype(p))
    keys = max(1, nbytes[at_k] // row)
    scores = Sizes(p["batch"] * p["heads"], p.get("q_len", 1), keys, p["head_dim"])
    return _attended(p, nbytes, scores, at_k, at_v)


def _paged_attention(stem: str, p: Params, nbytes: list[int], _: int) -> tuple[Work, ...]:
    """Each row sees pages of its own; heads that share keys are rows of one product."""
    keys = p["table_length"] * p["page_tokens"]
    keys = max(1, min(keys, p["window"]) if p["window"] > 0 else keys)
    shared = p["heads"] // p["kv_heads"]
    scores = Sizes(p["kv_heads"] * p["length"], shared, keys, p["head_dim"])
    return _attended(p, nbytes, scores, 1, 2)


def _attended(p: Params, nbytes: list[int], sizes: Sizes, at_k: int, at_v: int) -> tuple[Work, ...]:
    """Scores, their softmax and what they weigh: three parts that meet on the chip.

    Args:
        sizes: of the product that makes the scores.
        at_k, at_v: which operands keys and values are.
    """
    dtype = _dtype(p)
    count = sizes.b * sizes.m * sizes.n
    scores = Part(-1, "scores", "bmn", count * dtype_size(dtype), write=True)
    first = Work(
        "product",
        dtype,
        sizes,
        (
            Part(0, "x", "bmk", nbytes[0], inner="k"),
            Part(at_k, "w", "bnk", nbytes[at_k], inner="k"),
            *(Part(3, "mask", "bmn", nbytes[3]) for _ in range(p.get("has_mask", 0))),
            scores,
        ),
        {"mul": float(count)},
    )
    softmax = dict.fromkeys(("maximum", "sub", "exp", "add", "div"), float(count))
    rows = Sizes(1, sizes.b * sizes.m, sizes.n, 1)
    inside = Part(-1, "scores", "mn", scores.nbytes)
    second = Work(
        *("rows", dtype, rows, (inside,), softmax),
        whole_rows=True,
        sums=2 * rows.m,
        addends=rows.n,
    )
    third = Work(
        "product",
        dtype,
        Sizes(sizes.b, sizes.m, p["v_dim"], sizes.n),
        (
            Part(-1, "x", "bmk", scores.nbytes, inner="k"),
            Part(at_v, "w", "bnk", nbytes[at_v]),
            Part(len(nbytes) - 1, "y", "bmn", nbytes[-1], write=True),
        ),
    )
    return first, second, third


def _pointwise(stem: str, p: Params, nbytes: list[int], _: int) -> tuple[Work, ...]:
    count = max(1, prod(p["shape"]))
    vector: dict[str, float] = {}
    for i in range(p["n_instructions"]):
        name = _NAMES[p["code"][i * _FIELDS]]
        if name != "copy":
            vector[name] = vector.get(name, 0.0) + count
    dtype = DTYPE_NAMES[p["x_dtype"][0]] if p["n_inputs"] else DTYPE_NAMES[p["y_dtype"]]
    parts = [Part(at, "x", "m", size, inner="m") for at, size in enumerate(nbytes[:-1])]
    parts.append(Part(len(nbytes) - 1, "y", "m", nbytes[-1], write=True, inner="m"))
    return (Work("elements", dtype, Sizes(m=count), tuple(parts), vector),)


def _rows(stem: str, p: Params, nbytes: list[int], operations: int) -> tuple[Work, ...]:
    if stem == "softmax":
        rows, size = p["outer"] * p["inner"], p["size"]
        names: tuple[str, ...] = ("maximum", "sub", "exp", "add", "div")
    elif stem == "norm":
        rows, size = p["rows"], p["size"]
        names = ("sub", "mul", "add", "mul", "add")[p["kind"] * 2 :]
    else:
        rows, size = p["batch"] * p["groups"], p["spatial"] * p["channels"] // p["groups"]
        names = ("sub", "mul", "add", "mul", "add")
    count = float(rows * size)
    vector: dict[str, float] = {}
    for name in names:
        vector[name] = vector.get(name, 0.0) + count
    affine = p.get("has_weight", 0) + p.get("has_bias", 0)
    if affine:
        vector["mul"] = vector.get("mul", 0.0) + count * p["has_weight"]
        vector["add"] = vector.get("add", 0.0) + count * p["has_bias"]
    if stem != "softmax":
        vector["rsqrt"] = float(rows)
    last = len(nbytes) - 1
    parts = [Part(0, "x", "mn", nbytes[0])]
    parts += [Part(at, "vector", "n", nbytes[at]) for at in range(1, last)]
    parts.append(Part(last, "y", "mn", nbytes[last], write=True))
    sizes = Sizes(m=max(rows, 1), n=max(size, 1))
    each = 1 if stem == "norm" and p["kind"] else 2  # a maximum and a sum; a mean and a variance
    across = p.get("inner", 1) == 1  # else lanes are rows side by side
    return (
        Work(
            *("rows", _dtype(p), sizes, tuple(parts), vector),
            whole_rows=True,
            sums=each * sizes.m * across,
            addends=sizes.n,
        ),
    )


def _other(stem: str, p: Params, nbytes: list[int], operations: int) -> tuple[Work, ...]:
    """What takes elements as they come: reductions, pools, copies, gathers, …."""
    dtype = _dtype(p)
    written = _WRITTEN.get(stem, 1)
    count = max(1, max(nbytes) // dtype_size(dtype))
    reads = len(nbytes) - written
    parts = tuple(
        Part(at, "y" if at >= reads else "x", "m", size, write=at >= reads, inner="m")
        for at, size in enumerate(nbytes)
    )
    vector = {_OPERATION.get(stem, "add"): float(operations)} if operations else {}
    if stem == "sort":
        vector = {"maximum": float(count * ceil(log2(count + 1)))}
    form: Form = "elements" if vector else "move"
    sums, addends = _sums(p) if stem == "reduce" else (0, 1)
    sizes = Sizes(m=count)
    return (Work(form, dtype, sizes, parts, vector, sums=sums, addends=addends),)


def _sums(p: Params) -> tuple[int, int]:
    """Returns how many sums a reduction makes over lanes, and of how many elements each.

    None where what lies side by side is not added up: then lanes are sums of their own.
    """
    reduced = p["reduced"][: p["reduced_rank"]]
    strides = p["reduced_strides"][: p["reduced_rank"]]
    across = any(n > 1 and stride == 1 for n, stride in zip(reduced, strides, strict=True))
    return (prod(p["shape"][: p["rank"]]), prod(reduced)) if across else (0, 1)


_WRITTEN = {"rope": 3, "attention_step": 1, "sort": 2, "sample": 2}  # operands at the end
_OPERATION = {"pool": "maximum", "rope": "mul", "resize": "mul", "quantize": "mul"}
_Rule = Callable[[str, Params, list[int], int], tuple[Work, ...]]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("gemm", "linear", "quantized_linear"), _linear),
    **dict.fromkeys(("matmul", "widening_matmul"), _matmul),
    "grouped_matmul": _grouped_matmul,
    **dict.fromkeys(("conv", "conv_depthwise", "conv_winograd", "conv_int8"), _conv),
    **dict.fromkeys(("attention", "attention_step"), _attention),
    "paged_attention": _paged_attention,
    "pointwise": _pointwise,
    **dict.fromkeys(("softmax", "norm", "group_norm"), _rows),
}
assert set(_RULES) <= set(KERNELS) and set("bmnk") == set(AXES)

"""Commands of the CUDA products: their parameters, operands, and what they should compute.

A case is a stem with its parameters, a function that makes operands on the device, and a reference
in float64 over the same operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from npusim.abi import quantization
from npusim.abi.kernels import KERNELS

Params = dict[str, Any]

DTYPES = {
    0: torch.float32,
    1: torch.float16,
    2: torch.bfloat16,
    3: torch.float64,
    4: torch.int64,
    5: torch.int32,
    9: torch.bool,
}
RELU, GELU, SILU = 31, 32, 34
_ACT: dict[int, Callable[[Tensor], Tensor]] = {
    0: lambda x: x,
    RELU: F.relu,
    GELU: F.gelu,
    SILU: F.silu,
}
FORMATS = {code: name for name, code in quantization.FORMATS.items()}


@dataclass(frozen=True)
class Case:
    """One command.

    Attributes:
        inputs: the operands it reads, in order.
        outputs: those it writes; poisoned before each run, unless `keeps` (part of it is written).
        expected: the outputs, in float64, of given inputs and outputs before.
        fails: the failure it reports: value and limit.
    """

    stem: str
    params: Params
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    expected: Callable[[], Sequence[Tensor]]
    note: str = ""
    keeps: bool = False
    fails: tuple[int, int] | None = None
    tolerance: float = 0.0


def full(stem: str, given: Params) -> Params:
    """Returns all fields of a stem's parameters: 0 where nothing is given, arrays as tuples."""
    out: Params = {}
    for name, _, count in KERNELS[stem].fields:
        value = given.get(name, 0)
        if count > 1:
            value = tuple(value) if value else ()
            value += (0,) * (count - len(value))
        out[name] = value
    return out


def tensor(shape: Sequence[int], dtype: int, *, scale: float = 1.0, shift: int = 0) -> Tensor:
    """Returns random values; `shift` elements after where memory is aligned."""
    flat = torch.empty(prod(shape) + shift, dtype=DTYPES[dtype], device="cuda")
    if dtype == 9:
        flat.copy_(torch.rand(flat.shape, device="cuda") < 0.7)
    elif dtype in (4, 5):
        flat.random_(-1000, 1000)
    else:
        flat.normal_(0.0, scale)
    return flat[shift:].view(*shape)


def linear(
    m: int,
    n: int,
    k: int,
    *,
    x: int = 2,
    w: int | None = None,
    y: int | None = None,
    rows: Sequence[int] = (),
    gated: int = 0,
    bias: int = 0,
    residual: int = 0,
    act: int = 0,
    shift: int = 0,
    pad: int = 0,
) -> Case:
    """A case of `linear`; pad: elements between rows."""
    w, y = x if w is None else w, x if y is None else y
    rows = tuple(rows) or (n * (2 if gated else 1),)
    given = {
        "m": m, "n": n, "k": k, "ldx": k + pad, "ldy": n, "ldr": n, "rows": rows,
        "ldw": (k + pad,) * len(rows), "segments": len(rows), "gated": gated, "x_dtype": x,
        "w_dtype": w, "y_dtype": y, "r_dtype": y, "has_bias": bias, "residual": residual,
        "act": act,
    }  # fmt: skip
    xs = tensor((m, k + pad), x, shift=shift)
    ws = [tensor((r, k + pad), w, scale=k**-0.5, shift=shift) for r in rows]
    extra = _extras(m, n, sum(rows), bias, residual, y)
    out = tensor((m, n), y)
    sources = [weight[:, :k] for weight in ws]
    return Case(
        "linear",
        full("linear", given),
        (xs, *ws, *extra),
        (out,),
        lambda: [_finish(_product(xs[:, :k], sources), given, extra)],
        f"{m}x{n}x{k} {'gated ' * gated}x{x} w{w} y{y}{' shifted' * (shift > 0)}",
    )


def quantized_linear(
    m: int, n: int, k: int, format: int, group: int = 0, *, x: int = 2, rows: Sequence[int] = (),
    gated: int = 0, bias: int = 0, residual: int = 0, act: int = 0,
) -> Case:  # fmt: skip
    """A case of `quantized_linear`, over weights the reference has quantized."""
    rows = tuple(rows) or (n * (2 if gated else 1),)
    given = {
        "m": m, "n": n, "k": k, "ldx": k, "ldy": n, "ldr": n, "group": group, "rows": rows,
        "segments": len(rows), "gated": gated, "format": format, "x_dtype": x, "y_dtype": x,
        "r_dtype": x, "has_bias": bias, "residual": residual, "act": act,
    }  # fmt: skip
    how = quantization.Quantization(FORMATS[format], group)
    xs = tensor((m, k), x)
    ws = [quantization.quantize(torch.randn(r, k) * k**-0.5, how) for r in rows]
    sources = [quantization.dequantize(w, how, r, k).cuda() for w, r in zip(ws, rows, strict=True)]
    extra = _extras(m, n, sum(rows), bias, residual, x)
    return Case(
        "quantized_linear",
        full("quantized_linear", given),
        (xs, *(w.cuda() for w in ws), *extra),
        (tensor((m, n), x),),
        lambda: [_finish(_product(xs, sources), given, extra)],
        f"{m}x{n}x{k} {FORMATS[format]} {group} {'gated ' * gated}x{x}",
    )


def quantize(rows: int, k: int, format: int, group: int = 0, *, x: int = 2) -> Case:
    """A case of `quantize`; compared by the elements that codes stand for."""
    how = quantization.Quantization(FORMATS[format], group)
    w = tensor((rows, k), x)
    size = quantization.quantized_bytes(how, rows, k)
    out = torch.zeros(size, dtype=torch.uint8, device="cuda")
    given = {"rows": rows, "k": k, "ldw": k, "group": group, "format": format, "x_dtype": x}
    return Case(
        "quantize",
        full("quantize", given),
        (w,),
        (out,),
        lambda: [quantization.dequantize(quantization.quantize(w.cpu(), how), how, rows, k)],
        f"{rows}x{k} {how.format} {group} x{x}",
        keeps=True,
        tolerance=2e-2,
    )


def _extras(m: int, n: int, columns: int, bias: int, residual: int, y: int) -> list[Tensor]:
    extra = [tensor((columns,), 0)] if bias else []
    return [*extra, *([tensor((m, n), y)] if residual else [])]


def _product(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.double() @ w.double().T for w in weights], 1)


def _finish(product: Tensor, p: Params, extra: Sequence[Tensor]) -> Tensor:
    """Applies bias, activation, gate and residual."""
    rest = [e.double() for e in extra]
    if p["has_bias"]:
        product = product + rest.pop(0)
    act = _ACT[p["act"]]
    if p.get("gated"):
        return act(product[:, : p["n"]]) * product[:, p["n"] :]
    if p["residual"] == 1:
        product = product + rest[0]
    product = act(product)
    return product + rest[0] if p["residual"] == 2 else product


def matmul(
    batch: Sequence[int], m: int, n: int, k: int, dtype: int, *, ta: int = 0, tb: int = 0,
    alpha: float = 1.0, shift: int = 0,
) -> Case:  # fmt: skip
    """A case of `matmul`; ta, tb: operands are stored transposed."""
    batch = (1,) * (6 - len(batch)) + tuple(batch)
    a = tensor((*batch, *((k, m) if ta else (m, k))), dtype, shift=shift)
    b = tensor((*batch, *((n, k) if tb else (k, n))), dtype, shift=shift)
    y = tensor((*batch, m, n), dtype)
    given = {
        "batch": batch, "a_batch": a.stride()[:6], "b_batch": b.stride()[:6],
        "y_batch": y.stride()[:6], "m": m, "n": n, "k": k, "a_m": 1 if ta else k,
        "a_k": m if ta else 1, "b_k": 1 if tb else n, "b_n": k if tb else 1, "y_m": n,
        "dtype": dtype, "alpha": alpha,
    }  # fmt: skip

    def expected() -> list[Tensor]:
        left, right = (t.double() for t in (a, b))
        left, right = left.mT if ta else left, right.mT if tb else right
        product = left @ right * alpha
        return [product.bool().double() if dtype == 9 else product]

    note = f"{prod(batch)}x{m}x{n}x{k} dtype {dtype} {'ta' * ta}{'tb' * tb}{' shifted' * shift}"
    return Case("matmul", full("matmul", given), (a, b), (y,), expected, note)


def attention(
    heads: int, kv_heads: int, q_len: int, kv_len: int, head_dim: int, *, v_dim: int = 0,
    batch: int = 1, dtype: int = 2, causal: int = 1, position: int | None = None, mask: int = -1,
    window: int = 0, softcap: float = 0.0, offset: int = 0, shift: int = 0,
) -> Case:  # fmt: skip
    """A case of `attention`; mask: its dtype."""
    v_dim = v_dim or head_dim
    q = tensor((batch, q_len, heads, head_dim), dtype, shift=shift).transpose(1, 2)
    k = tensor((batch, kv_heads, kv_len, head_dim), dtype, shift=shift)
    v = tensor((batch, kv_heads, kv_len, v_dim), dtype, shift=shift)
    y = tensor((batch, q_len, heads, v_dim), dtype).transpose(1, 2)
    masks = [tensor((q_len, kv_len), mask)] if mask >= 0 else []
    where = [torch.tensor([position], device="cuda")] if position is not None else []
    given = {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len,
        "head_dim": head_dim, "v_dim": v_dim, "q_strides": q.stride()[:3],
        "k_strides": k.stride()[:3], "v_strides": v.stride()[:3], "y_strides": y.stride()[:3],
        "mask_strides": (0, 0, kv_len, 1) if masks else (), "causal_offset": offset,
        "window": window, "has_mask": len(masks), "mask_dtype": max(mask, 0), "causal": causal,
        "has_position": len(where), "dtype": dtype, "scale": head_dim**-0.5, "softcap": softcap,
    }  # fmt: skip
    fails = position is not None and not 0 <= position <= kv_len - q_len

    def expected() -> list[Tensor]:
        at = offset if position is None else position
        used = kv_len if position is None else position + q_len
        group = heads // kv_heads
        keys, values = (t[:, :, :used].double().repeat_interleave(group, 1) for t in (k, v))
        scores = q.double() @ keys.mT * head_dim**-0.5
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        for m in masks:
            m = m[:, :used]
            scores = scores.masked_fill(~m, -torch.inf) if mask == 9 else scores + m.double()
        if causal:
            query = torch.arange(q_len, device="cuda")[:, None] + at
            key = torch.arange(used, device="cuda")
            hidden = key > query
            if window:
                hidden |= key <= query - window
            scores = scores.masked_fill(hidden, -torch.inf)
        return [torch.nan_to_num(torch.softmax(scores, -1)) @ values]

    note = f"{heads}/{kv_heads}x{head_dim} q {q_len} kv {kv_len} at {position} dtype {dtype}"
    note += f"{' mask' * len(masks)}{' window' * (window > 0)}{' shifted' * shift}"
    return Case(
        "attention",
        full("attention", given),
        (q, k, v, *masks, *where),
        (y,),
        expected,
        note,
        fails=(position or 0, kv_len - q_len) if fails else None,
    )


def rope(
    heads: Sequence[int], head_dim: int, length: int, limit: int, position: int, *, dtype: int = 2,
    rotary: int = 0, interleaved: int = 0, batch: int = 1, cs: int = 0,
) -> Case:  # fmt: skip
    """A case of `rope`: queries in place of themselves, keys and values into their caches."""
    rotary = rotary or head_dim
    xs = [tensor((batch, length, h, head_dim), dtype) for h in heads]
    ys = [tensor((batch, h, limit if i else length, head_dim), dtype) for i, h in enumerate(heads)]
    angles = [tensor((batch, length, rotary), cs) for _ in range(2)]
    before = [y.clone() for y in ys]
    given = {
        "batch": batch, "length": length, "rotary_dim": rotary, "heads": heads,
        "head_dim": (head_dim,) * 3, "limit": (0, limit, limit),
        "x_strides": [s for x in xs for s in (x.stride(0), x.stride(2), x.stride(1))],
        "y_strides": [s for y in ys for s in y.stride()[:3]],
        "cs_strides": [length * rotary, rotary] * 2, "rotate": (1, 1, 0),
        "at_position": (0, 1, 1), "parts": 3, "has_position": 1, "interleaved": interleaved,
        "dtype": dtype, "cs_dtype": cs,
    }  # fmt: skip
    fails = not 0 <= position <= limit - length

    def expected() -> list[Tensor]:
        out = []
        for i, (x, y) in enumerate(zip(xs, before, strict=True)):
            turned = x.double()
            if i < 2:
                cos, sin = (a.double()[:, :, None] for a in angles)
                part = turned[..., :rotary]
                if interleaved:
                    other = torch.stack((-part[..., 1::2], part[..., 0::2]), -1).flatten(-2)
                else:
                    low, high = part.chunk(2, -1)
                    other = torch.cat((-high, low), -1)
                turned = torch.cat((part * cos + other * sin, turned[..., rotary:]), -1)
            whole = y.double()
            at = position if i else 0
            whole[:, :, at : at + length] = turned.transpose(1, 2)
            out.append(whole)
        return out

    return Case(
        "rope",
        full("rope", given),
        (*xs, *angles, torch.tensor([position], device="cuda")),
        tuple(ys),
        expected,
        f"{tuple(heads)}x{head_dim} {length} at {position} dtype {dtype} {'inter' * interleaved}",
        keeps=True,
        fails=(position, limit - length) if fails else None,
    )


def conv(
    channels: tuple[int, int], size: int, kernel: int, *, batch: int = 1, stride: int = 1,
    pad: int = 0, dilation: int = 1, groups: int = 1, dtype: int = 0, transposed: int = 0,
    bias: int = 0, residual: int = 0, act: int = 0, nchw: int = 0, depthwise: bool = False,
) -> Case:  # fmt: skip
    """A case of `conv` or `conv_depthwise` in two dimensions; nchw: how the input lies."""
    before, after = channels
    x = tensor((batch, before, size, size), dtype)
    x = x if nchw else x.to(memory_format=torch.channels_last)
    shape = (before, after // groups) if transposed else (after, before // groups)
    w = tensor((*shape, kernel, kernel), dtype, scale=(before // groups * kernel**2) ** -0.5)
    options = {"stride": stride, "padding": pad, "dilation": dilation, "groups": groups}
    convolve = F.conv_transpose2d if transposed else F.conv2d
    with torch.no_grad():
        product = convolve(x.double(), w.double(), **options)  # type: ignore[operator]
    out = product.to(DTYPES[dtype], memory_format=torch.channels_last)
    extra = [tensor((after,), 0)] if bias else []
    if residual:
        extra.append(torch.randn_like(out))

    def dims(t: Tensor) -> tuple[int, ...]:
        return (t.stride(0), t.stride(1), 0, t.stride(2), t.stride(3))

    given = {
        "batch": batch, "in_channels": before, "out_channels": after,
        "in_size": (1, size, size), "out_size": (1, *out.shape[2:]),
        "kernel": (1, kernel, kernel), "stride": (1, stride, stride), "pad": (0, pad, pad),
        "dilation": (1, dilation, dilation), "x_strides": dims(x), "y_strides": dims(out),
        "r_strides": dims(out), "x_dtype": dtype, "w_dtype": dtype, "y_dtype": dtype,
        "r_dtype": dtype, "has_bias": bias, "residual": residual, "act": act,
    }  # fmt: skip

    def expected() -> list[Tensor]:
        rest = [e.double() for e in extra]
        y = product + rest.pop(0)[:, None, None] if bias else product
        y = y + rest[0] if residual == 1 else y
        y = _ACT[act](y)
        return [y + rest[0] if residual == 2 else y]

    if depthwise:
        weight = w.flatten(1).T.contiguous()
    else:
        given |= {"groups": groups, "transposed": transposed}
        weight = _packed(w, groups, bool(transposed))
    stem = "conv_depthwise" if depthwise else "conv"
    note = f"{before}->{after} {size}² k{kernel} s{stride} g{groups} dtype {dtype}"
    note += " transposed" * transposed
    return Case(stem, full(stem, given), (x, weight, *extra), (out.clone(),), expected, note)


def _packed(w: Tensor, groups: int, transposed: bool) -> Tensor:
    """Returns a weight as pack_b lays it out (kernels/cuda/conv/packed_weights.h)."""
    if transposed:  # [in, out/groups, h, w] -> [groups, n, taps, channels]
        grouped = w.reshape(groups, -1, w.shape[1], w[0, 0].numel()).permute(0, 2, 3, 1)
    else:
        grouped = w.reshape(groups, -1, w.shape[1], w[0, 0].numel()).permute(0, 1, 3, 2)
    n, channels = grouped.shape[1], grouped.shape[3]
    grouped = F.pad(grouped.flatten(2), (0, 0, 0, -n % 16))
    if channels % 8 == 0:
        return grouped.contiguous()
    return grouped.reshape(groups, -1, 16, grouped.shape[2]).transpose(2, 3).contiguous()


def pack_b(groups: int, n: int, taps: int, channels: int, dtype: int) -> Case:
    """A case of `pack_b`."""
    w = tensor((groups, n, channels, taps), dtype)
    given = {
        "groups": groups, "n": n, "taps": taps, "channels": channels, "g_stride": w.stride(0),
        "n_stride": w.stride(1), "t_stride": 1, "c_stride": taps, "x_dtype": dtype,
        "y_dtype": dtype,
    }  # fmt: skip
    packed = _packed(w.reshape(groups * n, channels, taps, 1), groups, False)
    out = torch.empty_like(packed)
    note = f"{groups}x{n}x{taps}x{channels} dtype {dtype}"
    return Case("pack_b", full("pack_b", given), (w,), (out,), lambda: [packed.double()], note)

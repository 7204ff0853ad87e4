"""Times the CUDA kernels that memory bounds, in TB/s, beside PyTorch on the same GPU.

    PYTHONPATH=python:. python -m benchmarks.cuda_memory

Launches are captured in a graph that walks over operands of several times the cache, so that a time
is that of a launch among others. Bytes are those of inputs and outputs, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.cuda_driver import Driver, Kernel, microseconds
from npusim.abi.kernels import KERNELS, RANK
from npusim.abi.scalar import OPCODES
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.compile_kernels import specialise

_WALKED = 512 << 20  # bytes that a timing walks over
_FLOAT, _HALF = 0, 2
_TYPES = {_FLOAT: torch.float32, _HALF: torch.bfloat16, 4: torch.int64}


@dataclass(frozen=True)
class Row:
    """A command, its operands (outputs last), and the same in PyTorch."""

    name: str
    stem: str
    params: dict[str, Any]
    operands: tuple[Tensor, ...]
    theirs: Callable[..., object]
    outputs: int = 1


def _tensor(*shape: int, dtype: int = _HALF) -> Tensor:
    if dtype == 4:
        return torch.zeros(shape, dtype=torch.int64, device="cuda")
    return torch.randn(shape, device="cuda").to(_TYPES[dtype])


def _padded(values: Sequence[int], fill: int = 0) -> list[int]:
    return [*values, *[fill] * (RANK - len(values))]


def _pointwise(name: str, op: str, xs: Sequence[Tensor], theirs: Callable[..., object]) -> Row:
    dtype = _HALF if xs[0].dtype == torch.bfloat16 else _FLOAT
    y, n = torch.empty_like(xs[0]), len(xs)
    code, arity, _, _ = OPCODES[op]
    args = [*range(arity), *[0] * (3 - arity)]
    strides = [_padded(x.expand(y.shape).stride()) for x in xs]
    params = {
        "rank": y.dim(), "n_inputs": n, "n_instructions": 1, "result": n, "result_class": 0,
        "y_dtype": dtype, "x_dtype": [dtype] * n, "x_class": [0] * n,
        "shape": _padded(y.shape, 1), "y_strides": _padded(y.stride()),
        "x_strides": [s for row in strides for s in row], "code": [code, n, *args, 0],
        "constants": [], "int_constants": [],
    }  # fmt: skip
    return Row(name, "pointwise", params, (*xs, y), theirs)


def _softmax(rows: int, size: int) -> Row:
    x = _tensor(rows, size)
    dense = {"outer": rows, "size": size, "inner": 1, "log": 0, "x_dtype": 2, "y_dtype": 2}
    return Row(f"softmax {size}", "softmax", dense, (x, torch.empty_like(x)), _softmax_theirs)


def _softmax_theirs(x: Tensor) -> Tensor:
    return x.softmax(-1)


def _norm(kind: int, rows: int, size: int) -> Row:
    x, w, b = _tensor(rows, size), _tensor(size), _tensor(size)
    params = {
        "kind": kind, "rows": rows, "size": size, "x_row_stride": size, "y_row_stride": size,
        "eps": 1e-5, "has_weight": 1, "has_bias": 1 - kind, "x_dtype": 2, "w_dtype": 2,
        "y_dtype": 2,
    }  # fmt: skip
    if kind:
        operands: tuple[Tensor, ...] = (x, w, torch.empty_like(x))
        return Row(f"RMS norm {size}", "norm", params, operands, _rms_theirs)
    operands = (x, w, b, torch.empty_like(x))
    return Row(f"layer norm {size}", "norm", params, operands, _layer_theirs)


def _rms_theirs(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


def _layer_theirs(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def _reduce(name: str, op: int, x: Tensor, dim: int, theirs: Callable[..., object]) -> Row:
    other = 1 - dim
    y_dtype = 4 if op == 7 else 2
    y = _tensor(x.shape[other], dtype=y_dtype)
    params = {
        "op": op, "x_dtype": 2, "y_dtype": y_dtype, "rank": 1, "reduced_rank": 1,
        "correction": 0.0, "shape": _padded([x.shape[other]], 1),
        "x_strides": _padded([x.stride(other)]), "y_strides": _padded([1]),
        "reduced": _padded([x.shape[dim]], 1), "reduced_strides": _padded([x.stride(dim)]),
    }  # fmt: skip
    return Row(name, "reduce", params, (x, y), theirs)


def _embedding(rows: int, width: int, count: int) -> Row:
    table, y = _tensor(rows, width), _tensor(count, width)
    ids = torch.randint(0, rows, (count,), device="cuda")
    params = {
        "element_size": 2, "idx_dtype": 4, "n": 1, "rank": 2,
        "shape": _padded([count, width], 1), "x_strides": _padded([0, 1]),
        "y_strides": _padded([width, 1]), "idx_strides": _padded([1, 0]),
        "k_size": [rows], "k_stride": [width],
    }  # fmt: skip
    return Row("embedding", "index", params, (table, ids, y), lambda w, i: F.embedding(i, w))


def _transpose(size: int) -> Row:
    x = _tensor(size, size)
    params = {
        "element_size": 2, "rank": 2, "shape": _padded([size, size], 1),
        "x_strides": _padded([1, size]), "y_strides": _padded([size, 1]),
    }  # fmt: skip
    return Row("transpose", "copy", params, (x, torch.empty_like(x)), lambda t: t.t().contiguous())


def _images(name: str, stem: str, scale: int) -> Row:
    """Pooling by 2x2 or resizing by 2 of channels-last images."""
    n, c, s = 16, 256, 56
    out = s // 2 if stem == "pool" else s * scale
    x, y = _tensor(n, s, s, c), _tensor(n, out, out, c)
    common = {
        "batch": n, "in_size": [1, s, s], "out_size": [1, out, out],
        "x_strides": [s * s * c, 1, 0, s * c, c], "y_strides": [out * out * c, 1, 0, out * c, c],
        "x_dtype": 2, "y_dtype": 2,
    }  # fmt: skip
    pool = {
        "in_channels": c, "out_channels": c, "kernel": [1, 2, 2], "stride": [1, 2, 2],
        "pad": [0] * 3, "dilation": [1] * 3, "op": 0, "adaptive": 0, "count_include_pad": 0,
        "has_indices": 0, "divisor": 0,
    }  # fmt: skip
    resize = {"channels": c, "scale": [1.0, 0.5, 0.5], "mode": 1, "align_corners": 0}
    params = {**common, **(pool if stem == "pool" else resize)}

    def theirs(t: Tensor) -> Tensor:
        image = t.permute(0, 3, 1, 2)
        if stem == "pool":
            return F.max_pool2d(image, 2)
        return F.interpolate(image, scale_factor=scale, mode="bilinear")

    return Row(name, stem, params, (x, y), theirs)


def rows() -> Iterator[Row]:
    """Yields what is timed."""
    count = 1 << 24
    yield _pointwise("add", "add", (_tensor(count), _tensor(count)), torch.add)
    floats = (_tensor(count, dtype=_FLOAT), _tensor(count, dtype=_FLOAT))
    yield _pointwise("add float32", "add", floats, torch.add)
    yield _pointwise("add a row", "add", (_tensor(8192, 2048), _tensor(2048)), torch.add)
    yield _pointwise("gelu", "gelu", (_tensor(count),), F.gelu)
    yield _transpose(4096)
    for size in (256, 1024, 4096, 32000):
        yield _softmax(count // size, size)
    for size in (1024, 4096, 8192):
        yield _norm(0, count // size, size)
    yield _norm(1, count // 1536, 1536)
    yield _reduce("sum of rows", 0, _tensor(4096, 4096), 1, lambda x: x.sum(1))
    yield _reduce("sum of columns", 0, _tensor(4096, 4096), 0, lambda x: x.sum(0))
    yield _reduce("sum", 0, _tensor(1, count), 1, torch.sum)
    yield _reduce("argmax 32000", 7, _tensor(512, 32000), 1, lambda x: x.argmax(1))
    yield _embedding(32000, 2048, 8192)
    yield _images("max pool 2x2", "pool", 1)
    yield _images("bilinear x2", "resize", 2)


def main() -> None:
    """Prints the table."""
    driver, compiler, listed = Driver(), nvrtc.load(), list(rows())

    def built(row: Row) -> tuple[Any, bytes]:
        source, config, options = specialise(row.stem, KERNELS[row.stem].pack(row.params))
        options = (f"--gpu-architecture={driver.arch}", *options)
        return config, compiler.compile(source, options, row.stem)[0]

    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(built, listed))
    print(f"{'kernel':18}{'us':>9}{'TB/s':>7}{'torch us':>10}")
    for row, (config, cubin) in zip(listed, made, strict=True):
        kernel = Kernel(driver, config, cubin)
        size = sum(t.nbytes for t in row.operands)
        copies = [row.operands]
        for _ in range(max(1, min(16, _WALKED // size))):
            copies.append(tuple(t.clone() for t in row.operands))
        ours = microseconds([lambda o=o: kernel(o) for o in copies], 12)  # type: ignore[misc]  # noqa: B023
        given = [o[: -row.outputs] for o in copies]
        theirs = microseconds([lambda o=o: row.theirs(*o) for o in given], 12)  # type: ignore[misc]  # noqa: B023
        if row.stem == "index":
            size = 2 * row.operands[-1].nbytes
        print(f"{row.name:18}{ours:9.1f}{size / ours / 1e6:7.2f}{theirs:10.1f}")


if __name__ == "__main__":
    main()

"""Single operators on one thread beside PyTorch's eager mode: which does npusim run slower?

    chrt -f 1 python benchmarks/cpu_operators.py [NAME …] [--seconds 0.25] [--json FILE]

Each is a model of its own, of a size that fits the second cache, all operands given by the call.
Counted is the least processor time of a call, so other work beside matters little. A whole model
hides an operator that is ten times too slow until one leans on it: this table does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import npusim

Operator = Callable[..., Tensor]
_draw = torch.Generator().manual_seed(0)


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_draw)


def _below(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, generator=_draw)


_image, _small = _normal(1, 32, 56, 56), _normal(1, 64, 28, 28)
_rows, _others = _normal(512, 384), _normal(512, 384)
_steps, _short, _line = _normal(1, 128, 256), _normal(4096, 16), _normal(100_000)
_positive = _normal(256, 1024).abs() + 0.1
_heads = _normal(1, 8, 256, 64)
_index = _below(512, 2048)
_volume = _normal(1, 8, 16, 32, 32)


def _cases() -> dict[str, tuple[Operator, tuple[Tensor, ...]]]:
    return {
        **_reductions(),
        **_elementwise(),
        **_indexing(),
        **_moves(),
        **_windows(),
        **_products(),
    }


def _reductions() -> dict[str, tuple[Operator, tuple[Tensor, ...]]]:
    found: dict[str, tuple[Operator, tuple[Tensor, ...]]] = {}
    folds: dict[str, Operator] = {
        "sum": lambda x: x.sum(-1),
        "amax": lambda x: x.amax(-1),
        "norm": lambda x: x.norm(dim=-1),
        "argmin": lambda x: x.argmin(-1),
    }
    for length in (3, 8, 16, 32, 128):
        x = _normal(1, 524_288 // length, length)
        found |= {f"{name} of {length}": (fold, (x,)) for name, fold in folds.items()}
    return found | {
        "softmax of 16": (lambda x: x.softmax(-1), (_short,)),
        "softmax of 49": (lambda x: x.softmax(-1), (_normal(1536, 49),)),
        "softmax over dim 1": (lambda x: x.softmax(1), (_normal(8, 64, 196),)),
        "log_softmax": (lambda x: x.log_softmax(-1), (_rows,)),
        "layer_norm of 16": (lambda x: F.layer_norm(x, (16,)), (_short,)),
        "layer_norm": (lambda x: F.layer_norm(x, (384,)), (_rows,)),
        "group_norm": (lambda x: F.group_norm(x, 8), (_image,)),
        "instance_norm": (F.instance_norm, (_image,)),
        "batch_norm": (F.batch_norm, (_image, _normal(32), _normal(32).abs())),
        "rms_norm": (lambda x: F.rms_norm(x, (384,)), (_rows,)),
        "normalize": (lambda x: F.normalize(x, dim=-1), (_rows,)),
        "var": (lambda x: x.var(-1), (_rows,)),
        "var of 16": (lambda x: x.var(-1), (_short,)),
        "std over dim 0": (lambda x: x.std(0), (_rows,)),
        "logsumexp": (lambda x: x.logsumexp(-1), (_rows,)),
        "logsumexp of 16": (lambda x: x.logsumexp(-1), (_short,)),
        "amax over dim 0": (lambda x: x.amax(0), (_rows,)),
        "argmax over dim 0": (lambda x: x.argmax(0), (_rows,)),
        "prod": (lambda x: x.prod(-1), (_rows,)),
        "sum of the middle": (lambda x: x.sum(1), (_normal(64, 32, 64),)),
        "max of all": (lambda x: x.max(), (_line,)),
        "any": (lambda x: (x > 3).any(-1), (_rows,)),
        "how many": (lambda x: (x > 0).sum(-1), (_rows,)),
        "cosine_similarity": (F.cosine_similarity, (_rows, _others)),
        "cumsum": (lambda x: x.cumsum(-1), (_rows,)),
        "cumsum over dim 1": (lambda x: x.cumsum(1), (_steps,)),
        "cumprod": (lambda x: x.cumprod(-1), (_rows,)),
        "cummax": (lambda x: x.cummax(-1)[0], (_rows,)),
        "logcumsumexp": (lambda x: x.logcumsumexp(-1), (_rows,)),
        "sort": (lambda x: x.sort(-1)[0], (_rows,)),
        "argsort of 16": (lambda x: x.argsort(-1), (_short,)),
        "topk": (lambda x: x.topk(5, -1)[0], (_rows,)),
        "median": (lambda x: x.median(-1)[0], (_rows,)),
        "kthvalue": (lambda x: x.kthvalue(7, -1)[0], (_rows,)),
    }


def _elementwise() -> dict[str, tuple[Operator, tuple[Tensor, ...]]]:
    one: dict[str, Operator] = {
        "exp": torch.exp,
        "sin": torch.sin,
        "tan": torch.tan,
        "erf": torch.erf,
        "tanh": torch.tanh,
        "sinh": torch.sinh,
        "expm1": torch.expm1,
        "gelu": F.gelu,
        "mish": F.mish,
        "softplus": F.softplus,
        "round": torch.round,
        "sign": torch.sign,
        "isnan": torch.isnan,
        "nan_to_num": torch.nan_to_num,
        "fmod": lambda x: x.fmod(0.7),
        "remainder": lambda x: x.remainder(0.7),
        "clamp": lambda x: x.clamp(-1, 1),
        "pow 3": lambda x: x**3,
        "where": lambda x: torch.where(x > 0, x, x * 0.1),
        "to int64": lambda x: x.long(),
        "to float16": lambda x: x.half(),
        "acos": lambda x: x.clamp(-1, 1).acos(),
        "glu": F.glu,
    }
    two: dict[str, Operator] = {
        "atan2": torch.atan2,
        "floor_divide": lambda x, y: x // y,
        "lerp": lambda x, y: torch.lerp(x, y, 0.3),
        "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
        "and": lambda x, y: (x > 0) & (y > 0),
        "masked_fill": lambda x, y: x.masked_fill(y > 0, 0.0),
    }
    positive: dict[str, Operator] = {
        "pow 2.5": lambda x: x.pow(2.5),
        "rsqrt": torch.rsqrt,
        "log": torch.log,
        "log1p": torch.log1p,
        "lgamma": torch.lgamma,
    }
    return {
        **{name: (call, (_rows,)) for name, call in one.items()},
        **{name: (call, (_rows, _others)) for name, call in two.items()},
        **{name: (call, (_positive,)) for name, call in positive.items()},
        "pow": (torch.pow, (_positive, _normal(256, 1024))),
        "prelu": (F.prelu, (_image, _normal(32))),
        "by channels": (torch.mul, (_image, _normal(1, 32, 1, 1))),
        "by rows": (torch.mul, (_rows, _normal(512, 1))),
        "outer": (torch.outer, (_normal(512), _normal(512))),
        "int64 add": (lambda x: x + 3, (_below(9, 256, 1024),)),
        "int64 floor_divide": (lambda x: x // 3, (_below(99, 256, 1024),)),
        "float64 exp": (lambda x: (x * 2).exp(), (_rows.double(),)),
        "bucketize": (torch.bucketize, (_rows, torch.linspace(-2, 2, 33))),
    }


def _indexing() -> dict[str, tuple[Operator, tuple[Tensor, ...]]]:
    table = (_rows, _index)
    return {
        "embedding": (lambda x, i: F.embedding(i, x), table),
        "embedding_bag": (lambda x, i: F.embedding_bag(i.view(128, 16), x), table),
        "x[i]": (lambda x, i: x[i], table),
        "x[:, i]": (lambda x, i: x[:, i % 384], table),
        "index_add": (lambda x, i, s: x.index_add(0, i, s), (*table, _normal(2048, 384))),
        "gather": (lambda x, i: x.gather(1, i), (_rows, _below(384, 512, 384))),
        "gather over dim 0": (lambda x, i: x.gather(0, i), (_rows, _below(512, 512, 384))),
        "take": (torch.take, (_rows, _below(512 * 384, 50_000))),
        "scatter": (
            lambda x, i, s: x.scatter(1, i, s),
            (_rows, torch.argsort(_others), _others),
        ),
        "scatter_add": (
            lambda x, i, s: x.scatter_add(0, i, s),
            (_rows, _below(512, 512, 384), _others),
        ),
        "one_hot and sum": (lambda i: F.one_hot(i, 64).sum(0), (_index % 64,)),
    }


def _moves() -> dict[str, tuple[Operator, tuple[Tensor, ...]]]:
    return {
        "cat": (lambda x, y: torch.cat([x, y], 1), (_rows, _others)),
        "stack": (lambda x, y: torch.stack([x, y], -1), (_rows, _others)),
        "pad": (lambda x: F.pad(x, (3, 3, 3, 3)), (_image,)),
        "pad reflect": (lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"), (_image,)),
        "roll": (lambda x: x.roll((3, 3), (2, 3)), (_image,)),
        "flip": (lambda x: x.flip(-1), (_image,)),
        "transpose": (lambda x: x.T.contiguous(), (_normal(512, 512),)),
        "permute": (lambda x: x.permute(0, 2, 3, 1).contiguous(), (_image,)),
        "repeat": (lambda x: x.repeat(1, 4), (_rows,)),
        "repeat_interleave": (lambda x: x.repeat_interleave(4, 1), (_rows,)),
        "tril": (torch.tril, (_normal(512, 512),)),
        "unfold": (lambda x: F.unfold(x, 3, padding=1), (_small,)),
        "fold": (lambda x: F.fold(x, (28, 28), 3, padding=1), (_normal(1, 576, 784),)),
        "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (_image,)),
        "channel_shuffle": (lambda x: F.channel_shuffle(x, 4), (_image,)),
        "windows of a line": (lambda x: x.unfold(-1, 16, 4).sum(-1), (_rows,)),
        "diff": (lambda x: x.diff(dim=-1), (_rows,)),
        "meshgrid": (
            lambda x: torch.stack(torch.meshgrid(x, x, indexing="ij"), -1),
            (_normal(256),),
        ),
    }


def _windows() -> dict[str, tuple[Operator, tuple[Tensor, ...]]]:
    grid = (torch.rand(1, 56, 56, 2, generator=_draw) * 2 - 1,)
    return {
        "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (_image,)),
        "nearest": (lambda x: F.interpolate(x, scale_factor=2), (_image,)),
        "bicubic": (lambda x: F.interpolate(x, size=(80, 80), mode="bicubic"), (_image,)),
        "bilinear, antialias": (
            lambda x: F.interpolate(x, size=(28, 28), mode="bilinear", antialias=True),
            (_image,),
        ),
        "linear": (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), (_steps,)),
        "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), (_image, *grid)),
        "max_pool2d 3/2": (lambda x: F.max_pool2d(x, 3, 2, 1), (_image,)),
        "max_pool2d indices": (
            lambda x: F.max_pool2d(x, 2, return_indices=True)[1],
            (_image,),
        ),
        "avg_pool2d 3": (lambda x: F.avg_pool2d(x, 3, 1, 1), (_image,)),
        "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 7), (_image,)),
        "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 7), (_image,)),
        "max_pool1d": (lambda x: F.max_pool1d(x, 4), (_steps,)),
        "max_pool3d": (lambda x: F.max_pool3d(x, 3, 2, 1), (_volume,)),
        "rfft": (lambda x: torch.fft.rfft(x).abs(), (_normal(16, 400),)),
    }


def _products() -> dict[str, tuple[Operator, tuple[Tensor, ...]]]:
    conv, line = F.conv2d, F.conv1d
    return {
        "bmm": (torch.bmm, (_normal(12, 128, 64), _normal(12, 64, 128))),
        "bmm of 8": (torch.bmm, (_normal(2048, 8, 8), _normal(2048, 8, 8))),
        "bmm of one row": (torch.bmm, (_normal(12, 1, 64), _normal(12, 64, 512))),
        "mv": (torch.mv, (_normal(1024, 1024), _normal(1024))),
        "mv, transposed": (lambda x, y: x.T @ y, (_normal(1024, 1024), _normal(1024))),
        "float64 mm": (lambda x: x @ x.T, (_normal(256, 256).double(),)),
        "int64 mm": (lambda x: x @ x.T, (_below(9, 128, 128),)),
        "cdist": (lambda x: torch.cdist(x, x), (_normal(1, 256, 3),)),
        "squared distances": (
            lambda x: (x[:, :, None] - x[:, None]).square().sum(-1),
            (_normal(1, 256, 3),),
        ),
        "attention": (F.scaled_dot_product_attention, (_heads,) * 3),
        "attention, causal": (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            (_heads,) * 3,
        ),
        "attention of 49": (F.scaled_dot_product_attention, (_normal(64, 4, 49, 32),) * 3),
        "conv1d": (lambda x, w: line(x, w, padding=1), (_steps[:, :64], _normal(64, 64, 3))),
        "conv1d, depthwise 31": (
            lambda x, w: line(x, w, padding=15, groups=64),
            (_steps[:, :64], _normal(64, 1, 31)),
        ),
        "conv2d of one channel": (
            lambda x, w: conv(x, w, padding=1),
            (_normal(1, 1, 128, 128), _normal(8, 1, 3, 3)),
        ),
        "conv2d 5": (lambda x, w: conv(x, w, padding=2), (_small, _normal(32, 64, 5, 5))),
        "conv2d in groups": (
            lambda x, w: conv(x, w, padding=1, groups=4),
            (_small, _normal(64, 16, 3, 3)),
        ),
        "conv3d": (
            lambda x, w: F.conv3d(x, w, padding=1),
            (_normal(1, 16, 8, 28, 28), _normal(16, 16, 3, 3, 3)),
        ),
        "conv_transpose2d": (
            lambda x, w: F.conv_transpose2d(x, w, stride=2),
            (_normal(1, 32, 28, 28), _normal(32, 32, 2, 2)),
        ),
    }


class Called(nn.Module):
    """An operator as a module."""

    def __init__(self, call: Operator) -> None:
        super().__init__()
        self.call = call

    def forward(self, *x: Tensor) -> Tensor:
        """Returns the operator's result."""
        return self.call(*x)


def least_ms(call: Callable[[], object], seconds: float) -> float:
    """Returns the least processor time of a call in ms, of five calls or more."""
    call()
    least, count, end = float("inf"), 0, time.monotonic() + seconds
    while count < 5 or time.monotonic() < end:
        start = time.thread_time()
        call()
        least, count = min(least, time.thread_time() - start), count + 1
    return least * 1e3


def measure(name: str, seconds: float) -> tuple[float, float]:
    """Returns the least ms of an operator in npusim and in PyTorch, taking turns."""
    call, operands = _cases()[name]
    graph = npusim.extract_ir(Called(call).eval(), operands)
    session = npusim.load(npusim.compile(graph), {}, threads=1)
    ours = theirs = float("inf")
    with torch.inference_mode():
        for _ in range(2):
            ours = min(ours, least_ms(lambda: session(*operands), seconds / 2))
            theirs = min(theirs, least_ms(lambda: call(*operands), seconds / 2))
    return ours, theirs


def main() -> None:
    """Prints a line an operator, the worst ratio last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of operators' names; default: all")
    parser.add_argument("--seconds", type=float, default=0.25, help="of each runtime (%(default)s)")
    parser.add_argument("--json", type=Path, help="where lines of JSON go")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    wanted = [n for n in _cases() if not options.names or any(part in n for part in options.names)]
    lines = []
    for name in wanted:
        ours, theirs = measure(name, options.seconds)
        lines.append({"operator": name, "npusim_ms": round(ours, 4), "torch_ms": round(theirs, 4)})
    lines.sort(key=lambda line: line["npusim_ms"] / line["torch_ms"])
    print(f"{'operator':24} {'npusim':>9} {'torch':>9}  ratio")
    for line in lines:
        ours, theirs = line["npusim_ms"], line["torch_ms"]
        print(f"{line['operator']:24} {ours:9.4f} {theirs:9.4f} {ours / theirs:6.2f}")
    if options.json:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()

"""Profiles of a device, for whoever fits a model of it: many shapes of single layers, and models.

    PYTHONPATH=python:. python -m benchmarks.device_profiles FOLDER [--device cuda] [--jobs 16]

writes `<class><i>.json` of seeded shapes of each class of layer (products, batches of products,
both of few rows, products that caches hold, convolutions, windows of 3 by 3, the same behind a
layer, attention, rows, elementwise, pools, norms over groups), `PART` of them in one program, and
`<model>.json` of whole models, each as `npusim profile --json` prints it; with `--what unseen`,
models that no fit has seen. With `--what decoders` there are two-layer decoders of seeded sizes,
`decoder<i>_prefill` and `decoder<i>_decode`, those of `profiled_models.py`, and one of
Qwen2.5-1.5B's sizes, `prefill` and `decode` behind `CONTEXT` tokens.

Programs are compiled in `--jobs` processes and measured here, one after the other, in the order in
which they are ready. Weights are seeded and small; no time depends on them. On a machine that
others use, too, `--programs` keeps what was compiled, and `--within` ends a turn of measuring: the
same call goes on with what has no profile yet. Cores of a virtual machine change places while it
runs, and share theirs with others: with `--state`, which is `machine_state.cpp` compiled, a profile
is kept if before and after it the cores were neighbours that reached `--least-rate`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.models import build
from torch import Tensor, nn

import npusim
from benchmarks.profiled_models import PARTS, WHOLE, others, unseen
from npusim.profile.measure import profile_program
from npusim.profile.saved import profile_facts
from npusim.program.program import CompiledProgram
from npusim.runtime import Device, load_weights

SEED = 7
CONTEXT = 1024
SHAPES = 128  # of each class
PART = 16  # of them in one program
DECODERS = 6
LARGEST = {"cpu": 2e9, "cuda": 4e11}  # operations of one layer
WEIGHTS = 16 << 20  # elements of a layer's weights
RESIDENT = 1 << 19  # elements of a product's factors, where `PART` such stay in a cache
NEIGHBOURS = 60.0  # nanoseconds from one core to the other, at most: 28 under one cache, 165 else
TRIES = 4
SAFETENSORS = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
MODELS = (
    *("resnet50", "bert_base", "vit_b_16", "mobilenet_v2", "resnet18", "convnext_tiny"),
    *("resnet34", "mobilenet_v3_large", *others()),
)

Layer = tuple[nn.Module, tuple[int, ...]]  # and the shape of its input


class SideBySide(nn.Module):
    """Layers that have nothing to do with each other, each with an input of its own."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        """Maps each input by its layer."""
        return tuple(layer(x) for layer, x in zip(self.layers, xs, strict=True))


class SelfAttention(nn.Module):
    """Attention over [batch, length, 3 · heads · dim], whose thirds are queries, keys, values."""

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, heads, length, dim]."""
        parts = x.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(*parts, is_causal=self.causal)


class Products(nn.Module):
    """A batch of products: of [batch, m + n, k], the first m rows with the n others."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self.m = m

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, m, n]."""
        return x[:, : self.m] @ x[:, self.m :].mT


class Elementwise(nn.Module):
    """A chain of functions of an element."""

    def __init__(self, functions: list[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        for function in self.functions:
            x = function(x)
        return x


def _size(draw: random.Random, low: int, high: int, multiple: int = 8) -> int:
    """Returns a multiple whose logarithm is uniform."""
    drawn = low * (high / low) ** draw.random()
    return max(multiple, round(drawn / multiple) * multiple)


def products(draw: random.Random, largest: float) -> Layer:
    """A linear layer of 1 to 4,096 rows."""
    while True:
        m = draw.choice((1, 1, 2, 4, 8, 16, 32, 64, 100, 128, 197, 256, 512, 1024, 2048, 4096))
        n, k = _size(draw, 64, 8192), _size(draw, 64, 8192)
        if 2.0 * m * n * k <= largest and n * k <= WEIGHTS:
            return nn.Linear(k, n, bias=draw.random() < 0.5), (m, k)


def matmuls(draw: random.Random, largest: float) -> Layer:
    """Products of two tensors, one or more of them side by side."""
    while True:
        batch, m = draw.choice((1, 1, 2, 4, 8, 12, 16, 32)), _size(draw, 1, 1024, 1)
        n, k = _size(draw, 16, 2048), _size(draw, 16, 2048)
        if 2.0 * batch * m * n * k <= largest and batch * (m + n) * k <= WEIGHTS:
            return Products(m), (batch, m + n, k)


def few_rows(draw: random.Random, largest: float) -> Layer:
    """A linear layer, or products of two tensors side by side, of 1 to 16 rows."""
    while True:
        m = draw.choice((1, 1, 1, 2, 3, 4, 6, 8, 12, 16))
        n, k = _size(draw, 16, 8192), _size(draw, 16, 8192)
        batch = draw.choice((0, 0, 1, 4, 12, 32))
        if 2.0 * max(1, batch) * m * n * k > largest or max(1, batch) * (m + n) * k > WEIGHTS:
            continue
        if batch:
            return Products(m), (batch, m + n, k)
        return nn.Linear(k, n, bias=draw.random() < 0.5), (m, k)


def resident(draw: random.Random, _: float) -> Layer:
    """A linear layer, or products of two tensors, whose factors a cache holds from run to run."""
    while True:
        m, batch = draw.choice((1, 1, 2, 4, 8, 16, 64)), draw.choice((0, 0, 0, 1, 4, 12))
        n, k = _size(draw, 32, 2048), _size(draw, 32, 2048)
        if max(1, batch) * (m + n) * k > RESIDENT:
            continue
        if batch:
            return Products(m), (batch, m + n, k)
        return nn.Linear(k, n, bias=draw.random() < 0.5), (m, k)


def convolutions(draw: random.Random, largest: float) -> Layer:
    """A convolution of images: plain, of groups, or depthwise."""
    while True:
        channels, out = (_size(draw, 8, 1024) for _ in range(2))
        kernel, stride, batch = draw.choice((1, 1, 3, 3, 5, 7)), draw.choice((1, 1, 2)), 1
        size = draw.choice((7, 14, 28, 56, 112))
        groups = channels if draw.random() < 0.3 else 1
        out = channels if groups > 1 else out
        work = 2.0 * batch * (size / stride) ** 2 * out * channels // groups * kernel**2
        if work <= largest and out * channels // groups * kernel**2 <= WEIGHTS:
            layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups)
            return layer, (batch, channels, size, size)


def windows(draw: random.Random, largest: float) -> Layer:
    """A convolution of 3 by 3 at every point, as residual networks are made of."""
    while True:
        channels, out = (_size(draw, 16, 512, 16) for _ in range(2))
        size = draw.choice((7, 14, 28, 56, 112))
        if 18.0 * size**2 * channels * out <= largest:
            return nn.Conv2d(channels, out, 3, padding=1), (1, channels, size, size)


def stages(draw: random.Random, largest: float) -> Layer:
    """The same behind another layer, of as many channels as later stages of networks have."""
    while True:
        channels, out = (_size(draw, 64, 512, 32) for _ in range(2))
        size = draw.choice((8, 14, 16, 20, 28, 32, 40, 56))
        if 18.0 * size**2 * channels * out <= largest:
            before = nn.Conv2d(channels, channels, 1, groups=channels)
            after = nn.Conv2d(channels, out, 3, padding=1)
            return nn.Sequential(before, after), (1, channels, size, size)


def attention(draw: random.Random, largest: float) -> Layer:
    """Attention of a whole text to itself."""
    while True:
        heads, dim = draw.choice((4, 8, 12, 16, 32)), draw.choice((32, 64, 128))
        length, batch = _size(draw, 16, 2048, 1), draw.choice((1, 1, 2, 8))
        if 4.0 * batch * heads * dim * length**2 <= largest:
            return SelfAttention(heads, draw.random() < 0.5), (batch, length, 3 * heads * dim)


def rows(draw: random.Random, _: float) -> Layer:
    """A norm or softmax over rows, or a sum of them."""
    width, count = _size(draw, 32, 8192), _size(draw, 1, 4096, 1)
    while width * count > WEIGHTS:
        count //= 2
    kinds = (nn.LayerNorm(width), nn.RMSNorm(width), nn.Softmax(-1), Elementwise([_row_sums]))
    return draw.choice(kinds), (count, width)


def elementwise(draw: random.Random, _: float) -> Layer:
    """One to four functions of an element."""
    known = [torch.relu, torch.tanh, torch.sigmoid, nn.functional.gelu, torch.exp, torch.neg]
    functions = draw.sample(known, draw.randint(1, 4))
    return Elementwise(functions), (_size(draw, 1 << 10, WEIGHTS),)


def pools(draw: random.Random, _: float) -> Layer:
    """A pool over windows, or over whole images, of what a convolution has left in its layout."""
    channels, size = _size(draw, 8, 2048), draw.choice((7, 14, 28, 56, 112))
    while channels * size**2 > WEIGHTS >> 2:
        channels = max(8, channels // 16 * 8)
    kinds = (
        *(nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d(1)),
    )
    before = nn.Conv2d(channels, channels, 1, groups=channels)
    return nn.Sequential(before, draw.choice(kinds)), (1, channels, size, size)


def group_norms(draw: random.Random, _: float) -> Layer:
    """A norm over groups of channels, of what a convolution has left in its layout."""
    groups, size = draw.choice((1, 4, 8, 8, 16, 32, 32)), draw.choice((4, 8, 16, 32, 64, 128))
    channels = _size(draw, 32, 1024, 32)
    while channels * size**2 > WEIGHTS >> 2:
        size //= 2
    before = nn.Conv2d(channels, channels, 1, groups=channels)
    return nn.Sequential(before, nn.GroupNorm(groups, channels)), (1, channels, size, size)


def _row_sums(x: Tensor) -> Tensor:
    return x.sum(-1)


CLASSES = {
    "products": products,
    "matmuls": matmuls,
    "few_rows": few_rows,
    "resident": resident,
    "convolutions": convolutions,
    "windows": windows,
    "stages": stages,
    "attention": attention,
    "rows": rows,
    "elementwise": elementwise,
    "pools": pools,
    "group_norms": group_norms,
}


QWEN = {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
}  # fmt: skip


def decoder_sizes(draw: random.Random) -> dict[str, int]:
    """Returns sizes of a decoder of two layers."""
    dim, kv_heads = draw.choice((64, 128)), draw.choice((1, 2, 4, 8))
    heads = kv_heads * draw.choice((1, 2, 4, 6))
    return {
        "hidden_size": heads * dim, "intermediate_size": _size(draw, 512, 8192, 64),
        "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "vocab_size": _size(draw, 1 << 12, 1 << 16, 64),
    }  # fmt: skip


def decoder(sizes: dict[str, Any]) -> nn.Module:
    """Returns a decoder of Qwen2's kind, without values."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        max_position_embeddings=4096, tie_word_embeddings=True, dtype=torch.bfloat16, **sizes
    )
    with torch.device("meta"):
        return Qwen2ForCausalLM(config).to(torch.bfloat16).eval()


def decoders() -> Iterator[tuple[str, dict[str, int], int]]:
    """Yields a prefix of names, sizes, and tokens in the cache."""
    draw = random.Random(f"{SEED} decoders")
    for i in range(DECODERS):
        yield f"decoder{i}_", decoder_sizes(draw), _size(draw, 16, 3072, 1)
    for name, (known, context) in {**PARTS, **WHOLE}.items():
        yield f"{name}_", known, context
    yield "", QWEN, CONTEXT


# ---- programs, each compiled in a process of its own ----


@dataclass(frozen=True)
class Task:
    """A program to compile and profile.

    Attributes:
        name: of its profile; of a decoder, what its methods follow.
        kind: "layers", "models", "unseen" or "decoders".
        part: of a class's shapes.
        sizes, context: a decoder's, with the tokens in its cache.
        seed: of a class's shapes.
    """

    name: str
    kind: str
    part: int = 0
    sizes: Mapping[str, int] | None = None
    context: int = 0
    seed: int = SEED

    @property
    def methods(self) -> tuple[str | None, ...]:
        """Those that are profiled; None: the only one."""
        return ("prefill", "decode") if self.kind == "decoders" else (None,)

    def profile(self, folder: Path, method: str | None) -> Path:
        """Returns the path of the profile of a method."""
        end = method or (str(self.part) if self.kind == "layers" else "")
        return folder / f"{self.name}{end}.json"

    def measured(self, folder: Path) -> bool:
        """Tells whether all of its profiles are there."""
        return all(self.profile(folder, method).exists() for method in self.methods)


def tasks(what: list[str], classes: list[str], seed: int, shapes: int) -> Iterator[Task]:
    """Yields what is asked for; of layers first a part of each class, then another of each."""
    if "layers" in what:
        for part in range(shapes // PART):
            for name in classes:
                yield Task(name, "layers", part, seed=seed)
    if "models" in what:
        for name in MODELS:
            yield Task(name, "models")
    if "unseen" in what:
        for name in unseen():
            yield Task(name, "unseen")
    if "decoders" in what:
        for name, sizes, context in decoders():
            yield Task(name, "decoders", 0, sizes, context)


def make(task: Task, device: str, dtype: torch.dtype, folder: str) -> tuple[Task, str]:
    """Compiles a program into a folder, unless it is there; returns its path, too."""
    seed = f"_{task.seed}" if task.seed != SEED else ""
    path = Path(folder) / f"{task.kind}_{task.name}{task.part}{seed}.npubin"
    if path.exists():
        return task, str(path)
    torch.set_num_threads(1)
    if task.kind == "layers":
        draw = random.Random(f"{task.seed} {task.name}")
        with torch.device("meta"):
            end = (task.part + 1) * PART
            drawn = [CLASSES[task.name](draw, LARGEST[device]) for _ in range(end)][-PART:]
            net: nn.Module = SideBySide([layer for layer, _ in drawn]).eval().to(dtype)
            given = tuple(torch.empty(shape, dtype=dtype) for _, shape in drawn)
        program = npusim.compile((net, given), device)
    elif task.kind == "models":
        net, given = others()[task.name] if task.name in others() else build(task.name)
        given = tuple(x.to(dtype) if x.is_floating_point() else x for x in given)
        program = npusim.compile((net.eval().to(dtype), given), device)
    elif task.kind == "unseen":
        graph, precision = unseen()[task.name].graph()
        program = npusim.compile(graph, device, precision=precision)
    else:
        assert task.sizes is not None
        model = decoder(dict(task.sizes))
        module = npusim.extract_llm(model, max_context=4096, prefill_chunk=128)
        program = npusim.compile(module, device)
    program.save(path)
    return task, str(path)


def write_weights(program: CompiledProgram, path: Path) -> None:
    """Writes a checkpoint of seeded weights above 0: variances are among them.

    Each has bytes of its own. A CPU uses weights of 16 bits where the checkpoint has them, and
    those that shared memory would share caches, as those of no model do.
    """
    sizes = {spec.keys[0]: torch.Size(spec.shape).numel() for spec in program.weights}
    generator = torch.Generator().manual_seed(SEED)
    values = torch.rand(max(sizes.values(), default=1), generator=generator).mul_(0.02).add_(0.001)
    kinds = {spec.dtype for spec in program.weights}
    images = {kind: values.to(getattr(torch, kind)).view(torch.uint8).numpy() for kind in kinds}
    header, end = dict[str, Any](), 0
    for spec in program.weights:
        begin, end = end, end + sizes[spec.keys[0]] * getattr(torch, spec.dtype).itemsize
        header[spec.keys[0]] = {
            "dtype": SAFETENSORS[spec.dtype], "shape": spec.shape, "data_offsets": [begin, end]
        }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)  # data begin at a multiple of 64 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for spec in program.weights:
            begin, end = header[spec.keys[0]]["data_offsets"]
            file.write(images[spec.dtype][: end - begin].data)


def main() -> None:
    """Reads the command line, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu", choices=sorted(LARGEST))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring each program")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile")
    parser.add_argument(
        "--what", default="layers,models", help="of layers, models, unseen, decoders"
    )
    parser.add_argument("--classes", default=",".join(CLASSES), help="of layers")
    parser.add_argument(
        "--seed", type=int, default=SEED, help="of layers: another one, other shapes"
    )
    parser.add_argument("--shapes", type=int, default=SHAPES, help="of each class")
    parser.add_argument("--programs", type=Path, help="where compiled programs are kept")
    parser.add_argument("--state", type=Path, help="of the machine: a program that tells it")
    parser.add_argument("--least-rate", type=float, default=0.0, help="GFLOP/s of all cores")
    parser.add_argument("--within", type=float, help="begins no measurement after these seconds")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.programs is not None:
        args.programs.mkdir(parents=True, exist_ok=True)
    dtype = getattr(torch, args.dtype)
    end = time.monotonic() + (math.inf if args.within is None else args.within)
    with (
        tempfile.TemporaryDirectory() as made,
        ProcessPoolExecutor(args.jobs, multiprocessing.get_context("fork")) as pool,
    ):
        wanted = [
            pool.submit(make, task, args.device, dtype, str(args.programs or made))
            for task in tasks(args.what.split(","), args.classes.split(","), args.seed, args.shapes)
            if not task.measured(args.folder)
        ]
        device = Device(args.device, threads=args.threads)  # behind the fork
        state = None if args.state is None else State(args.state, args.least_rate)
        for ready in as_completed(wanted):
            if ready.exception() is not None:
                print(f"a program was not made: {ready.exception()}", flush=True)
            elif time.monotonic() < end:
                made_of = ready.result()
                _measure(*made_of, device, args.folder, args.seconds, state)


@dataclass(frozen=True)
class State:
    """The state that a machine is measured in.

    Attributes:
        program: `machine_state.cpp`, compiled.
        least_rate: GFLOP/s that its cores reach at once.
    """

    program: Path
    least_rate: float

    def holds(self) -> bool:
        """Tells whether the machine is in it now."""
        told = subprocess.run(
            [self.program], capture_output=True, text=True, timeout=10, check=True
        )
        distance, rate = map(float, told.stdout.split())
        return distance <= NEIGHBOURS and rate >= self.least_rate

    def awaited(self) -> bool:
        """Tells whether it is in it within a second."""
        end = time.monotonic() + 1.0
        while not self.holds():
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        return True


def _measure(
    task: Task,
    program_path: str,
    device: Device,
    folder: Path,
    seconds: float,
    state: State | None = None,
) -> None:
    program = CompiledProgram.load(program_path)
    with tempfile.TemporaryDirectory() as made:
        checkpoint = Path(made) / "weights.safetensors"
        write_weights(program, checkpoint)
        loaded = load_weights(str(checkpoint), program, device)
    for method in task.methods:
        path = task.profile(folder, method)
        for _ in range(TRIES):
            if state is not None and not state.awaited():
                continue
            found = profile_program(
                program, loaded, device=device, seconds=seconds, method=method, context=task.context
            )
            if state is None or state.holds():
                path.write_text(json.dumps(profile_facts(found), separators=(",", ":")) + "\n")
                told = f"{len(found.commands)} commands, {1e3 * found.run_seconds:.3f} ms"
                print(f"{path.stem}: {told}", flush=True)
                break
        else:
            print(f"{path.stem}: the machine is in another state", flush=True)


if __name__ == "__main__":
    main()

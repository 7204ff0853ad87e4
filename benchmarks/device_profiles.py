"""Profiles of a device, for whoever fits a model of it: many shapes of single layers, and models.

    PYTHONPATH=python:. python -m benchmarks.device_profiles FOLDER [--device cuda] [--jobs 16]

writes `<class><i>.json` of seeded shapes of each class of layer (products, batches of products,
both of few rows, products that caches hold, convolutions, windows of 3 by 3, the same behind a
layer, attention, rows, elementwise, pools, norms over groups), `PART` of them in one program, and
`<model>.json` of whole models, each as `npusim profile --json` prints it; with `--what unseen`,
models that no fit has seen, with `--what named` those of `gpu_models.py` that `--names` says, as
`timm_volo_d1_224.json`. With `--what decoders` there are two-layer decoders of seeded sizes,
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
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.models import build
from torch import nn

import npusim
from benchmarks import architectures
from benchmarks.gpu_preparation import named
from benchmarks.profiled_layers import BEYOND, CLASSES, SideBySide, size_of
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

LAYERS = {**CLASSES, **BEYOND}
QWEN = {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
}  # fmt: skip


def decoder_sizes(draw: random.Random) -> dict[str, int]:
    """Returns sizes of a decoder of two layers."""
    dim, kv_heads = draw.choice((64, 128)), draw.choice((1, 2, 4, 8))
    heads = kv_heads * draw.choice((1, 2, 4, 6))
    return {
        "hidden_size": heads * dim, "intermediate_size": size_of(draw, 512, 8192, 64),
        "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "vocab_size": size_of(draw, 1 << 12, 1 << 16, 64),
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
        yield f"decoder{i}_", decoder_sizes(draw), size_of(draw, 16, 3072, 1)
    for name, (known, context) in {**PARTS, **WHOLE}.items():
        yield f"{name}_", known, context
    yield "", QWEN, CONTEXT


# ---- programs, each compiled in a process of its own ----


@dataclass(frozen=True)
class Task:
    """A program to compile and profile.

    Attributes:
        name: of its profile; of a decoder, what its methods follow.
        kind: "layers", "models", "unseen", "named" or "decoders".
        part: of a class's shapes; of a named model, the batch.
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
        return folder / f"{self.name.replace('/', '_')}{end}.json"

    def measured(self, folder: Path) -> bool:
        """Tells whether all of its profiles are there."""
        return all(self.profile(folder, method).exists() for method in self.methods)


def tasks(
    what: list[str], classes: list[str], seed: int, shapes: int, names: list[str]
) -> Iterator[Task]:
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
    if "named" in what:
        for name, batch in named(names, [1]):
            yield Task(name, "named", batch)
    if "decoders" in what:
        for name, sizes, context in decoders():
            yield Task(name, "decoders", 0, sizes, context)


def make(task: Task, device: str, dtype: torch.dtype, folder: str) -> tuple[Task, str]:
    """Compiles a program into a folder, unless it is there; returns its path, too."""
    seed = f"_{task.seed}" if task.seed != SEED else ""
    name = task.name.replace("/", "_")
    path = Path(folder) / f"{task.kind}_{name}{task.part}{seed}.npubin"
    if path.exists():
        return task, str(path)
    torch.set_num_threads(1)
    if task.kind == "layers":
        draw = random.Random(f"{task.seed} {task.name}")
        with torch.device("meta"):
            end = (task.part + 1) * PART
            drawn = [LAYERS[task.name](draw, LARGEST[device]) for _ in range(end)][-PART:]
            net: nn.Module = SideBySide([layer for layer, _ in drawn]).eval().to(dtype)
            given = tuple(torch.empty(shape, dtype=dtype) for _, shape in drawn)
        program = npusim.compile((net, given), device)
    elif task.kind == "models":
        net, given = others()[task.name] if task.name in others() else build(task.name)
        given = tuple(x.to(dtype) if x.is_floating_point() else x for x in given)
        program = npusim.compile((net.eval().to(dtype), given), device)
    elif task.kind == "named":
        net, given = architectures.build(task.name, task.part)
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
    parser.add_argument("--names", nargs="+", default=[], help="of models, as gpu_models has them")
    parser.add_argument("--programs", type=Path, help="where compiled programs are kept")
    parser.add_argument("--state", type=Path, help="of the machine: a program that tells it")
    parser.add_argument("--least-rate", type=float, default=0.0, help="GFLOP/s of all cores")
    parser.add_argument("--within", type=float, help="begins no measurement after these seconds")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.programs is not None:
        args.programs.mkdir(parents=True, exist_ok=True)
    dtype, asked = getattr(torch, args.dtype), (args.what.split(","), args.classes.split(","))
    end = time.monotonic() + (math.inf if args.within is None else args.within)
    with (
        tempfile.TemporaryDirectory() as made,
        ProcessPoolExecutor(args.jobs, multiprocessing.get_context("fork")) as pool,
    ):
        wanted = [
            pool.submit(make, task, args.device, dtype, str(args.programs or made))
            for task in tasks(*asked, args.seed, args.shapes, args.names)
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

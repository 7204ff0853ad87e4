"""Ranks on GPUs: what an exchange takes by its size, and what a token takes.

    PYTHONPATH=python:. python -m benchmarks.ranks_cuda exchanges [--device cuda:0,1]
    PYTHONPATH=python:. python -m benchmarks.ranks_cuda nccl [--device cuda:0,1]
    PYTHONPATH=python:. python -m benchmarks.ranks_cuda prepare FOLDER SHAPE RUNS...
    PYTHONPATH=python:. python -m benchmarks.ranks_cuda decode FOLDER SHAPE RUNS... [--device …]

`exchanges` prints microseconds of an all_reduce in bfloat16 by bytes and way, median (10th - 90th
percentile): a chain of them in one program, its time less that of a chain of a tenth, which runs in
turn with it, over their number. Inputs and results stay on the devices meanwhile. What the chains
compute is held to exact values. `nccl` prints those of PyTorch's, in a CUDA graph, with a process a
GPU. `prepare` compiles a model for RUNS, into FOLDER: numbers of ranks, or one and the way that all
its sums go, whatever their size (`4:one_shot`). `decode` prints milliseconds of a token at batch 1
after 1,024 tokens (median, 10th and 90th percentile), and whether what is generated again has the
same bits, of each of RUNS, which are what was prepared, or a number of ranks and how they reach
each other (`2:nccl`; NPUSIM_CUDA_EXCHANGE); and how far logits of all are from those of the last.
Weights are seeded, and layers share them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

import npusim
import npusim.errors
from npusim.codegen.cuda import ranks as rules
from npusim.codegen.cuda.rules import RULES
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.lowering.assemble import assemble
from npusim.targets.target_config import TargetConfig

BEHIND, CONTEXT, NEW, VOCAB = 1024, 1280, 64, 128256
SIZES = tuple(kib << 10 for kib in (8, 64, 256, 1 << 10, 8 << 10))
SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": {
        "vocab_size": VOCAB, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 8192, "rope_theta": 500000.0, "tie_word_embeddings": False,
    },
    "qwen-1.5b": {},
}  # fmt: skip


def spread(seconds: Sequence[float]) -> str:
    """Returns median, 10th and 90th percentile in ms."""
    tenths = statistics.quantiles(seconds, n=10)
    middle = statistics.median(seconds)
    return f"{1e3 * middle:.3f} ({1e3 * tenths[0]:.3f} - {1e3 * tenths[-1]:.3f})"


# Exchanges


def chain(elements: int, count: int, ranks: int) -> npusim.CompiledProgram:
    """Compiles so many sums of ranks' values behind one another."""
    from npusim.codegen.generate import generate

    type = TensorType("bfloat16", (elements,))
    b = GraphBuilder("chain")
    value = b.input("x", type)
    for _ in range(count):
        value = b.node("npu.all_reduce", (value,), type, {"ranks": ranks})
    b.output("y", value)
    target = TargetConfig.named("cuda")
    return generate(assemble(b.build(), target), target)


class Chain:
    """A chain on devices, with its input and its result there."""

    def __init__(self, device: npusim.Device, elements: int, count: int, ranks: int) -> None:
        self.session = npusim.load(chain(elements, count, ranks), weights={}, device=device)
        at = self.session.device
        self.x = (1 + np.arange(elements) * 2654435761 % 7).astype(np.float32)
        self.sum = np.float32(ranks) ** count
        self.given, self.made = (npusim.DeviceBuffer(at, "bfloat16", (elements,)) for _ in "xy")
        for turn in range(4):  # a replay must not take what the run before has left
            self.given.write(bfloat16_bytes(np.roll(self.x, turn)))
            self.seconds()
            self.check(turn)

    def seconds(self) -> float:
        """Runs it; returns its time by the host's clock."""
        run, session = self.session.executor.time_run, self.session
        (x,), (y,) = session.input_names, session.output_names
        return run({x: self.given}, session.weights, outputs={y: self.made})

    def check(self, turn: int = 3) -> None:
        """Raises AssertionError where the last run's values are not what they have to be."""
        wanted = bfloat16_bytes(np.roll(self.x, turn) * self.sum)
        differs = np.frombuffer(self.made.read(), np.uint16) != np.frombuffer(wanted, np.uint16)
        wrong = np.flatnonzero(differs)
        assert wrong.size == 0, f"turn {turn}: {wrong.size} wrong, the first at {wrong[0]}"


def bfloat16_bytes(values: np.ndarray[Any, Any]) -> bytes:
    """Returns values, which are exact in bfloat16, as it has them."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()


def microseconds(device: npusim.Device, elements: int, ranks: int) -> str:
    """Returns what an exchange of a chain takes.

    Raises:
        AssertionError: the chain's values are not what they have to be.
    """
    counts = (10, 110) if ranks == 2 else (6, 60)  # what bfloat16 has room for
    few, many = (Chain(device, elements, count, ranks) for count in counts)
    found = []
    for _ in range(40):
        took = [run.seconds() for run in (few, many)]
        found.append(1e6 * (took[1] - took[0]) / (counts[1] - counts[0]))
    few.check()
    many.check()
    tenths = statistics.quantiles(found, n=10)
    return f"{statistics.median(found):.2f} ({tenths[0]:.2f} - {tenths[-1]:.2f})"


def exchanges(args: argparse.Namespace) -> int:
    """Prints times; returns how many chains failed."""
    device_name, ways = args.device, list(rules.Way)[:: -1 if args.backwards else 1]
    device = npusim.Device(device_name)
    ordinals = device_name.partition(":")[2].split(",")
    kept = [npusim.Device(f"cuda:{ordinal}") for ordinal in ordinals]  # and their contexts
    ranks, failed = len(kept), 0
    print("bytes      " + "".join(f"{way.name.lower():>26}" for way in ways), "(us)")
    for bytes in args.sizes:
        row = f"{bytes:<11}"
        for way in ways:
            said = "-"
            if way is not rules.Way.LINES or bytes <= 64 << 10:
                try:
                    with sums_by(way, args.overlap):
                        said = microseconds(device, bytes // 2, ranks)
                except (npusim.errors.DeviceError, AssertionError) as error:
                    print(f"{bytes} {way.name}: {error}", flush=True)
                    said, failed = "failed", failed + 1
            row += f"{said:>26}"
        print(row, flush=True)
    return failed


@contextmanager
def sums_by(way: rules.Way | None, overlap: bool = False) -> Iterator[None]:
    """Has all sums that are compiled meanwhile go a way; None: that of their size."""
    table = cast(dict[str, Any], RULES)
    rule = table["all_reduce"]
    if way is not None:
        table["all_reduce"] = lambda p: replace(
            rules.reduce_config(p, way), overlaps=overlap or way is rules.Way.LINES
        )
    try:
        yield
    finally:
        table["all_reduce"] = rule


def nccl_worker(rank: int, ranks: int) -> None:
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "NCCL_NVLS_ENABLE": "0"}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    for bytes in SIZES:
        x = torch.zeros(bytes // 2, dtype=torch.bfloat16, device="cuda")
        for _ in range(3):
            dist.all_reduce(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(50):
                dist.all_reduce(x)
        found = []
        for _ in range(12):
            dist.barrier()
            torch.cuda.synchronize()
            start = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            found.append((time.perf_counter() - start) / 50)
        if rank == 0:
            print(f"NCCL {bytes:<10} {1e6 * statistics.median(found):8.2f} us", flush=True)
    dist.barrier()
    torch.cuda.synchronize()
    sys.stdout.flush()
    os._exit(0)  # ending the group waits for graphs that hold it


def nccl(ranks: int) -> None:
    import torch.multiprocessing as mp

    mp.spawn(nccl_worker, args=(ranks,), nprocs=ranks)


# Tokens


def configured(shape: str) -> Any:
    """Returns the configuration of a model that transformers knows."""
    import torch
    import transformers

    from benchmarks.llm_peers import configuration

    if shape == "qwen-1.5b":
        return configuration("1.5b")
    config = transformers.LlamaConfig(**SHAPES[shape], architectures=["LlamaForCausalLM"])
    config.dtype = torch.bfloat16
    return config


def split_run(run: str) -> tuple[int, str, str]:
    """Returns a run's ranks, its file's suffix, and what NPUSIM_CUDA_EXCHANGE is to be."""
    count, _, way = run.partition(":")
    return (int(count), f"{count}-{way}", "") if is_sums(way) else (int(count), count, way)


def is_sums(way: str) -> bool:
    return way.upper() in rules.Way.__members__


def prepare(folder: Path, shape: str, runs: Sequence[str]) -> None:
    config = configured(shape)
    config.save_pretrained(folder / shape)
    module = npusim.extract_llm(folder / shape, max_context=CONTEXT, prefill_chunk=128)
    for run in runs:
        count, suffix, _ = split_run(run)
        options: Any = {"tensor_parallel": count} if count > 1 else {}
        way = run.partition(":")[2].upper()
        with sums_by(rules.Way[way] if way else None):
            program = npusim.compile(module, "cuda:sm_90a", **options)
        program.save(folder / f"{shape}-{suffix}.npubin")


def seeded(shape: str) -> dict[str, Any]:
    """Returns seeded weights; those of one shape are one tensor."""
    import torch
    import transformers

    config = configured(shape)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    drawn = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    made: dict[Any, Any] = {}
    weights = {}
    for key, tensor in model.state_dict().items():
        if "norm" in key:
            weights[key] = torch.ones(tensor.shape, dtype=torch.bfloat16)
        elif key != "lm_head.weight" or not config.tie_word_embeddings:
            at = (tensor.shape, "embed" in key)
            if at not in made:
                times = tensor.numel() // drawn.numel() + 1  # a prime: rows begin at other numbers
                made[at] = drawn.repeat(times)[: tensor.numel()].reshape(tensor.shape)
            weights[key] = made[at]
    return weights


class Timer:
    """Says when what was done."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.start:6.1f} s] {text}", flush=True)


def token_times(session: Any) -> list[float]:
    """Returns seconds a token of several generations behind a prompt."""
    times = []
    for turn in range(8):
        session.rewind(BEHIND)
        begin = time.perf_counter()
        for _ in session.generate_tokens([7], max_new_tokens=NEW, ignore_eos=True):
            pass
        if turn > 1:
            times.append((time.perf_counter() - begin) / NEW)
    return times


def logits_along(session: Any, chosen: list[int]) -> list[Any]:
    """Returns logits behind the prompt and behind each token, which are chosen where none are."""
    rows = [session.logits.copy()]
    for token in range(8):
        if len(chosen) == token:
            chosen.append(int(rows[-1].argmax()))
        session.append([chosen[token]])
        rows.append(session.logits.copy())
    return rows


def decode(folder: Path, shape: str, runs: Sequence[str], device: str) -> None:
    timer = Timer()
    weights = seeded(shape)
    timer.say(f"{shape}: weights made")
    prompt = np.random.default_rng(0).integers(10, 100_000, BEHIND).tolist()
    ordinals = device.partition(":")[2].split(",")
    rows: dict[str, list[Any]] = {}
    chosen: list[int] = []
    for run in runs:
        count, suffix, os.environ["NPUSIM_CUDA_EXCHANGE"] = split_run(run)
        program = npusim.CompiledProgram.load(folder / f"{shape}-{suffix}.npubin")
        name = "cuda:" + ",".join(ordinals[:count])
        lm = npusim.LanguageModel.load(program, weights, device=name)
        timer.say(f"{shape}: loaded for {run} ranks on {lm.device.description}")
        sessions = [lm.new_session() for _ in range(2)]
        for session in sessions:
            session.append(prompt)
        twice = [logits_along(session, chosen) for session in sessions]
        same = all(a.tobytes() == b.tobytes() for a, b in zip(*twice, strict=True))
        rows[run] = twice[0]
        found = spread(token_times(sessions[0]))
        timer.say(f"{shape}, {run} ranks: a generated token {found} ms; twice the same: {same}")
        del session, sessions, lm
    for run in runs[:-1]:
        pairs = list(zip(rows[run], rows[runs[-1]], strict=True))
        most = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
        same_tokens = sum(a.argmax() == b.argmax() for a, b in pairs)
        timer.say(
            f"{shape}: logits of {run} ranks against {runs[-1]}: {most:.2e} of the largest, "
            f"{same_tokens} of {len(pairs)} tokens the same"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("exchanges", "nccl", "prepare", "decode"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("shape", choices=SHAPES, nargs="?")
    parser.add_argument("runs", nargs="*", help="numbers of ranks, with ways")
    parser.add_argument("--device", default="cuda:0,1")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--overlap", action="store_true", help="start large exchanges early")
    parser.add_argument("--backwards", action="store_true", help="the ways in turned order")
    args = parser.parse_args()
    if args.what == "exchanges":
        sys.exit(exchanges(args))
    elif args.what == "nccl":
        nccl(len(args.device.split(",")))
    elif args.what == "prepare":
        prepare(args.folder, args.shape, args.runs)
    else:
        decode(args.folder, args.shape, args.runs, args.device)


if __name__ == "__main__":
    main()

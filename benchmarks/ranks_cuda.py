"""Ranks on GPUs: what an exchange takes by its size, and what a token takes.

    PYTHONPATH=python:. python -m benchmarks.ranks_cuda exchanges [--device cuda:0,1]
    PYTHONPATH=python:. python -m benchmarks.ranks_cuda nccl [--device cuda:0,1]
    PYTHONPATH=python:. python -m benchmarks.ranks_cuda decode FOLDER SHAPE [--device cuda:0,1]

`exchanges` prints microseconds of an all_reduce in bfloat16 by bytes: a chain of them in one
program, its time less that of a chain of a tenth, over their number. `nccl` prints those of
PyTorch's, in a CUDA graph, with a process a GPU. `decode` prints milliseconds of a token at batch 1
after 1,024 tokens (median, 10th and 90th percentile) on one rank and on all, and how far logits
differ. FOLDER receives the configuration.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import npusim
from npusim.codegen.cuda import ranks as rules
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.lowering.assemble import assemble
from npusim.targets.target_config import TargetConfig

BEHIND, CONTEXT, NEW, VOCAB = 1024, 1280, 64, 128256
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


def seconds_of(program: npusim.CompiledProgram, device: npusim.Device, elements: int) -> float:
    """Returns the median time of a run, waiting included."""
    session = npusim.load(program, weights={}, device=device)
    x = np.zeros(elements, np.float32)
    found = []
    for _ in range(25):
        start = time.perf_counter()
        session(x)
        found.append(time.perf_counter() - start)
    return statistics.median(found[5:])


def exchanges(device_name: str) -> None:
    device = npusim.Device(device_name)
    ranks = len(device_name.partition(":")[2].split(","))
    rule = rules.RULES["all_reduce"]
    print("bytes      " + "".join(f"{way.name.lower():>12}" for way in rules.Way), "(us)")
    for bytes in (4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20):
        row = f"{bytes:<11}"
        for way in rules.Way:
            if way is rules.Way.LINES and bytes > 64 << 10:
                row += f"{'-':>12}"
                continue
            rules.RULES["all_reduce"] = lambda p, way=way: rules.reduce_config(p, way)
            few, many = (10, 110) if bytes <= 1 << 20 else (2, 22)
            times = [
                seconds_of(chain(bytes // 2, n, ranks), device, bytes // 2) for n in (few, many)
            ]
            row += f"{1e6 * (times[1] - times[0]) / (many - few):12.2f}"
        rules.RULES["all_reduce"] = rule
        print(row, flush=True)


def nccl_worker(rank: int, ranks: int) -> None:
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "NCCL_NVLS_ENABLE": "0"}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    for bytes in (4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20):
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
    dist.destroy_process_group()


def nccl(ranks: int) -> None:
    import torch.multiprocessing as mp

    mp.spawn(nccl_worker, args=(ranks,), nprocs=ranks)


# Tokens


def seeded(folder: Path, shape: str) -> dict[str, Any]:
    """Writes the configuration; returns seeded weights, which are made on the GPU."""
    import torch
    import transformers

    from benchmarks.llm_peers import configuration

    folder.mkdir(parents=True, exist_ok=True)
    if shape == "qwen-1.5b":
        config = configuration("1.5b")
    else:
        config = transformers.LlamaConfig(**SHAPES[shape], architectures=["LlamaForCausalLM"])
        config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    generator = torch.Generator("cuda").manual_seed(0)
    weights = {}
    for key, tensor in model.state_dict().items():
        if "norm" in key:
            weights[key] = torch.ones(tensor.shape, dtype=torch.bfloat16)
        elif key != "lm_head.weight" or not config.tie_word_embeddings:
            made = torch.randn(tensor.shape, generator=generator, device="cuda") * 0.02
            weights[key] = made.to(torch.bfloat16).cpu()
    torch.cuda.empty_cache()
    return weights


def decode(folder: Path, shape: str, device: str) -> None:
    start = time.perf_counter()
    weights = seeded(folder, shape)
    print(f"{shape}: weights made in {time.perf_counter() - start:.1f} s", flush=True)
    module = npusim.extract_llm(folder, max_context=CONTEXT, prefill_chunk=128)
    print(f"extracted at {time.perf_counter() - start:.1f} s", flush=True)
    prompt = np.random.default_rng(0).integers(10, 100_000, BEHIND).tolist()
    ranks = len(device.partition(":")[2].split(","))
    rows: dict[int, Any] = {}
    for count, name in ((ranks, device), (1, "cuda")):
        options: Any = {"tensor_parallel": count} if count > 1 else {}
        program = npusim.compile(module, "cuda", **options)
        print(f"compiled at {time.perf_counter() - start:.1f} s", flush=True)
        lm = npusim.LanguageModel.load(program, weights, device=name)
        print(f"{count} ranks on {lm.device.description}", flush=True)
        print(f"loaded at {time.perf_counter() - start:.1f} s", flush=True)
        session = lm.new_session()
        session.append(prompt)
        logits = [session.logits.copy()]
        chosen = [int(logits[0].argmax())] if count == ranks else rows[ranks][1]
        for token in range(8):  # along the same tokens
            session.append([chosen[token]])
            logits.append(session.logits.copy())
            if count == ranks:
                chosen.append(int(logits[-1].argmax()))
        rows[count] = (logits, chosen)
        times = []
        for turn in range(8):
            session.rewind(BEHIND)
            begin = time.perf_counter()
            for _ in session.generate_tokens([7], max_new_tokens=NEW, ignore_eos=True):
                pass
            if turn > 1:
                times.append((time.perf_counter() - begin) / NEW)
        print(f"{shape}, {count} ranks: a generated token {spread(times)} ms", flush=True)
        del session, lm
    errors = [
        float(np.abs(a - b).max() / np.abs(b).max())
        for a, b in zip(rows[ranks][0], rows[1][0], strict=True)
    ]
    same = sum(a.argmax() == b.argmax() for a, b in zip(rows[ranks][0], rows[1][0], strict=True))
    print(f"logits of {ranks} ranks against one: {max(errors):.2e} of the largest, {same} of 9 "
          f"tokens the same", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("exchanges", "nccl", "decode"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("shape", choices=SHAPES, nargs="?")
    parser.add_argument("--device", default="cuda:0,1")
    args = parser.parse_args()
    os.environ["NPUSIM_CUDA_RANKS"] = "1"
    if args.what == "exchanges":
        exchanges(args.device)
    elif args.what == "nccl":
        nccl(len(args.device.split(",")))
    else:
        decode(args.folder, args.shape, args.device)


if __name__ == "__main__":
    main()

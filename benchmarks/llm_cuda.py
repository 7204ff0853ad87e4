"""Qwen2.5-1.5B on a GPU: the compiled program beside transformers, on the same seeded weights.

    PYTHONPATH=python:. python benchmarks/llm_cuda.py PROGRAM_CUDA PROGRAM_CPU FOLDER

The programs come from `npusim compile` of one extracted model, for cuda and for cpu. FOLDER
receives the weights, which are made here. Prints whether the GPU's logits agree with the CPU's,
how fast the weights load, and the times of a prompt and of a decoded token; the peer is
transformers with a static cache, eager and compiled, in the same run. The floor is the weights'
bytes by the bandwidth that a read of them reaches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import npusim
from benchmarks.llm_peers import CHUNK, VOCAB, write_model


def row(what: str, value: str) -> None:
    print(f"{what:52} {value:>30}", flush=True)


def spread(seconds: list[float]) -> str:
    """Returns median and 10th to 90th percentile in ms."""
    tenths = statistics.quantiles(seconds, n=10)
    middle = statistics.median(seconds)
    return f"{1e3 * middle:.3f} ({1e3 * tenths[0]:.3f} - {1e3 * tenths[-1]:.3f}) ms"


def times(call: Callable[[], object], repeats: int) -> list[float]:
    """Times calls that end synchronised, after two that do not count."""
    found = []
    for _ in range(repeats + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return found[2:]


def ours(args: argparse.Namespace, prompt: list[int]) -> None:
    """Checks and times the compiled programs."""
    start = time.perf_counter()
    lm = npusim.LanguageModel.load(args.cuda, weights=args.folder, device="cuda")
    row("npusim: program and weights ready", f"{time.perf_counter() - start:.2f} s")
    gpu, cpu = (
        model.new_session()
        for model in (lm, npusim.LanguageModel.load(args.cpu, weights=args.folder))
    )
    for step, tokens in enumerate((prompt[:CHUNK], prompt[CHUNK : CHUNK + 1], prompt[:200])):
        gpu.append(tokens)
        cpu.append(tokens)
        want, got = cpu.logits, gpu.logits
        error = float(np.abs(want - got).max() / np.abs(want).max())
        row(f"logits against the CPU, step {step}", f"{error:.2e}")
    for length in (CHUNK, 1024):
        session = lm.new_session()

        def prefill(length: int = length, session: Any = session) -> None:
            session.reset()
            session.append(prompt[:length])

        row(f"npusim: prompt of {length}", spread(times(prefill, 15)))
        decode = times(lambda s=session: s.append([7]), 60)
        row(f"npusim: decode behind {length}", spread(decode))


def peers(folder: Path, prompt: list[int]) -> None:
    """Times transformers."""
    import transformers

    torch.set_grad_enabled(False)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model = model.eval().cuda()
    ids = torch.tensor([prompt[:CHUNK]], device="cuda")
    for name, forward in (
        ("eager", model.forward),
        ("compiled, reduce-overhead", torch.compile(model.forward, mode="reduce-overhead")),
    ):
        cache = transformers.StaticCache(model.config, max_cache_len=512)
        model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token = torch.tensor([[7]], device="cuda")
        position = torch.tensor([[CHUNK]], device="cuda")
        arguments = {"past_key_values": cache, "use_cache": True, "position_ids": position}
        decode = times(lambda f=forward, t=token, a=arguments: f(t, **a).logits.argmax(), 40)
        row(f"transformers {name}: decode behind {CHUNK}", spread(decode))


def bandwidth() -> float:
    """Returns the GB/s at which a reduction reads 4 GB."""
    data = torch.ones(2**31, dtype=torch.bfloat16, device="cuda")
    best = min(times(lambda: torch.max(data), 10))
    return data.nbytes / best / 1e9


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cuda", type=Path)
    parser.add_argument("cpu", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    row("device", torch.cuda.get_device_name())
    row("read bandwidth", f"{bandwidth():.0f} GB/s")
    args.folder.mkdir(parents=True, exist_ok=True)
    if not (args.folder / "model.safetensors").exists():
        write_model("1.5b", args.folder)
    prompt = np.random.default_rng(0).integers(10, VOCAB, 1024).tolist()
    ours(args, prompt)
    peers(args.folder, prompt)


if __name__ == "__main__":
    main()

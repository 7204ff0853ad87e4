"""Qwen2.5-1.5B on a GPU: the compiled program beside transformers, on the same seeded weights.

    PYTHONPATH=python:. python benchmarks/llm_cuda.py PROGRAM_CUDA PROGRAM_CPU FOLDER

The programs come from `npusim compile` of one model, extracted with `prefill_chunk=(128, 1024)`,
for cuda and for cpu. FOLDER receives the weights, which are made here. Prints whether the GPU's
logits agree with the CPU's, how fast the weights load, and the times of prompts, of decoded and of
generated tokens, with launches that overlap and with launches one after another; the peer is
transformers with a static cache, eager and compiled, in the same run. The floor is the weights'
bytes by the bandwidth that a read of them reaches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import npusim
from benchmarks.llm_peers import CHUNK, VOCAB, write_model

LENGTHS, NEW = (128, 1024, 4000), 64


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


def loaded(program: Path, folder: Path, dependent: bool = True) -> npusim.LanguageModel:
    """Returns the model on the GPU, with launches that overlap or one after another."""
    os.environ["NPUSIM_CUDA_DEPENDENT_LAUNCH"] = str(int(dependent))
    return npusim.LanguageModel.load(program, weights=folder, device="cuda")


def agreement(args: argparse.Namespace, prompt: list[int]) -> None:
    """Compares logits with the CPU's, and with those of launches that do not overlap."""
    gpu, plain, cpu = (
        model.new_session()
        for model in (
            loaded(args.cuda, args.folder),
            loaded(args.cuda, args.folder, dependent=False),
            npusim.LanguageModel.load(args.cpu, weights=args.folder),
        )
    )
    for step, tokens in enumerate((prompt[:CHUNK], prompt[CHUNK : CHUNK + 1], prompt[:200])):
        for session in (gpu, plain, cpu):
            session.append(tokens)
        want, got = cpu.logits, gpu.logits
        error = float(np.abs(want - got).max() / np.abs(want).max())
        row(f"logits against the CPU, step {step}", f"{error:.2e}")
        same = np.array_equal(got, plain.logits)
        row(f"the same bits without overlap, step {step}", "yes" if same else "NO")


def ours(args: argparse.Namespace, prompt: list[int]) -> None:
    """Times the compiled program: prompts, tokens with their logits on the host, and generation."""
    for level in ("overlapping", "one after another"):
        start = time.perf_counter()
        lm = loaded(args.cuda, args.folder, dependent=level == "overlapping")
        row("npusim: program and weights ready", f"{time.perf_counter() - start:.2f} s")
        for length in LENGTHS:
            session = lm.new_session()

            def prefill(length: int = length, session: Any = session) -> None:
                session.reset()
                session.append(prompt[:length])

            row(f"{level}: prompt of {length}", spread(times(prefill, 10)))
            decode = times(lambda s=session: s.append([7]), 60)
            row(f"{level}: decode after {length}", spread(decode))

            def generate(length: int = length, session: Any = session) -> None:
                session.rewind(length)
                for _ in session.generate_tokens([7], max_new_tokens=NEW, ignore_eos=True):
                    pass

            def draw(length: int = length, session: Any = session) -> None:
                session.rewind(length)
                options = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "seed": 1}
                for _ in session.generate_tokens(
                    [7], max_new_tokens=NEW, ignore_eos=True, **options
                ):
                    pass

            each = [seconds / NEW for seconds in times(generate, 10)]
            row(f"{level}: a generated token after {length}", spread(each))
            each = [seconds / NEW for seconds in times(draw, 10)]
            row(f"{level}: decode with sampling on the device", spread(each))


def first_token(args: argparse.Namespace) -> None:
    """Times a process that loads the program and makes one token; files are in the page cache."""
    code = (
        "import sys, npusim; lm = npusim.LanguageModel.load(sys.argv[1], weights=sys.argv[2], "
        "device='cuda'); print(next(lm.generate_tokens(list(range(10, 138)))))"
    )
    took = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, args.cuda, args.folder], check=True)
        took.append(time.perf_counter() - start)
    row("process start to first token", f"{min(took):.2f} - {max(took):.2f} s")


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
        row(f"transformers {name}: decode after {CHUNK}", spread(decode))


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
    prompt = np.random.default_rng(0).integers(10, VOCAB, max(LENGTHS)).tolist()
    agreement(args, prompt)
    ours(args, prompt)
    first_token(args)
    peers(args.folder, prompt)


if __name__ == "__main__":
    main()

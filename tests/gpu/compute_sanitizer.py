"""compute-sanitizer over npusim's own kernels: memcheck and racecheck, some cases of every stem.

    python -m tests.gpu.compute_sanitizer [memcheck] [racecheck]

Needs a GPU and the tool, which CUDA's toolkit brings. Runs conformance cases that together call
every stem, small language models in bfloat16, int8 and int4 that generate in every way to choose a
token, and products, attention and convolutions in all their configs. All run side by side,
some processes a part. Prints what they print as it comes; exits with 1 when one found something.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

TOOLS = ("memcheck", "racecheck")
Case = Callable[[], set[str]]  # runs, and returns the stems that it called
GENERATION: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 1},
    {"temperature": 2.0, "top_k": 90, "top_p": 0.9, "min_p": 1e-3, "repetition_penalty": 1.2},
]


def main(tools: list[str]) -> int:
    """Runs all of this file's work under each tool, side by side; returns the exit code."""
    command = find_tool()
    if command is None:
        print("compute-sanitizer is not installed: it comes with CUDA's toolkit.")
        return 1
    jobs = [
        (f"{tool}, {part} {shard + 1} of {shards}", (tool, part, str(shard)))
        for tool in tools or TOOLS
        for part, (_, shards) in PARTS.items()
        for shard in range(shards)
    ]
    with ThreadPoolExecutor(len(jobs)) as pool:
        codes = list(pool.map(lambda job: watch(command, *job), jobs))
    return int(any(codes))


def watch(command: str, name: str, job: tuple[str, str, str]) -> int:
    """Runs a shard of a part under a tool; prints its lines as they come, after their name."""
    tool, *work_of = job
    process = subprocess.Popen(
        [
            # The runtime asks the driver for one parameter too many, to know their number.
            *(command, "--tool", tool, "--report-api-errors", "no"),
            *("--error-exitcode", "9", "--print-limit", "20"),
            *(sys.executable, "-m", "tests.gpu.compute_sanitizer", "--work", *work_of),
        ],
        env={**os.environ, "NPUSIM_CUDA_LIBRARIES": "off"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.write(f"{name}: {line}")  # in one piece, beside those of other jobs
        sys.stdout.flush()
    code = process.wait()
    sys.stdout.write(f"{name}: {'clean' if code == 0 else f'exit code {code}'}\n")
    return code


def find_tool() -> str | None:
    """Returns the tool's path: on the PATH, or in a toolkit."""
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    folders = [str(Path(root) / "bin") for root in roots if root]
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join(folders)
    )


def work(part: str, shard: int) -> None:
    """Runs every so manieth case of a part; prints the stems they called."""
    cases, shards = PARTS[part]
    called: set[str] = set()
    for count, case in enumerate(islice(cases(), shard, None, shards), 1):
        called |= case()
        print(f"{count} cases, {len(called)} stems: {', '.join(sorted(called))}", flush=True)


def conformance_cases() -> Iterator[Case]:
    """Yields two cases or more of every stem."""
    import npusim
    from npusim.codegen import generate
    from tests.codegen.cases import TARGET, spread

    device = npusim.Device("cuda")

    def run(example: Any) -> set[str]:
        program = generate(example.program, TARGET)
        npusim.load(program, device=device)(*(t for t in example.tensors if t is not None))
        return stems_of(program)

    for example in spread(2):
        yield partial(run, example)


def configs() -> Iterator[Case]:
    """Yields products, attention and a convolution, each in every config."""
    import npusim
    from tests.gpu.launch_configs import COMMANDS, example, in_every_launch_config

    device = npusim.Device("cuda")

    def run(name: str) -> set[str]:
        found, called = example(name), set()
        for _, program in in_every_launch_config(found.program):
            npusim.load(program, found.weights, device)(*found.inputs)
            called |= stems_of(program)
        return called

    for name in COMMANDS:
        yield partial(run, name)


def language_models() -> Iterator[Case]:
    """Yields a prompt and some steps of small models, by every kind of weights."""
    import torch

    import npusim
    from tests.end_to_end.architectures import small_model
    from tests.end_to_end.decoding import prompt_of

    def run(quantize: str) -> set[str]:
        model = small_model("qwen2-tied", torch.bfloat16)
        module = npusim.extract_llm(model, max_context=200, prefill_chunk=128)
        program = npusim.compile(module, "cuda", quantize=quantize)
        lm = npusim.LanguageModel.load(program, model.state_dict(), device="cuda")
        for options in GENERATION:
            list(lm.generate_tokens(prompt_of(130), max_new_tokens=3, ignore_eos=True, **options))
        return stems_of(program)

    for quantize in ("none", "int8", "int4-g32"):
        yield partial(run, quantize)


def stems_of(program: Any) -> set[str]:
    """Returns the names of a program's kernels."""
    return {kernel.name for kernel in program.kernels}


# Each with the number of processes that share its cases.
PARTS: dict[str, tuple[Callable[[], Iterator[Case]], int]] = {
    "conformance": (conformance_cases, 4),
    "configs": (configs, 5),
    "language models": (language_models, 3),
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1:]))

"""compute-sanitizer over npusim's own kernels: memcheck and racecheck, some cases of every stem.

    python -m tests.gpu.compute_sanitizer [memcheck] [racecheck]

Needs a GPU and the tool, which CUDA's toolkit brings. Runs conformance cases that together call
every stem, small language models in bfloat16, int8 and int4 that generate in every way to choose a
token, and products, attention and convolutions in all their geometries. All parts run side by side.
Prints their summaries, and exits with 1 when one found something.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TOOLS = ("memcheck", "racecheck")
GENERATION: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 1},
    {"temperature": 2.0, "top_k": 90, "top_p": 0.9, "min_p": 1e-3, "repetition_penalty": 1.2},
]


def main(tools: list[str]) -> int:
    """Runs each part of this file's work under each tool, all at once; returns the exit code."""
    command = find_tool()
    if command is None:
        print("compute-sanitizer is not installed: it comes with CUDA's toolkit.")
        return 1
    running = {
        f"{tool}, {part}": subprocess.Popen(
            [
                # The runtime asks the driver for one parameter too many, to know their number.
                *(command, "--tool", tool, "--report-api-errors", "no"),
                *("--error-exitcode", "9", "--print-limit", "20"),
                *(sys.executable, "-m", "tests.gpu.compute_sanitizer", "--work", part),
            ],
            env={**os.environ, "NPUSIM_CUDA_LIBRARIES": "off"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for tool in tools or TOOLS
        for part in PARTS
    }
    found = 0
    for name, process in running.items():
        print(process.communicate()[0], end="")
        code = process.returncode
        print(f"{name}: {'clean' if code == 0 else f'exit code {code}'}", flush=True)
        found |= code != 0
    return int(found)


def find_tool() -> str | None:
    """Returns the tool's path: on the PATH, or in a toolkit."""
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    folders = [str(Path(root) / "bin") for root in roots if root]
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join(folders)
    )


def work(part: str) -> None:
    """Runs the cases of a part; prints the stems they called."""
    stems = set().union(*PARTS[part]())
    print(f"{len(stems)} stems ran: {', '.join(sorted(stems))}", flush=True)


def conformance_cases() -> Iterator[set[str]]:
    """Runs two cases or more of every stem; yields the stems of each."""
    import npusim
    from npusim.codegen import generate
    from tests.codegen.cases import TARGET, spread

    device = npusim.Device("cuda")
    for example in spread(2):
        program = generate(example.program, TARGET)
        session = npusim.load(program, device=device)
        session(*(t for t in example.tensors if t is not None))
        yield {kernel.name for kernel in program.kernels}


def geometries() -> Iterator[set[str]]:
    """Runs products, attention and a convolution in every geometry; yields their stems."""
    import npusim
    from tests.gpu.geometries import COMMANDS, example, in_every_geometry

    device = npusim.Device("cuda")
    for name in COMMANDS:
        found = example(name)
        for _, program in in_every_geometry(found.program):
            npusim.load(program, found.weights, device)(*found.inputs)
            yield {kernel.name for kernel in program.kernels}


def language_models() -> Iterator[set[str]]:
    """Runs a prompt and some steps of small models; yields their stems."""
    import torch

    import npusim
    from tests.end_to_end.architectures import small_model
    from tests.end_to_end.decoding import prompt_of

    for quantize in ("none", "int8", "int4-g32"):
        model = small_model("qwen2-tied", torch.bfloat16)
        module = npusim.extract_llm(model, max_context=200, prefill_chunk=128)
        program = npusim.compile(module, "cuda", quantize=quantize)
        lm = npusim.LanguageModel.load(program, model.state_dict(), device="cuda")
        for options in GENERATION:
            list(lm.generate_tokens(prompt_of(130), max_new_tokens=3, ignore_eos=True, **options))
        yield {kernel.name for kernel in program.kernels}


PARTS: dict[str, Callable[[], Iterator[set[str]]]] = {
    "conformance": conformance_cases,
    "geometries": geometries,
    "language models": language_models,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:]))

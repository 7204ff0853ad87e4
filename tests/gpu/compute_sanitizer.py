"""compute-sanitizer over npusim's own kernels: memcheck and racecheck, some cases of every stem.

    python -m tests.gpu.compute_sanitizer [memcheck] [racecheck]

Needs a GPU and the tool, which CUDA's toolkit brings. Runs conformance cases that together call
every stem, and small language models in bfloat16 and int4, whose kernels take other paths. Prints
the tool's summary, and exits with 1 when it found something.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TOOLS = ("memcheck", "racecheck")


def main(tools: list[str]) -> int:
    """Runs this file's `work` under each tool; returns the exit code."""
    command = find_tool()
    if command is None:
        print("compute-sanitizer is not installed: it comes with CUDA's toolkit.")
        return 1
    found = 0
    for tool in tools or TOOLS:
        done = subprocess.run(
            [
                # The runtime asks the driver for one parameter too many, to know their number.
                *(command, "--tool", tool, "--report-api-errors", "no"),
                *("--error-exitcode", "9", "--print-limit", "20"),
                *(sys.executable, "-m", "tests.gpu.compute_sanitizer", "--work"),
            ],
            env={**os.environ, "NPUSIM_CUDA_LIBRARIES": "off"},
            check=False,
        )
        print(f"{tool}: {'clean' if done.returncode == 0 else f'exit code {done.returncode}'}")
        found |= done.returncode != 0
    return int(found)


def find_tool() -> str | None:
    """Returns the tool's path: on the PATH, or in a toolkit."""
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    folders = [str(Path(root) / "bin") for root in roots if root]
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join(folders)
    )


def work() -> None:
    """Runs the cases; prints the stems they called."""
    stems: set[str] = set()
    for called in (*conformance_cases(), *language_models()):
        stems |= called
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
        list(lm.generate_tokens(prompt_of(130), max_new_tokens=4, ignore_eos=True))
        yield {kernel.name for kernel in program.kernels}


if __name__ == "__main__":
    if sys.argv[1:] == ["--work"]:
        work()
    else:
        sys.exit(main(sys.argv[1:]))

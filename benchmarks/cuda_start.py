"""What a fresh process takes until it has an answer from a GPU, with its files in the page cache.

    PYTHONPATH=python:. python -m benchmarks.cuda_start [--language PROGRAM] [--models resnet50 …]
        [--processes 5] [--folder FOLDER] [--json FILE]

Models are those of `tests.models` in float16, batch 1, compiled here; PROGRAM is what
`npusim compile` makes of Qwen2.5-1.5B for a GPU, whose weights are made here at random. Figures are
of processes of their own, one after another, timed from before they start; a process says when each
step was done. Printed: median and range of each step, in ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROMPT = 128

# Both print, for each step, how long after the start of the process it was done.
CLOCK = """
import sys, time
began = float(sys.argv[1])
def done(step): print(step, time.time() - began)
done("Python")
"""
VISION = """
import numpy as np
import npusim
from npusim.runtime.native import native_program
done("import")
device = npusim.Device("cuda")
done("driver and context")
program = native_program(sys.argv[2])
weights = npusim.load_weights(sys.argv[3], program, device)
done("weights")
session = npusim.load(program, weights, device)
done("kernels")
(spec,) = session.inputs
session(np.zeros(spec.shape, np.float16))
done("first answer")
"""
LANGUAGE = """
import npusim
done("import")
device = npusim.Device("cuda")
done("driver and context")
model = npusim.LanguageModel.load(sys.argv[2], weights=sys.argv[3], device=device)
done("weights and kernels")
next(iter(model.new_session().generate_tokens(list(range(10, 138)), max_new_tokens=1)))
done("first token")
"""


def steps(code: str, program: Path, weights: Path, processes: int) -> dict[str, list[float]]:
    """Returns, for each step, how long it took in each process, in seconds."""
    found: dict[str, list[float]] = {}
    for _ in range(processes + 1):
        began = time.time()
        command = [sys.executable, "-c", CLOCK + code, repr(began), str(program), str(weights)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        before = 0.0
        for line in lines.splitlines():
            step, at = line.rsplit(" ", 1)
            found.setdefault(step, []).append(float(at) - before)
            before = float(at)
        found.setdefault("all", []).append(before)
    return {step: took[1:] for step, took in found.items()}  # the first fetches files


def report(what: str, found: dict[str, list[float]]) -> None:
    for step, took in found.items():
        middle, low, high = (1e3 * f(took) for f in (statistics.median, min, max))
        print(f"{what:12} {step:28} {middle:9.1f} ms ({low:.1f} - {high:.1f})", flush=True)


def vision(name: str, folder: Path) -> tuple[Path, Path]:
    """Compiles a model for the GPU here; returns the paths of its program and weights."""
    import torch
    from safetensors.torch import save_file
    from tests.models import build

    import npusim

    network, inputs = build(name, batch=1)
    model, x = network.half(), inputs[0].half()
    major, minor = torch.cuda.get_device_capability()
    target = f"cuda:sm_{major}{minor}" + "a" * (major == 9)
    paths = folder / f"{name}.npubin", folder / f"{name}.safetensors"
    npusim.compile(npusim.extract_ir(model, (x,)), target=target).save(paths[0])
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, paths[1])
    return paths


def language(program: Path, folder: Path) -> Path:
    """Writes random weights for a program of a language model; returns their folder."""
    import torch
    from safetensors.torch import save_file

    from npusim.runtime.native import native_program

    tensors = {}
    for keys, dtype, shape in native_program(program).weights:
        kind, size = getattr(torch, dtype), tuple(shape)
        scaled = torch.ones(size, dtype=kind) if "norm" in keys[0] else None
        if scaled is None:
            scaled = (torch.randn(size, device="cuda") * 0.02).to(kind).cpu()
        tensors[keys[0]] = scaled
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--language", type=Path)
    parser.add_argument("--models", nargs="*", default=["resnet50"])
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where programs and weights are left")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for model in args.models:
            found[model] = steps(VISION, *vision(model, folder), args.processes)
            report(model, found[model])
        if args.language:
            weights = language(args.language, folder)
            found["language"] = steps(LANGUAGE, args.language, weights, args.processes)
            report("language", found["language"])
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What a fresh process takes until it has an answer from the CPU, with its files in the page cache.

    PYTHONPATH=python:. python -m benchmarks.start [--models resnet50 …] [--processes 11]
        [--threads N] [--processor] [--json FILE]

Importing is timed beside a Python that imports nothing and one that imports NumPy alone, in turns.
Models are those of `tests.models` in float32, batch 1, compiled here, from the checkpoint and from
packed weights in turns; steps are timed in processes of their own, one after another. Memory is
what a process holds at rest, after two calls (resident, from /proc: pages of a mapped checkpoint
that were read count). Printed: median and range, in ms.

`--processor` counts the time of processors instead of the clock's, all threads together: what is
left of the truth on a machine that others use. With one thread an idle machine takes that long.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

IMPORTS = {"Python": "pass", "Python, numpy": "import numpy", "Python, npusim": "import npusim"}
MODEL = """
import sys, time
import numpy as np
import npusim
clock = time.process_time if sys.argv[4] == "1" else time.perf_counter
began = clock()
def done(step):
    global began
    print(step, clock() - began)
    began = clock()
threads = {"threads": int(sys.argv[3])} if sys.argv[3] != "0" else {}
session = npusim.load(sys.argv[1], weights=sys.argv[2], **threads)
done("load")
x = [np.zeros(spec.shape, spec.dtype) for spec in session.inputs]
began = clock()
session(*x)
done("first call")
session(*x)
done("second call")
try:
    rows = open("/proc/self/status").read().splitlines()
    print("memory", sum(int(row.split()[1]) for row in rows if row.startswith("VmRSS")) / 1024)
except OSError:
    pass
"""


def _processor() -> float:
    """Returns the seconds of processors that ended children took."""
    times = os.times()
    return times.children_user + times.children_system


def imports(processes: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Returns how long processes take, from start to end, in seconds."""
    found: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(processes + 1):
        for name, code in IMPORTS.items():
            began = clock()
            subprocess.run([sys.executable, "-c", code], check=True)
            found[name].append(clock() - began)
    return {name: took[1:] for name, took in found.items()}  # the first fetches files


def model(
    name: str, folder: Path, threads: int, processes: int, processor: bool
) -> dict[str, dict[str, list[float]]]:
    """Compiles a model; returns its steps, in seconds, and its memory, in MiB, by its weights."""
    from safetensors.torch import save_file
    from tests.models import build

    import npusim

    network, inputs = build(name, batch=1)
    program, weights = folder / f"{name}.npubin", folder / f"{name}.safetensors"
    compiled = npusim.compile(npusim.extract_ir(network, inputs))
    compiled.save(program)
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, weights)
    loaded = npusim.load_weights(weights, compiled, npusim.Device("cpu"))
    npusim.pack_weights(loaded, folder / f"{name}.npuw")
    sources = {name: weights, f"{name}, packed": folder / f"{name}.npuw"}
    found: dict[str, dict[str, list[float]]] = {source: {} for source in sources}
    for _ in range(processes + 1):
        for source, path in sources.items():
            numbers = [str(threads), str(int(processor))]
            command = [sys.executable, "-c", MODEL, str(program), str(path), *numbers]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            for line in done.stdout.splitlines():
                step, value = line.rsplit(" ", 1)
                found[source].setdefault(step, []).append(float(value))
    return {source: _kept(steps) for source, steps in found.items()}


def _kept(steps: dict[str, list[float]]) -> dict[str, list[float]]:
    """Returns steps without the first process, which fetched files, and what they make together."""
    kept = {step: values[1:] for step, values in steps.items()}
    both = zip(kept["load"], kept["first call"], strict=True)
    return {**kept, "disk to first result": [sum(pair) for pair in both]}


def report(what: str, found: dict[str, list[float]]) -> None:
    """Prints the median and the range of each step."""
    for step, values in found.items():
        scale, unit = (1.0, "MiB") if step == "memory" else (1e3, "ms")
        middle, low, high = (scale * f(values) for f in (statistics.median, min, max))
        print(f"{what:20} {step:22} {middle:9.1f} {unit} ({low:.1f} - {high:.1f})", flush=True)


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="*", default=["resnet50"])
    parser.add_argument("--processes", type=int, default=11)
    parser.add_argument("--threads", type=int, default=0, help="0: the device's own choice")
    parser.add_argument("--processor", action="store_true", help="time of processors")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    clock = _processor if args.processor else time.perf_counter
    found = {"import": imports(args.processes, clock)}
    report("import", found["import"])
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            made = model(name, Path(folder), args.threads, args.processes, args.processor)
            for what, steps in made.items():
                report(what, steps)
            found |= made
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

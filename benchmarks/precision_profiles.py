"""Where a model's time goes on the CPU, by kernel, in float32 and in bfloat16.

    PYTHONPATH=python:. python benchmarks/precision_profiles.py [--models resnet50 …] [--threads 1]

Both programs are timed command by command in one process (`npusim.profile_program`); a kernel's
time is the sum of its commands' medians. Printed per model and precision: milliseconds and commands
by kernel, and the error of the first output beside PyTorch in float64.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MODELS = ("resnet50", "mobilenet_v2", "efficientnet_b0", "convnext_tiny", "vit_b_16", "bert_base")
PRECISIONS = ("float32", "bfloat16")


def report(name: str, threads: int, repeats: int) -> None:
    """Prints a line a precision."""
    import torch
    from tests.models import build

    import npusim

    network, inputs = build(name)
    graph = npusim.extract_ir(network, inputs)
    state = {key: value.clone() for key, value in network.state_dict().items()}
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    with torch.no_grad():
        exact = torch.utils._pytree.tree_leaves(network.double()(*wide))[0].numpy()
    arrays = [x.numpy() for x in inputs]
    for precision in PRECISIONS:
        program = npusim.compile(graph, precision=precision)
        got = npusim.load(program, weights=state, threads=threads)(*arrays)[0]
        error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
        given = {spec.name: x for spec, x in zip(program.input_specs, arrays, strict=True)}
        found = npusim.profile_program(
            program, weights=state, inputs=given, threads=threads, repeats=repeats
        )
        seconds, counts = Counter[str](), Counter[str]()
        for command in found.commands:
            seconds[command.kernel] += command.seconds  # type: ignore[assignment]
            counts[command.kernel] += 1
        parts = (f"{k} {1e3 * s:.2f} ({counts[k]})" for k, s in seconds.most_common(6))
        total = 1e3 * sum(seconds.values())
        print(f"{name} {precision}: {total:.2f} ms, error {error:.1e}: {', '.join(parts)}")


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    for name in args.models:
        report(name, args.threads, args.repeats)


if __name__ == "__main__":
    main()

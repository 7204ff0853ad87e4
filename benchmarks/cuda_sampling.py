"""The command that chooses a token, alone: its time in each way to choose, and whether it is right.

    PYTHONPATH=python:. python -m benchmarks.cuda_sampling [--dtype bfloat16] [--size 151936]

Scores are normal, as far apart as those of a language model, and written by a command in front.
Between runs a product of matrices takes the caches, of instructions too. Choices are compared with
the reference's. Printed: median and 10th to 90th percentile of the times between two events.
"""

from __future__ import annotations

import argparse
import statistics

import torch

import npusim
from npusim.ir.graph import Graph, Node, Output, Value
from npusim.ir.types import TensorType
from npusim.ops.sampling import OPTIONS, SAMPLE, infer_sample, reference_sample
from npusim.program.program import CompiledProgram

CAPACITY, LENGTH, REPEATS, CHECKED = 1024, 400, 40, 8
INPUTS = ("options", "seed", "length", "token", "history")
WAYS: dict[str, dict[str, float]] = {
    "greedy": {},
    "penalty 1.1": {"repetition_penalty": 1.1},
    "T 0.8": {"temperature": 0.8},
    "T 0.8, min-p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "T 0.8, top-k 50": {"temperature": 0.8, "top_k": 50},
    "T 0.8, top-k 50, top-p 0.95": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "T 0.8, top-p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "T 1.5, top-p 0.95, penalty 1.1": {
        "temperature": 1.5,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
    },
}
OFF = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def program(dtype: str, size: int) -> CompiledProgram:
    """Returns y = -x, and the choice among y."""
    types = (
        TensorType(dtype, (1, 1, size)),
        TensorType("float64", (len(OPTIONS),)),
        TensorType("int64", (1,)),
        TensorType("int64", (1,)),
        TensorType("int64", (1, 1)),
        TensorType("int64", (CAPACITY,)),
    )
    names = ("x", *INPUTS)
    chosen, token, history = infer_sample(*types)
    outputs = (Value("chosen", chosen), Value("next", token), Value("said", history))
    negated = Node("y", "aten.neg.default", ("x",), (Value("y", types[0]),), {})
    choice = Node("choice", SAMPLE, ("y", *INPUTS), outputs, {})
    inputs = tuple(Value(n, t) for n, t in zip(names, types, strict=True))
    results = tuple(Output(v.name, v.name) for v in outputs)
    graph = Graph("choice", inputs, results, (), (), (negated, choice))
    return npusim.compile(graph, "cuda")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--size", type=int, default=151936)
    args = parser.parse_args()
    device = npusim.Device("cuda")
    executor = npusim.Executor(program(args.dtype, args.size), device)
    generator = torch.Generator().manual_seed(0)
    x = (0.8 * torch.randn(1, 1, args.size, generator=generator)).to(getattr(torch, args.dtype))
    history = torch.randint(0, args.size, (CAPACITY,), generator=generator)
    large = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    print(f"{torch.cuda.get_device_name()}, {args.dtype}[{args.size}]", flush=True)
    for name, given in WAYS.items():
        numbers = {**OFF, **given}
        options = torch.tensor([numbers[key] for key in OPTIONS], dtype=torch.float64)
        times, right = [], True
        for turn in range(REPEATS):
            tensors = (
                *(x, options, torch.tensor([turn]), torch.tensor([LENGTH])),
                *(torch.tensor([[7]]), history),
            )
            buffers = {
                spec.name: npusim.DeviceBuffer.from_dlpack(t.cuda(), device)
                for spec, t in zip(executor.inputs(), tensors, strict=True)
            }
            outputs = executor.run(buffers)
            large @ large
            torch.cuda.synchronize()
            times.append(1e6 * executor.time(buffers)[-1])
            if turn < CHECKED:
                want = reference_sample(-x, *tensors[1:])[0]
                right &= int(torch.as_tensor(outputs["chosen"], device="cpu")) == int(want)
        tenths = statistics.quantiles(times, n=10)
        shown = f"{statistics.median(times):6.1f} ({tenths[0]:.1f} - {tenths[-1]:.1f}) us"
        print(f"{name:34} {shown}  {'right' if right else 'WRONG'}", flush=True)


if __name__ == "__main__":
    main()

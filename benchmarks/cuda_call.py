"""What one call of a small network takes from Python, its tensors on the GPU, beside PyTorch.

    PYTHONPATH=python:. python -m benchmarks.cuda_call [--calls 3000] [--json FILE]

An MLP 16-16-16 in float16, one row. `returns`: the mean time until a call returns, of many, one
after the other; `done`: the same until the device has done them all; `alone`: the median of calls
that each wait for the device, which includes `torch.cuda.synchronize`, whose time on an idle device
stands in the last row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import npusim
from npusim.runtime import DeviceBuffer

WARM, ALONE = 200, 1000


def measure(call: Callable[[], object], calls: int) -> dict[str, float]:
    """Returns the three times, in microseconds."""
    for _ in range(WARM):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    done = time.perf_counter()
    alone = []
    for _ in range(ALONE):
        before = time.perf_counter()
        call()
        torch.cuda.synchronize()
        alone.append(time.perf_counter() - before)
    return {
        "returns": 1e6 * (returned - start) / calls,
        "done": 1e6 * (done - start) / calls,
        "alone": 1e6 * statistics.median(alone),
    }


def ways() -> dict[str, Callable[[], object]]:
    """Returns ways to call the network, all with the same result."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).half().eval()
    x = torch.randn(1, 16).half()
    major, minor = torch.cuda.get_device_capability()
    target = f"cuda:sm_{major}{minor}" + "a" * (major == 9)
    program = npusim.compile(npusim.extract_ir(network, (x,)), target=target)
    session = npusim.load(program, network.state_dict(), npusim.Device("cuda"))
    on_gpu, network, other = x.cuda(), network.cuda(), torch.randn(1, 16, device="cuda").half()
    want = network(on_gpu)
    (got,) = session(on_gpu)
    torch.testing.assert_close(got, want)
    executor, name = session.executor, session.inputs[0].name
    buffer = DeviceBuffer.from_numpy(x.numpy(), session.device)
    held = {session.outputs[0].name: DeviceBuffer(session.device, "float16", (1, 16))}
    array, kept = x.numpy(), [torch.empty(0)]

    def elsewhere() -> None:
        kept[0] = session(on_gpu)[0]  # the result before lives on until this one is there

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        network(on_gpu)
    turns = [on_gpu, other]

    def inputs_elsewhere() -> None:
        turns.reverse()
        session(turns[0])

    return {
        "npusim, torch tensors": lambda: session(on_gpu),
        "npusim, result elsewhere each time": elsewhere,
        "npusim, input elsewhere each time": inputs_elsewhere,
        "npusim, its own buffers": lambda: session(buffer),
        "npusim, buffers made before": lambda: executor.run(
            {name: buffer}, session.weights, outputs=held
        ),
        "npusim, NumPy arrays": lambda: session(array),
        "torch, CUDA graph": graph.replay,
        "torch, eager": lambda: network(on_gpu),
        "nothing": lambda: None,
    }


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds")
    print(f"{'':36} {'returns':>8} {'done':>8} {'alone':>8}")
    found = {}
    for name, call in ways().items():
        found[name] = times = measure(call, args.calls)
        print(f"{name:36} " + " ".join(f"{t:8.2f}" for t in times.values()), flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What a runtime's process runs: `python -m npusim.peers.worker JOB`, JOB as JSON.

    {"runtime": name, "model": file, "inputs": [.npy …], "outputs": folder, "threads": n,
     "weights": file or null, "names": [[ours, theirs] …], "copy": bool, "plan": bool}

It loads, calls once, leaves the outputs of that call in the folder, and answers "burst" with the
seconds of calls and "memory" with the most bytes the process has had.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npusim.peers.process import answer
from npusim.peers.runtimes import RUNTIMES, Call
from npusim.profile.memory import peak_rss

BURST_SECONDS = 0.25
_SHORT = 2e-4  # seconds; calls that take less are timed in groups
_GROUP = 100


def answers(
    call: Call, clock: Callable[[], float] = time.perf_counter
) -> Callable[[str], dict[str, Any]]:
    """Returns what answers the requests about a loaded runtime; `clock` gives seconds."""

    def answered(request: str) -> dict[str, Any]:
        return {"seconds": burst(call, clock)} if request == "burst" else {"peak_bytes": peak_rss()}

    return answered


def burst(call: Call, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Times calls one by one for a quarter of a second of `clock`; very short ones in groups."""
    seconds: list[float] = []
    call()
    start = clock()
    call()
    group = _GROUP if clock() - start < _SHORT else 1
    end = clock() + BURST_SECONDS
    while clock() < end or len(seconds) < 2:
        start = clock()
        for _ in range(group):
            call()
        seconds.append((clock() - start) / group)
    return seconds


def _load(job: Mapping[str, Any]) -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
    inputs = [np.load(path, allow_pickle=False) for path in job["inputs"]]
    start = time.perf_counter()
    call = _npusim(job, inputs) if job["runtime"] == "npusim" else _peer(job, inputs)
    loaded = time.perf_counter() - start
    for index, output in enumerate(call()):
        np.save(Path(job["outputs"]) / f"{index}.npy", _array(output), allow_pickle=False)
    return {"load_s": loaded}, answers(call)


def _npusim(job: Mapping[str, Any], inputs: Sequence[np.ndarray]) -> Call:
    import npusim

    device = npusim.Device("cpu", threads=job["threads"])
    if job["plan"]:
        executor = npusim.DAGExecutor(npusim.PartitionPlan.load(job["model"]), device)
        executor.load_weights(_checkpoint(job), copy=job["copy"])
        return lambda: list(executor.execute(inputs).values())
    session = npusim.load(job["model"], _checkpoint(job), device, copy=job["copy"])
    return lambda: session(*inputs)


def _peer(job: Mapping[str, Any], inputs: Sequence[np.ndarray]) -> Call:
    runtime = RUNTIMES[job["runtime"]]
    if runtime.form == "onnx":
        return runtime.load(Path(job["model"]), inputs, job["threads"])
    from npusim.ir.graph import Graph
    from npusim.partition.host_weights import host_tensors
    from npusim.peers.torch_module import torch_module

    graph = Graph.load(job["model"])
    module = torch_module(graph, host_tensors(_checkpoint(job), graph.weights))
    return runtime.load(module, inputs, job["threads"])


def _checkpoint(job: Mapping[str, Any]) -> Any:
    if job["weights"] is None:
        return None
    from npusim.runtime.checkpoint import Checkpoint

    return Checkpoint(job["weights"], dict(job["names"]))


def _array(output: Any) -> np.ndarray:
    """Returns an output as NumPy has it, which has no bfloat16."""
    if not isinstance(output, np.ndarray) and str(output.dtype) == "torch.bfloat16":
        output = output.float()
    return np.asarray(output)


if __name__ == "__main__":
    answer(lambda: _load(json.loads(sys.argv[1])))

"""The peers of the CPU benchmark: how each prepares a model, loads it, and is called once.

A loader returns a function that runs the model on the stored inputs and gives NumPy outputs; only
what a deployment would import is imported in the worker's process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.worker import answer_requests

Call = Callable[[], Any]
BURST_SECONDS = 0.25


@dataclass(frozen=True)
class Peer:
    """A runtime under comparison: the package it needs, how it prepares and how it loads."""

    package: str
    load: Callable[[str, Path, int], Call]
    prepare: Callable[[Any, tuple[Any, ...], Path], None] | None = None


def _inputs(folder: Path) -> list[np.ndarray]:
    return [np.load(p) for p in sorted(folder.glob("input*.npy"))]


# npusim


def _prepare_npusim(
    model: Any, inputs: tuple[Any, ...], folder: Path, precision: str = "float32"
) -> None:
    from safetensors.torch import save_model

    import npusim

    program = npusim.compile((model, inputs), precision=precision)
    program.save(folder / f"model.{precision}.npubin")
    save_model(model, str(folder / "model.safetensors"))


def _load_npusim(model: str, folder: Path, threads: int, precision: str = "float32") -> Call:
    import npusim

    program = folder / f"model.{precision}.npubin"
    session = npusim.load(program, weights=folder / "model.safetensors", threads=threads)
    inputs = _inputs(folder)
    return lambda: session(*inputs)


# torch


def _torch_model(model: str, folder: Path, threads: int) -> tuple[Any, list[Any]]:
    import torch
    from tests.models import build

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    network, _ = build(model)
    return network, [torch.from_numpy(x) for x in _inputs(folder)]


def _load_eager(model: str, folder: Path, threads: int) -> Call:
    network, inputs = _torch_model(model, folder, threads)
    return lambda: network(*inputs)


def _load_compiled(model: str, folder: Path, threads: int) -> Call:
    import torch
    import torch._inductor.config as config

    config.freezing = True
    network, inputs = _torch_model(model, folder, threads)
    compiled = torch.compile(network)
    compiled(*inputs)
    return lambda: compiled(*inputs)


# ONNX Runtime, OpenVINO, ExecuTorch


def _prepare_onnx(model: Any, inputs: tuple[Any, ...], folder: Path) -> None:
    import torch

    torch.onnx.export(model, inputs, folder / "model.onnx", dynamo=True, external_data=True)


def _load_onnxruntime(model: str, folder: Path, threads: int) -> Call:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(
        str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    feed = dict(zip(names, _inputs(folder), strict=True))
    return lambda: session.run(None, feed)


def _prepare_openvino(model: Any, inputs: tuple[Any, ...], folder: Path) -> None:
    import openvino as ov

    converted = ov.convert_model(model, example_input=inputs)
    for port, value in zip(converted.inputs, inputs, strict=True):
        port.get_node().set_partial_shape(ov.PartialShape(list(value.shape)))
    converted.validate_nodes_and_infer_types()
    ov.save_model(converted, folder / "model.xml", compress_to_fp16=False)


def _load_openvino(model: str, folder: Path, threads: int, precision: str = "f32") -> Call:
    import openvino as ov

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
    }
    compiled = ov.Core().compile_model(str(folder / "model.xml"), "CPU", settings)
    request, inputs = compiled.create_infer_request(), _inputs(folder)

    def call() -> list[np.ndarray]:
        request.infer(inputs, share_inputs=True)
        return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    return call


def _prepare_executorch(model: Any, inputs: tuple[Any, ...], folder: Path) -> None:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    exported = torch.export.export(model, inputs)
    program = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    (folder / "model.pte").write_bytes(program.to_executorch().buffer)


def _load_executorch(model: str, folder: Path, threads: int) -> Call:
    import torch
    from executorch.extension.pybindings.portable_lib import _load_for_executorch
    from executorch.runtime import Runtime  # noqa: F401  (registers the backends)

    torch.set_num_threads(threads)
    module = _load_for_executorch(str(folder / "model.pte"))
    inputs = [torch.from_numpy(x) for x in _inputs(folder)]
    return lambda: module.forward(inputs)


PEERS: dict[str, Peer] = {
    "npusim": Peer("npusim", _load_npusim, _prepare_npusim),
    "torch eager": Peer("torch", _load_eager),
    "torch.compile": Peer("torch", _load_compiled),
    "onnxruntime": Peer("onnxruntime", _load_onnxruntime, _prepare_onnx),
    "openvino": Peer("openvino", _load_openvino, _prepare_openvino),
    "npusim bfloat16": Peer(
        "npusim",
        partial(_load_npusim, precision="bfloat16"),
        partial(_prepare_npusim, precision="bfloat16"),
    ),
    "openvino bf16": Peer("openvino", partial(_load_openvino, precision="bf16"), _prepare_openvino),
    "executorch": Peer("executorch", _load_executorch, _prepare_executorch),
}
FLOAT32_PEERS = tuple(name for name in PEERS if not name.endswith(("bfloat16", "bf16")))


def prepare_artifacts(model: str, folder: Path, peers: Sequence[str]) -> None:
    """Writes inputs, the eager outputs and every peer's file into a folder."""
    import torch
    from tests.models import build

    network, inputs = build(model)
    for index, value in enumerate(inputs):
        np.save(folder / f"input{index}.npy", value.numpy())
    with torch.no_grad():
        np.save(folder / "expected.npy", _first_array(network(*inputs)))
        for peer in peers:
            if (write := PEERS[peer].prepare) is not None:
                write(network, tuple(inputs), folder)


def _first_array(outputs: Any) -> np.ndarray:
    while not hasattr(outputs, "shape"):
        outputs = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs[0]
    return np.asarray(outputs)


def serve(peer: str, model: str, folder: Path, threads: int) -> None:
    """Loads one peer and answers requests on standard input: `burst`, `memory`."""
    start = time.perf_counter()
    call = PEERS[peer].load(model, folder, threads)
    loaded = time.perf_counter() - start
    got, want = _first_array(call()), np.load(folder / "expected.npy")
    error = float(np.abs(got - want).max() / np.abs(want).max())

    def answer(request: str) -> dict[str, Any]:
        if request == "burst":
            return {"seconds": _burst(call)}
        return {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}

    answer_requests({"load_s": loaded, "max_rel_err": error}, answer)


def _burst(call: Call) -> list[float]:
    """Times calls one by one for a quarter of a second; very short ones in groups of 100."""
    seconds: list[float] = []
    call()
    start = time.perf_counter()
    call()
    group = 100 if time.perf_counter() - start < 2e-4 else 1
    end = time.perf_counter() + BURST_SECONDS
    while time.perf_counter() < end or len(seconds) < 2:
        start = time.perf_counter()
        for _ in range(group):
            call()
        seconds.append((time.perf_counter() - start) / group)
    return seconds

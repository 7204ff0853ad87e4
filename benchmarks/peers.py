"""The peers of the CPU benchmark: how each prepares a model, loads it, and is called once.

A loader returns a function that runs the model on the stored inputs and gives NumPy outputs; only
what a deployment would import is imported in the worker's process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from npusim.peers.process import answer
from npusim.peers.runtimes import (
    Call,
    load_onnxruntime,
    load_openvino,
    load_torch,
    load_torch_compile,
)
from npusim.peers.turns import relative_difference
from npusim.peers.worker import answers


@dataclass(frozen=True)
class Peer:
    """A runtime under comparison: the package it needs, how it prepares and how it loads."""

    package: str
    load: Callable[[str, Path, int], Call]
    prepare: Callable[[Any, tuple[Any, ...], Path], None] | None = None


def _inputs(folder: Path) -> list[np.ndarray]:
    return [np.load(p) for p in sorted(folder.glob("input*.npy"))]


def _calibration(inputs: Sequence[Any], calls: int = 8) -> list[tuple[np.ndarray, ...]]:
    """Returns seeded data of the inputs' shapes, the same for every quantizer; integers stay."""
    generator = np.random.default_rng(0)
    arrays = [value.numpy() for value in inputs]
    return [
        tuple(
            generator.standard_normal(a.shape).astype(a.dtype) if a.dtype.kind == "f" else a
            for a in arrays
        )
        for _ in range(calls)
    ]


# npusim


def _prepare_npusim(
    model: Any, inputs: tuple[Any, ...], folder: Path, precision: str = "float32"
) -> None:
    from safetensors.torch import save_model

    import npusim

    program = npusim.compile((model, inputs), precision=precision)
    program.save(folder / f"model.{precision}.npubin")
    save_model(model, str(folder / "model.safetensors"))


def _prepare_npusim_int8(model: Any, inputs: tuple[Any, ...], folder: Path) -> None:
    import npusim

    graph = npusim.extract_ir(model, inputs)
    names = [value.name for value in graph.inputs]
    data = [dict(zip(names, call, strict=True)) for call in _calibration(inputs)]
    made = npusim.quantize(graph, model.state_dict(), data)
    made.save(folder / "model.int8.json", folder / "model.int8.safetensors")
    npusim.compile(made.graph).save(folder / "model.int8.npubin")


def _load_npusim_int8(model: str, folder: Path, threads: int) -> Call:
    import npusim

    weights = folder / "model.int8.safetensors"
    session = npusim.load(folder / "model.int8.npubin", weights=weights, threads=threads)
    inputs = _inputs(folder)
    return lambda: session(*inputs)


def _load_npusim(model: str, folder: Path, threads: int, precision: str = "float32") -> Call:
    import npusim

    program = folder / f"model.{precision}.npubin"
    session = npusim.load(program, weights=folder / "model.safetensors", threads=threads)
    inputs = _inputs(folder)
    return lambda: session(*inputs)


# torch


def _load_module(
    load: Callable[[Any, list[np.ndarray], int], Call], model: str, folder: Path, threads: int
) -> Call:
    import torch

    from benchmarks.architectures import build

    torch.set_grad_enabled(False)
    return load(build(model, 1)[0], _inputs(folder), threads)


# ONNX Runtime, OpenVINO, ExecuTorch


def _prepare_onnx(model: Any, inputs: tuple[Any, ...], folder: Path) -> None:
    import torch

    torch.onnx.export(model, inputs, folder / "model.onnx", dynamo=True, external_data=True)


def _load_file(
    load: Callable[[Path, list[np.ndarray], int], Call],
    file: str,
    model: str,
    folder: Path,
    threads: int,
) -> Call:
    return load(folder / file, _inputs(folder), threads)


def _prepare_onnx_int8(model: Any, inputs: tuple[Any, ...], folder: Path) -> None:
    """ONNX Runtime's static quantizer: QDQ, by channel, of the model after its preprocessing."""
    import torch
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    files = [folder / f"{name}.onnx" for name in ("float", "prepared", "model.int8")]
    torch.onnx.export(model, inputs, files[0], dynamo=True, external_data=False)
    quant_pre_process(files[0], files[1])
    names = [value.name for value in onnx_inputs(files[1])]

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        calls = iter(_calibration(inputs))

        def get_next(self) -> dict[str, np.ndarray] | None:
            call = next(self.calls, None)
            return None if call is None else dict(zip(names, call, strict=True))

    form = QuantFormat.QDQ
    quantize_static(files[1], files[2], Reader(), quant_format=form, per_channel=True)


def onnx_inputs(path: Path) -> Sequence[Any]:
    """Returns the inputs of an ONNX file, those that are weights not."""
    import onnx

    graph = onnx.load(path).graph
    held = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in held]


def _prepare_openvino_int8(model: Any, inputs: tuple[Any, ...], folder: Path) -> None:
    """OpenVINO's own way: NNCF's quantizer of the converted model."""
    import nncf
    import openvino as ov

    _prepare_openvino(model, inputs, folder)
    read = ov.Core().read_model(folder / "model.xml")
    quantized = nncf.quantize(read, nncf.Dataset([list(call) for call in _calibration(inputs)]))
    ov.save_model(quantized, folder / "model.int8.xml", compress_to_fp16=False)


def _prepare_openvino(model: Any, inputs: tuple[Any, ...], folder: Path) -> None:
    import openvino as ov

    converted = ov.convert_model(model, example_input=inputs)
    for port, value in zip(converted.inputs, inputs, strict=True):
        port.get_node().set_partial_shape(ov.PartialShape(list(value.shape)))
    converted.validate_nodes_and_infer_types()
    ov.save_model(converted, folder / "model.xml", compress_to_fp16=False)


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
    "torch eager": Peer("torch", partial(_load_module, load_torch)),
    "torch.compile": Peer("torch", partial(_load_module, load_torch_compile)),
    "onnxruntime": Peer(
        "onnxruntime", partial(_load_file, load_onnxruntime, "model.onnx"), _prepare_onnx
    ),
    "openvino": Peer(
        "openvino", partial(_load_file, load_openvino, "model.xml"), _prepare_openvino
    ),
    "npusim bfloat16": Peer(
        "npusim",
        partial(_load_npusim, precision="bfloat16"),
        partial(_prepare_npusim, precision="bfloat16"),
    ),
    "openvino bf16": Peer(
        "openvino",
        partial(_load_file, partial(load_openvino, precision="bf16"), "model.xml"),
        _prepare_openvino,
    ),
    "npusim int8": Peer("npusim", _load_npusim_int8, _prepare_npusim_int8),
    "onnxruntime int8": Peer(
        "onnxruntime",
        partial(_load_file, load_onnxruntime, "model.int8.onnx"),
        _prepare_onnx_int8,
    ),
    "openvino int8": Peer(
        "nncf", partial(_load_file, load_openvino, "model.int8.xml"), _prepare_openvino_int8
    ),
    "executorch": Peer("executorch", _load_executorch, _prepare_executorch),
}
FLOAT32_PEERS = tuple(name for name in PEERS if not name.endswith(("bf16", "bfloat16", "int8")))


def prepare_artifacts(model: str, batch: int, folder: Path, peers: Sequence[str]) -> None:
    """Writes a batch of inputs, the eager outputs and every peer's file into a folder."""
    import torch

    from benchmarks.architectures import build

    network, inputs = build(model, batch)
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


# Seconds that passed, or those that a process was given: what one thread takes on a machine that
# others use at the same time.
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def serve(peer: str, model: str, folder: Path, threads: int, clock: str) -> None:
    """Loads one peer and answers requests on standard input (npusim.peers.worker)."""

    def load() -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
        start = time.perf_counter()
        call = PEERS[peer].load(model, folder, threads)
        loaded = time.perf_counter() - start
        got, want = _first_array(call()), np.load(folder / "expected.npy")
        error = relative_difference(got, want)
        return {"load_s": loaded, "max_rel_err": error}, answers(call, CLOCKS[clock])

    answer(load)

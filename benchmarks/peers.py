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
    "executorch": Peer("executorch", _load_executorch, _prepare_executorch),
}
FLOAT32_PEERS = tuple(name for name in PEERS if not name.endswith(("bfloat16", "bf16")))


def prepare_artifacts(model: str, folder: Path, peers: Sequence[str]) -> None:
    """Writes inputs, the eager outputs and every peer's file into a folder."""
    import torch

    from benchmarks.architectures import build

    network, inputs = build(model, 1)
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
    """Loads one peer and answers requests on standard input (npusim.peers.worker)."""

    def load() -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
        start = time.perf_counter()
        call = PEERS[peer].load(model, folder, threads)
        loaded = time.perf_counter() - start
        got, want = _first_array(call()), np.load(folder / "expected.npy")
        error = relative_difference(got, want)
        return {"load_s": loaded, "max_rel_err": error}, answers(call)

    answer(load)

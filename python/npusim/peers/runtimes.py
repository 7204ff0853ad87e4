"""The runtimes: what each needs, and how it loads a model and calls it once on the CPU.

Every one is set up as its manual says for the shortest time of one call; only what a deployment
imports is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], Sequence[Any]]  # runs the model on the inputs it was loaded with


@dataclass(frozen=True)
class Runtime:
    """A runtime that npusim is compared with.

    Attributes:
        package: that has to be installed.
        form: what it loads: "onnx" (a file, or OpenVINO's own .xml) or "torch" (a module).
        load: from the file or the module, the inputs in order and the number of threads.
    """

    package: str
    form: str
    load: Callable[[Any, Sequence[np.ndarray], int], Call]


def load_torch(module: Any, inputs: Sequence[np.ndarray], threads: int) -> Call:
    """Eager mode; `module` takes tensors."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    tensors = [torch.from_numpy(x) for x in inputs]
    return lambda: module(*tensors)  # type: ignore[no-any-return]


def load_torch_compile(module: Any, inputs: Sequence[np.ndarray], threads: int) -> Call:
    """Inductor, with weights that do not change; compiled before it returns."""
    import torch
    import torch._inductor.config as config

    config.freezing = True
    call = load_torch(torch.compile(module), inputs, threads)
    call()
    return call


def load_onnxruntime(path: Path, inputs: Sequence[np.ndarray], threads: int) -> Call:
    """All of ONNX Runtime's optimizations, which are its default."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = dict(zip([i.name for i in session.get_inputs()], inputs, strict=True))
    return lambda: session.run(None, feed)  # type: ignore[no-any-return]


def load_openvino(
    path: Path, inputs: Sequence[np.ndarray], threads: int, precision: str = "f32"
) -> Call:
    """Tuned for latency.

    Args:
        precision: what it may compute in: "f32", or "bf16" where the processor has it.
    """
    import openvino as ov

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
    }
    compiled = ov.Core().compile_model(str(path), "CPU", settings)
    request, given = compiled.create_infer_request(), list(inputs)

    def call() -> list[np.ndarray]:
        request.infer(given, share_inputs=True)
        return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    return call


RUNTIMES = {
    "torch": Runtime("torch", "torch", load_torch),
    "torch.compile": Runtime("torch", "torch", load_torch_compile),
    "onnxruntime": Runtime("onnxruntime", "onnx", load_onnxruntime),
    "openvino": Runtime("openvino", "onnx", load_openvino),
    "openvino-bf16": Runtime("openvino", "onnx", partial(load_openvino, precision="bf16")),
}

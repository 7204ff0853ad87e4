"""Quantized ONNX models on the CPU: npusim in bytes, npusim in float32, and ONNX Runtime.

    python -m benchmarks.quantized_models [--threads 2] [--rounds 12] [--model NAME]

A ResNet-50 (QDQ, per channel; random weights, calibrated on random images) and one encoder layer of
BERT-base's size, statically and dynamically quantized by ONNX Runtime's quantizer. All three run in
one process, taking turns round by round; npusim in float32 runs the model as it was before it was
quantized. `benchmarks/kernels/int8_bench.cpp` measures the products alone, beside the processor's
peak.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tests.frontends.onnx.quantized_models import Net, encoder, inputs_of, quantized

import npusim
from npusim.frontends.onnx import from_onnx

Call = Callable[[], Any]


def resnet50(path: Path) -> Path:
    """He et al., arXiv:1512.03385, strides in the 3x3 convolutions; input [1, 3, 224, 224]."""
    net = Net()
    x = net.call("Relu", net.conv("x", 3, 64, 7, strides=[2, 2]))
    x = net.call("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = [2, 2] if stage and not block else [1, 1]
            y = net.call("Relu", net.conv(x, channels, width, 1))
            y = net.call("Relu", net.conv(y, width, width, 3, strides=stride))
            y = net.conv(y, width, 4 * width, 1)
            if not block:
                x = net.conv(x, channels, 4 * width, 1, strides=stride)
            channels = 4 * width
            x = net.call("Relu", net.call("Add", y, x))
    x = net.call("Flatten", net.call("GlobalAveragePool", x))
    x = net.call("Gemm", x, net.weight(1000, channels), net.weight(1000, scale=0.2), transB=1)
    return net.save(path, {"x": (1, 3, 224, 224)}, x)


def bert_layer(path: Path) -> Path:
    """One layer of BERT-base over 128 tokens."""
    return encoder(path, width=768, heads=12, length=128, batch=1)


def prepared(name: str, folder: Path) -> tuple[Path, Path]:
    """Returns a model as floats, and quantized."""
    from onnxruntime.quantization import QuantFormat, QuantType

    static = {
        "quant_format": QuantFormat.QDQ,
        "per_channel": True,
        "activation_type": QuantType.QUInt8,
        "weight_type": QuantType.QInt8,
    }
    if name == "resnet50":
        model = resnet50(folder / "resnet50.onnx")
        return model, quantized(model, **static)
    model = bert_layer(folder / f"{name}.onnx")
    dynamic = {"dynamic": True, "weight_type": QuantType.QInt8}
    return model, quantized(model, **(static if name == "bert_static" else dynamic))


MODELS = ("resnet50", "bert_static", "bert_dynamic")


def own(path: Path, inputs: dict[str, Any], device: npusim.Device) -> tuple[Call, Any]:
    """Returns a call of npusim, and its result."""
    imported = from_onnx(path)
    session = npusim.load(npusim.compile(imported.graph), imported.weights, device=device)
    arrays = list(inputs.values())
    return lambda: session(*arrays), np.asarray(session(*arrays)[0])


def peer(path: Path, inputs: dict[str, Any], threads: int) -> tuple[Call, Any]:
    """Returns a call of ONNX Runtime, and its result."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs), session.run(None, inputs)[0]


def measure(calls: dict[str, Call], rounds: int, seconds: float = 0.25) -> dict[str, list[float]]:
    """Returns milliseconds a call, the median of each round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            each: list[float] = []
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                start = time.perf_counter()
                call()
                each.append((time.perf_counter() - start) * 1e3)
            times[name].append(median(each))
    return times


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    device = npusim.Device("cpu", threads=options.threads)
    print(f"{options.threads} threads, {options.rounds} rounds; ms a call: median (least - most)")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for name in options.model or MODELS:
            model, path = folder / f"{name}.onnx", folder / f"{name}_quantized.onnx"
            if not path.is_file():
                model, path = prepared(name, folder)
            inputs = next(iter(inputs_of(model, 1, seed=5)))
            in_bytes, got = own(path, inputs, device)
            onnxruntime, expected = peer(path, inputs, options.threads)
            in_floats, _ = own(model, inputs, device)
            apart = np.abs(got - expected).max() / np.abs(expected).max()
            calls = {"int8": in_bytes, "onnxruntime int8": onnxruntime, "float32": in_floats}
            times = measure(calls, options.rounds)
            equal = np.mean(got == expected)
            print(f"{name}: {equal:.1%} equal, at most {apart:.1e} of the range apart")
            for label, each in times.items():
                print(f"  {label:17s}{median(each):9.2f} ({min(each):.2f} - {max(each):.2f})")


if __name__ == "__main__":
    main()

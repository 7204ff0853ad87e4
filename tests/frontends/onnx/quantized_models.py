"""Float models as ONNX files, and what ONNX Runtime's quantizer makes of them.

Small networks with seeded random weights that have what quantized models are made of: strided,
pointwise and depthwise convolutions, a residual, pooling, products of activations and of weights,
softmax, layer norm and GELU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    """An ONNX graph being written, node by node."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Adds normal weights, by default of a scale that keeps activations near 1."""
        scale = float(np.prod(shape[1:] or (1,))) ** -0.5 if scale is None else scale
        array = (self.random.standard_normal(shape) * scale).astype(np.float32)
        return self.known(array)

    def known(self, array: Any) -> str:
        """Adds an initialiser."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def call(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node; returns its result."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def conv(self, x: str, channels: int, out: int, kernel: int, **attributes: Any) -> str:
        """Adds a convolution that keeps the extent, but for strides."""
        groups = attributes.get("group", 1)
        w = self.weight(
            out, channels // groups, kernel, kernel, scale=1.4 / kernel / (channels / groups) ** 0.5
        )
        pads = [kernel // 2] * 4
        return self.call("Conv", x, w, self.weight(out, scale=0.2), pads=pads, **attributes)

    def linear(self, x: str, k: int, n: int) -> str:
        """Adds a product by a weight and a bias."""
        product = self.call("MatMul", x, self.weight(k, n, scale=k**-0.5))
        return self.call("Add", product, self.weight(n, scale=0.2))

    def save(self, path: Path, inputs: dict[str, tuple[int, ...]], result: str) -> Path:
        """Writes the model."""
        infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
        out = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "net", infos, [out], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        return path


def residual_net(path: Path, *, size: int = 19) -> Path:
    """A ResNet-like network of few channels, with a depthwise convolution; input [2, 3, s, s]."""
    net = Net()
    x = net.call("Relu", net.conv("x", 3, 16, 5, strides=[2, 2]))
    x = net.call("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = net.call("Relu", net.conv(x, 16, 8, 1))
    y = net.call("Relu", net.conv(y, 8, 12, 3))
    x = net.call("Relu", net.call("Add", net.conv(y, 12, 16, 1), x))
    y = net.call("Relu", net.conv(x, 16, 24, 3, strides=[2, 2], group=2))
    x = net.call(
        "Relu", net.call("Add", net.conv(y, 24, 24, 1), net.conv(x, 16, 24, 1, strides=[2, 2]))
    )
    x = net.call("Relu", net.conv(x, 24, 24, 3, group=24))
    x = net.call("Flatten", net.call("GlobalAveragePool", x))
    x = net.call("Gemm", x, net.weight(10, 24), net.weight(10, scale=0.2), transB=1)
    return net.save(path, {"x": (2, 3, size, size)}, x)


def encoder(
    path: Path, *, width: int = 32, heads: int = 2, length: int = 12, batch: int = 2
) -> Path:
    """One transformer encoder layer; input [batch, length, width]."""
    net = Net()
    size = width // heads

    def split(t: str, order: list[int]) -> str:
        shape = net.known(np.array([0, 0, heads, size], np.int64))
        return net.call("Transpose", net.call("Reshape", t, shape), perm=order)

    q, k, v = (net.linear("x", width, width) for _ in range(3))
    scores = net.call("MatMul", split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1]))
    scores = net.call("Mul", scores, net.known(np.float32(size**-0.5)))
    mixed = net.call("MatMul", net.call("Softmax", scores, axis=-1), split(v, [0, 2, 1, 3]))
    mixed = net.call("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = net.call("Reshape", mixed, net.known(np.array([0, 0, width], np.int64)))

    def normed(t: str) -> str:
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return net.call("LayerNormalization", t, net.known(ones), net.known(zeros))

    x = normed(net.call("Add", net.linear(mixed, width, width), "x"))
    y = net.call("Gelu", net.linear(x, width, 4 * width))
    x = normed(net.call("Add", net.linear(y, 4 * width, width), x))
    return net.save(path, {"x": (batch, length, width)}, x)


def inputs_of(path: Path, count: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Yields seeded random inputs of a model."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        yield {
            i.name: random.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim])
            .astype(np.float32)
            for i in onnx.load(path, load_external_data=False).graph.input
        }  # fmt: skip


def quantized(path: Path, **options: Any) -> Path:
    """Returns the file that ONNX Runtime's quantizer writes beside a model.

    Args:
        options: of `quantize_static`; or `dynamic=True` and those of `quantize_dynamic`.
    """
    from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static

    out = path.with_name(f"{path.stem}_quantized.onnx")
    if options.pop("dynamic", False):
        quantize_dynamic(path, out, **options)
        return out

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = inputs_of(path, 4)

        def get_next(self) -> dict[str, Any] | None:
            return next(self.rows, None)

    quantize_static(path, out, Reader(), **options)
    return out

"""What npusim.quantize refuses, each in a sentence that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import npusim
from npusim.errors import Error, GraphError, ShapeError, WeightMismatchError

from .models import Model, made, perceptron


@pytest.fixture(scope="module")
def net() -> Model:
    return perceptron()


X = np.ones((4, 12), np.float32)


def _with(value: float) -> np.ndarray:
    x = X.copy()
    x[3, 11] = value
    return x


BAD_DATA: dict[str, tuple[Any, type[Error], str]] = {
    "name": ({"y": X}, ShapeError, "missing: x; unknown: y"),
    "one name more": ({"x": X, "y": X}, ShapeError, "unknown: y"),
    "dtype": ({"x": X.astype(np.float64)}, ShapeError, "astype('float32')"),
    "columns": ({"x": X[:, :11]}, ShapeError, "shape [4, 11]"),
    "rank": ({"x": X[0]}, ShapeError, "[samples, 2, 12]"),
    "rows": ({"x": X[:3]}, ShapeError, "multiple of 2"),
    "nan": ({"x": _with(np.nan)}, Error, "element 47 is nan"),
    "infinity": ({"x": _with(-np.inf)}, Error, "element 47 is -inf"),
    "empty": ({"x": X[:0]}, ShapeError, "empty"),
    "no calls": ([], ShapeError, "empty"),
    "a call's shape": ([{"x": X}], ShapeError, "[4, 12]"),
    "a call that is none": ([X], ShapeError, "by the names"),
    "none": (None, ShapeError, "mode='dynamic'"),
}


@pytest.mark.parametrize("case", BAD_DATA, ids=str)
def test_data_that_does_not_fit(net: Model, case: str) -> None:
    data, kind, words = BAD_DATA[case]
    with pytest.raises(kind) as refused:
        npusim.quantize(net.graph, net.weights, data)
    assert words in str(refused.value)


@pytest.mark.parametrize("content", [None, b"", b"no archive", "one array"], ids=str)
def test_files_that_are_no_data(net: Model, tmp_path: Path, content: Any) -> None:
    path = tmp_path / "data.npz"
    if content == "one array":
        with path.open("wb") as file:
            np.save(file, X)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(Error, match=r"data\.npz"):
        npusim.quantize(net.graph, net.weights, path)


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "mode": ({"mode": "hybrid"}, "static, dynamic"),
    "ranges": ({"ranges": "entropy"}, "minmax, percentile, mse"),
    "percentile": ({"ranges": "percentile", "percentile": 50.0}, "50 … 100"),
    "a percentile that is NaN": ({"percentile": float("nan")}, "50 … 100"),
    "activations": ({"activations": "int4"}, "uint8, int8"),
    "metric": ({"metric": "beauty"}, "sqnr, top1"),
    "skip": ({"skip": ["third"]}, "Layers: first, second"),
    "dynamic ranges": ({"mode": "dynamic", "ranges": "mse"}, "extremes of each call"),
    "a bound that is NaN": ({"bound": float("nan")}, "NaN"),
}


@pytest.mark.parametrize("case", OPTIONS, ids=str)
def test_options_that_do_not_exist(net: Model, case: str) -> None:
    options, words = OPTIONS[case]
    with pytest.raises(Error) as refused:
        npusim.quantize(net.graph, net.weights, {"x": X}, **options)
    assert words in str(refused.value)


def test_measuring_without_data(net: Model) -> None:
    with pytest.raises(ShapeError, match="no data to measure"):
        npusim.quantize(net.graph, net.weights, mode="dynamic", bound=30)


def test_a_graph_in_bytes_already(net: Model) -> None:
    first = npusim.quantize(net.graph, net.weights, {"x": X})
    with pytest.raises(GraphError, match="quantized already"):
        npusim.quantize(first.graph, first.weights, {"x": X})


def test_several_methods(net: Model) -> None:
    module = npusim.Module("two", {"a": net.graph, "b": net.graph})
    with pytest.raises(GraphError, match="2 methods"):
        npusim.quantize(module, net.weights, {"x": X})


def test_nothing_to_quantize() -> None:
    class Plain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp()

    net = made(Plain(), torch.zeros(2, 3))
    with pytest.raises(GraphError, match="no convolution or linear"):
        npusim.quantize(net.graph, None, net.data)


def test_weights_that_do_not_fit(net: Model) -> None:
    with pytest.raises(WeightMismatchError, match=r"second\.weight"):
        rest = {key: array for key, array in net.weights.items() if key != "second.weight"}
        npusim.quantize(net.graph, rest, {"x": X})


def test_weights_that_are_not_finite(net: Model) -> None:
    weights = {**net.weights, "second.weight": np.full((7, 24), np.nan, np.float32)}
    found = npusim.quantize(net.graph, weights, {"x": X})
    assert [y.left_out for y in found.report.layers] == ["", "its weights are not finite"]


def test_outputs_without_floats_have_no_noise() -> None:
    class Greatest(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x).argmax(dim=-1)

    torch.manual_seed(9)
    net = made(Greatest(), torch.zeros(2, 4))
    with pytest.raises(Error, match="no noise to measure"):
        npusim.quantize(net.graph, net.weights, net.data)
    found = npusim.quantize(net.graph, net.weights, net.data, metric="top1")
    assert found.report.value is not None and found.report.value > 0.9

"""Models that PyTorch exported as ONNX files: imported, they agree with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import npusim
from npusim.frontends.onnx import from_onnx
from tests.models.vit import VisionTransformer

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Recurrent(nn.Module):
    """An LSTM of two directions, and a linear over its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Resizing(nn.Module):
    """Images of sizes that are no whole number of times the input's, by their corners."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        how = {"scale_factor": 1.7, "align_corners": True}
        return nn.functional.interpolate(
            nn.functional.interpolate(x, mode="bilinear", **how), mode="bicubic", **how
        )


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=2, groups=4), nn.GELU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )


def transformer() -> nn.Module:
    return VisionTransformer(32, 16, 1, 32, 4, classes=5)


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "legacy"])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        *((convolutional, (2, 3, 16, 16)), (transformer, (2, 3, 32, 32)), (Recurrent, (2, 4, 6))),
        (Resizing, (1, 2, 5, 6)),
    ],
    ids=["convolutional", "transformer", "recurrent", "resizing"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the legacy exporter, of itself
def test_agrees_with_onnx_runtime(make, shape, dynamo: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, path = make().eval(), torch.randn(shape), tmp_path / "model.onnx"
    how = {"external_data": True} if dynamo else {"opset_version": 17}
    torch.onnx.export(model, (x,), path, dynamo=dynamo, verbose=False, **how)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    imported = from_onnx(path)
    run = npusim.load(npusim.compile(imported.graph), imported.weights or None)
    np.testing.assert_allclose(run(x.numpy())[0], expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(expected, model(x).numpy(), rtol=1e-4, atol=1e-5)

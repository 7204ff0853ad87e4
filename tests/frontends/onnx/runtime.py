"""What tests of imported files share: ONNX Runtime's results beside npusim's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import npusim
from npusim.frontends.onnx import from_onnx

ort = pytest.importorskip("onnxruntime")


def expected(model: Path | onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> list[Any]:
    """Returns what ONNX Runtime computes; maps of classifiers as tables, a column a label."""
    quiet = ort.SessionOptions()
    quiet.log_severity_level = 4
    # Where a processor has no dot product of bytes its sums of two products saturate otherwise.
    quiet.add_session_config_entry("session.x64quantprecision", "1")
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(source, quiet, providers=["CPUExecutionProvider"])
    results = session.run(None, dict(feed))
    return [np.array([list(row.values()) for row in r]) if isinstance(r, list) else r
            for r in results]  # fmt: skip


def imported(model: Path | onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns what npusim computes of the imported and compiled model."""
    result = from_onnx(model, shapes={name: array.shape for name, array in feed.items()})
    run = npusim.load(npusim.compile(result.graph), result.weights or None)
    return run(*(feed[v.name] for v in result.graph.inputs))


def assert_agrees(
    model: Path | onnx.ModelProto, feed: Mapping[str, np.ndarray], rtol: float = 1e-4
) -> None:
    """Compares all results, within `rtol` of the largest magnitude of each."""
    for got, want in zip(imported(model, feed), expected(model, feed), strict=True):
        assert got.shape == want.shape
        scale = max(float(np.abs(want).max(initial=0)), 1e-3)
        np.testing.assert_allclose(got, want, rtol=0, atol=rtol * scale)


def optimized(path: Path, level: str = "ORT_ENABLE_EXTENDED") -> Path:
    """Has ONNX Runtime optimize a file and save what came of it."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    result = path.with_suffix(f".{level}.onnx")
    options.optimized_model_filepath = str(result)
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return result


def operators(path: Path) -> set[str]:
    """Returns the operators of a file that are not ONNX's own."""
    model = onnx.load(path, load_external_data=False)
    return {node.op_type for node in model.graph.node if node.domain not in ("", "ai.onnx")}

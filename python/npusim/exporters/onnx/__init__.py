"""Graphs become ONNX models.

Owns the public functions; `model` walks a graph, `files` writes what came of it, and one file a
family of operators says what each is in standard ONNX.
"""

from npusim.exporters.onnx.files import export_onnx
from npusim.exporters.onnx.model import DEFAULT_OPSET, MIN_OPSET

__all__ = ["DEFAULT_OPSET", "MIN_OPSET", "export_onnx"]

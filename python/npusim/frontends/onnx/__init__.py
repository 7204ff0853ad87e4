"""ONNX models become graphs of the same dialect as everything else.

Owns the public functions; `importer` walks a model, one file a family of operators says what each
means in ATen operators, and `kinds` how ONNX's element types are carried.
"""

from npusim.frontends.onnx.importer import Imported, from_onnx
from npusim.frontends.onnx.registry import register_translation

__all__ = ["Imported", "from_onnx", "register_translation"]

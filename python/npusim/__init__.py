"""npusim: compile PyTorch models and run them natively, as on an NPU.

The public API and nothing else. Importing it loads neither torch nor any other framework; names
that need one load it when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from npusim.compile import compile
from npusim.errors import (
    DeviceError,
    Error,
    ExportError,
    GraphError,
    ProgramFormatError,
    ShapeError,
    TargetConstraintError,
    UnsupportedOpError,
    WeightMismatchError,
)
from npusim.ir.graph import Graph as IR
from npusim.ir.module import Module
from npusim.program.program import CompiledProgram, TensorSpec
from npusim.targets import TargetConfig
from npusim.version import __version__

if TYPE_CHECKING:
    from npusim.frontends.language_model import extract_llm
    from npusim.frontends.torch_export import extract_ir
    from npusim.language_model import LanguageModel, LanguageSession
    from npusim.ops.custom import register_op
    from npusim.runtime import (
        Device,
        DeviceBuffer,
        Executor,
        Session,
        State,
        Weights,
        load,
        load_weights,
    )
    from npusim.verify import verify_ir_with_state_dict, verify_program

_LAZY = {
    "extract_ir": "npusim.frontends.torch_export",
    "extract_llm": "npusim.frontends.language_model",
    "register_op": "npusim.ops.custom",
    "Device": "npusim.runtime",
    "DeviceBuffer": "npusim.runtime",
    "Executor": "npusim.runtime",
    "LanguageModel": "npusim.language_model",
    "LanguageSession": "npusim.language_model",
    "Session": "npusim.runtime",
    "State": "npusim.runtime",
    "Weights": "npusim.runtime",
    "load": "npusim.runtime",
    "load_weights": "npusim.runtime",
    "verify_ir_with_state_dict": "npusim.verify",
    "verify_program": "npusim.verify",
}

__all__ = [
    "IR",
    "CompiledProgram",
    "Device",
    "DeviceBuffer",
    "DeviceError",
    "Error",
    "Executor",
    "ExportError",
    "GraphError",
    "LanguageModel",
    "LanguageSession",
    "Module",
    "ProgramFormatError",
    "Session",
    "ShapeError",
    "State",
    "TargetConfig",
    "TargetConstraintError",
    "TensorSpec",
    "UnsupportedOpError",
    "WeightMismatchError",
    "Weights",
    "__version__",
    "compile",
    "extract_ir",
    "extract_llm",
    "load",
    "load_weights",
    "register_op",
    "verify_ir_with_state_dict",
    "verify_program",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'npusim' has no attribute '{name}'")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

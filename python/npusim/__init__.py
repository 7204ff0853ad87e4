"""npusim: compile PyTorch models and run them natively, as on an NPU.

The public API and nothing else. Importing it loads errors and the version, not even NumPy; names
load what they need when they are first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from npusim.errors import (
    CoverageError,
    DeviceError,
    Error,
    ExportError,
    GraphError,
    ProgramFormatError,
    ShapeError,
    SymbolicSizeError,
    TargetConstraintError,
    UnsupportedOpError,
    WeightMismatchError,
)
from npusim.version import __version__

if TYPE_CHECKING:
    from npusim.compile import compile
    from npusim.exporters.onnx import export_onnx
    from npusim.frontends.language_model import extract_llm
    from npusim.frontends.onnx import from_onnx
    from npusim.frontends.text_encoder import extract_encoder
    from npusim.frontends.tinygrad import from_tinygrad
    from npusim.frontends.torch_export import extract_ir
    from npusim.ir.graph import Graph as IR
    from npusim.ir.module import Module
    from npusim.ir.specialize import specialize
    from npusim.language_model import LanguageModel, LanguageSession
    from npusim.ops.custom import register_op
    from npusim.partition import check, partition
    from npusim.partition.executor import DAGExecutor
    from npusim.partition.plan import Partition, PartitionPlan, TransferOp
    from npusim.partition.report import SupportReport
    from npusim.partition.support import is_op_supported
    from npusim.profile import Profile
    from npusim.profile.measure import profile_program
    from npusim.program.program import CompiledProgram, TensorSpec
    from npusim.quantize import quantize
    from npusim.runtime import (
        Checkpoint,
        Device,
        DeviceBuffer,
        Executor,
        Session,
        State,
        Weights,
        load,
        load_weights,
        pack_weights,
    )
    from npusim.simulate import simulate
    from npusim.simulate.simulation import Simulation
    from npusim.targets import TargetConfig
    from npusim.verify import verify_ir_with_state_dict, verify_plan, verify_program

# Where names come from; "IR" is what `ir.graph` calls Graph.
_LAZY = {
    "IR": "npusim.ir.graph",
    "CompiledProgram": "npusim.program.program",
    "Module": "npusim.ir.module",
    "TargetConfig": "npusim.targets",
    "TensorSpec": "npusim.program.program",
    "check": "npusim.partition",
    "compile": "npusim.compile",
    "partition": "npusim.partition",
    "quantize": "npusim.quantize",
    "simulate": "npusim.simulate",
    "specialize": "npusim.ir.specialize",
    "export_onnx": "npusim.exporters.onnx",
    "extract_encoder": "npusim.frontends.text_encoder",
    "extract_ir": "npusim.frontends.torch_export",
    "extract_llm": "npusim.frontends.language_model",
    "from_onnx": "npusim.frontends.onnx",
    "from_tinygrad": "npusim.frontends.tinygrad",
    "register_op": "npusim.ops.custom",
    "is_op_supported": "npusim.partition.support",
    "DAGExecutor": "npusim.partition.executor",
    "Checkpoint": "npusim.runtime",
    "Device": "npusim.runtime",
    "DeviceBuffer": "npusim.runtime",
    "Executor": "npusim.runtime",
    "LanguageModel": "npusim.language_model",
    "LanguageSession": "npusim.language_model",
    "Partition": "npusim.partition.plan",
    "PartitionPlan": "npusim.partition.plan",
    "Profile": "npusim.profile",
    "Session": "npusim.runtime",
    "State": "npusim.runtime",
    "Simulation": "npusim.simulate.simulation",
    "SupportReport": "npusim.partition.report",
    "TransferOp": "npusim.partition.plan",
    "Weights": "npusim.runtime",
    "load": "npusim.runtime",
    "load_weights": "npusim.runtime",
    "pack_weights": "npusim.runtime",
    "profile_program": "npusim.profile.measure",
    "verify_ir_with_state_dict": "npusim.verify",
    "verify_plan": "npusim.verify",
    "verify_program": "npusim.verify",
}

__all__ = [
    "IR",
    "Checkpoint",
    "CompiledProgram",
    "CoverageError",
    "DAGExecutor",
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
    "Partition",
    "PartitionPlan",
    "Profile",
    "ProgramFormatError",
    "Session",
    "ShapeError",
    "Simulation",
    "State",
    "SupportReport",
    "SymbolicSizeError",
    "TargetConfig",
    "TargetConstraintError",
    "TensorSpec",
    "TransferOp",
    "UnsupportedOpError",
    "WeightMismatchError",
    "Weights",
    "__version__",
    "check",
    "compile",
    "export_onnx",
    "extract_encoder",
    "extract_ir",
    "extract_llm",
    "from_onnx",
    "from_tinygrad",
    "is_op_supported",
    "load",
    "load_weights",
    "pack_weights",
    "partition",
    "profile_program",
    "quantize",
    "register_op",
    "simulate",
    "specialize",
    "verify_ir_with_state_dict",
    "verify_plan",
    "verify_program",
]


def __getattr__(name: str) -> Any:
    if name == "_runtime":  # what `from npusim import _runtime` asks before it looks for a file
        return import_module("npusim.binding").native_module()
    if name == "serve":
        return import_module("npusim.serve")
    if name not in _LAZY:
        raise AttributeError(f"module 'npusim' has no attribute '{name}'")
    value = getattr(import_module(_LAZY[name]), "Graph" if name == "IR" else name)
    globals()[name] = value
    return value


class _Parts(ModuleType):
    """A package whose name is a function in this one: the function has its modules, too.

    So `import npusim.simulate.sweep as name` finds what it asks for: after importing the modules it
    takes one from the other, by what this package calls them.
    """

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if isinstance(value, ModuleType):
            setattr(vars(self)[self.__name__.rpartition(".")[2]], name, value)


class _Package(ModuleType):
    """This package, in which `compile`, `partition`, `quantize` and `simulate` are functions.

    Parts have these names as well, and importing a part binds it in its package.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)
        elif hasattr(value, "__path__"):
            value.__class__ = _Parts
            for part, module in list(vars(value).items()):
                if isinstance(module, ModuleType):
                    setattr(value, part, module)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted(__all__)

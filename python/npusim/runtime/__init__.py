"""Running compiled programs: the Python face of the C++ runtime.

Owns how arrays of Python libraries become device buffers and back, and how checkpoints are found.
Everything that happens at run time itself is C++ (`npusim._runtime`). Needs NumPy alone; PyTorch
tensors are served when the caller brings them.
"""

from npusim.runtime.checkpoint import Checkpoint
from npusim.runtime.device import Device, DeviceBuffer
from npusim.runtime.executor import Executor
from npusim.runtime.session import Session, load
from npusim.runtime.state import State
from npusim.runtime.weights import Weights, load_weights, pack_weights

__all__ = [
    "Checkpoint",
    "Device",
    "DeviceBuffer",
    "Executor",
    "Session",
    "State",
    "Weights",
    "load",
    "load_weights",
    "pack_weights",
]

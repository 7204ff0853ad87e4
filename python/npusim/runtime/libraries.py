"""Where Python's packages keep the native libraries that the runtime uses when they are there."""

from __future__ import annotations

import sys
from pathlib import Path

# Folders of NVIDIA's wheels, below a folder of sys.path: since CUDA 13, and before.
_NVIDIA = (
    "nvidia/cu13/lib",
    "nvidia/cuda_nvrtc/lib",
    "nvidia/cublas/lib",
    "nvidia/cudnn/lib",
    "nvidia/nccl/lib",
)


def library_folders() -> list[str]:
    """Returns the folders that exist, those of CUDA's wheels, in the order of sys.path."""
    # Every device asks, and few entries of sys.path have any.
    roots = [Path(entry) for entry in sys.path if Path(entry, "nvidia").is_dir()]
    found = (root / inside for root in roots for inside in _NVIDIA)
    return list(dict.fromkeys(str(folder) for folder in found if folder.is_dir()))

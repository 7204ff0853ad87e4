"""What launches of device code have to keep to, as data of a target: `[launches]` of its file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """Limits of a GPU. In CUDA's words: of warps, blocks, and shared memory.

    Attributes:
        lanes: threads of a SIMD group.
        threads: most of a threadgroup.
        shared_bytes: most memory of a threadgroup.
        arguments: most buffers that a kernel takes: operands, scratch memory, and where it reports.
        max_dispatches_per_batch: most launches that one command buffer holds; 0: any number.
    """

    lanes: int
    threads: int
    shared_bytes: int
    arguments: int
    max_dispatches_per_batch: int = 0

    def __post_init__(self) -> None:
        for key in ("lanes", "threads", "arguments"):
            if getattr(self, key) < 1:
                raise ValueError(f"'{key}' of launches is {getattr(self, key)}, not from 1 on.")

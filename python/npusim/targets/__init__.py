"""Targets: what a compiled program may assume of the hardware that runs it."""

from npusim.targets.hardware import Hardware, Npu
from npusim.targets.override import override
from npusim.targets.target_config import TargetConfig, target_names

__all__ = ["Hardware", "Npu", "TargetConfig", "override", "target_names"]

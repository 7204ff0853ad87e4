"""Targets: what a compiled program may assume of the hardware that runs it."""

from npusim.targets.target_config import TargetConfig, target_names

__all__ = ["TargetConfig", "target_names"]

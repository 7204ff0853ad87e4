"""Comparing with PyTorch: do graphs and programs agree, where do they first differ, and what is the
smallest part that does."""

from npusim.verify.agreement import (
    all_weights,
    run_model,
    tensor_leaves,
    verify_ir_with_state_dict,
    verify_program,
)
from npusim.verify.comparison import TOLERANCE, Comparison, compare
from npusim.verify.partitions import verify_plan
from npusim.verify.report import Divergence, InputStatistics, Report

__all__ = [
    "TOLERANCE",
    "Comparison",
    "Divergence",
    "InputStatistics",
    "Report",
    "all_weights",
    "compare",
    "run_model",
    "tensor_leaves",
    "verify_ir_with_state_dict",
    "verify_plan",
    "verify_program",
]

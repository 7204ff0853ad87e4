"""What the native module is told of a machine's units, for its search and its timing model alike.

What a tile keeps the units busy for are formulas of that module: exact by SCALE-Sim (A. Samajdar et
al., ISPASS 2020) and, with weights loaded while one fold computes, by Gemmini.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim.targets.hardware import Mxu, Vpu


def array_facts(mxu: Mxu, dtype: str) -> dict[str, Any]:
    """Returns what the native formulas ask of a core's arrays."""
    return {
        "rows": mxu.rows,
        "cols": mxu.cols,
        "per_core": mxu.per_core,
        "min_stream_rows": mxu.min_stream_rows,
        "overlaps": mxu.fold_overlap == "weights",
        "macs_per_pe_cycle": mxu.macs_per_pe_cycle.get(dtype, 1.0),
        "dataflow": mxu.dataflow,
    }


def fold_cycles(mxu: Mxu, m: int, n: int, k: int, dtype: str) -> int:
    """Returns the cycles in which a core multiplies [m, k] by [k, n].

    With R rows and C columns, F folds of T steps: stationary weights take F = ⌈k/R⌉⌈n/C⌉ and
    T = m, sums ⌈m/R⌉⌈n/C⌉ and k, inputs ⌈k/R⌉⌈m/C⌉ and n. Without overlap a fold takes
    T + R + C - 2, and R more to load what is stationary; with overlap folds take
    max(T, R, min_stream_rows) each, and all of them 2R + C - 2 once.
    """
    from npusim import _runtime

    return _runtime.array_cycles(array_facts(mxu, dtype), m, n, k)


def vector_passes(
    vpu: Vpu, dtype: str, vector: Mapping[str, float], sums: int, addends: int
) -> tuple[float, list[tuple[float, float]]]:
    """Returns how many elements pass a vector unit at once, and of each pass elements and cycles.

    Args:
        vector: by scalar opcode, elements that pass.
        sums, addends: sums over lanes, the last pass where there are any, of so many elements each.
    """
    rate = vpu.lanes * vpu.dtype_rate.get(dtype, 1.0)
    passes = [(count, vpu.cycles(op)) for op, count in sorted(vector.items())]
    if sums:
        beside, each = vpu.sum_cycles(addends)
        passes.append((sums * rate / beside, each))
    return rate, passes

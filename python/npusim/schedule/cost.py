"""What the native module is told of a machine, for its search and its timing model alike.

What a tile keeps the units busy for are formulas of that module: exact by SCALE-Sim (A. Samajdar et
al., ISPASS 2020) and, with weights loaded while one fold computes, by Gemmini.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from npusim.targets.hardware import Calibration, Mxu, Npu, Vpu

TICKS = 1024  # of a cycle of the core's clock
UNCALIBRATED = Calibration()


def reached(calibration: Calibration) -> Calibration:
    """Returns what of a calibration the choice of tiles depends on."""
    return Calibration(calibration.mxu_eff, calibration.dram_eff, calibration.overlap_p)


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


def _ticks(ns: float, mhz: float) -> int:
    """Returns a latency in ticks; one beyond 64 bits is as far beyond what the walk counts."""
    return math.ceil(min(ns * mhz * TICKS / 1000, 2.0**62))


def machine_facts(npu: Npu, dtype: str, calibration: Calibration) -> dict[str, Any]:
    """Returns what the native walk asks of a machine that computes in a dtype."""
    cores, level, mhz = npu.cores.count, npu.level, npu.clock.core_mhz
    memory = {
        "dram_bytes_per_cycle": npu.dram_bytes_per_cycle * calibration.dram_eff,
        "dram_channels": npu.dram.channels,
        "interleave_bytes": npu.dram.interleave_bytes,
        "read_latency_ticks": _ticks(npu.dram.read_latency_ns, mhz),
        "write_latency_ticks": _ticks(npu.dram.write_latency_ns, mhz),
        "noc_bytes_per_cycle": npu.noc.gb_per_s * 1e3 / mhz if cores > 1 else 0.0,
        "hop_cycles": npu.noc.hop_cycles,
        "hops": _hops(npu),
        "dma_bytes_per_cycle": npu.dma.bytes_per_cycle,
        "dma_channels": npu.dma.channels,
        "setup_cycles": npu.dma.setup_cycles,
        "burst_bytes": npu.dma.burst_bytes,
        "max_dims": npu.dma.max_dims,
        "sram_bytes_per_cycle": level.bytes_per_cycle,
        "acc_bytes_per_cycle": npu.acc.bytes_per_cycle,
        "sram_accesses": level.banks * level.ports_per_bank,
    }
    return {
        "array": array_facts(npu.mxu, dtype),
        "memory": memory,
        "cores": cores,
        "sync_cycles": npu.cores.sync_cycles,
        "array_share": calibration.mxu_eff,
        "overlap_p": calibration.overlap_p,
    }


def _hops(npu: Npu) -> list[int]:
    """Returns the hops from DRAM to each core; of a single core none are counted.

    DRAM is one hop from the first core; a bus is one hop for all, a ring has the shorter way round,
    and a mesh is as square as it can be and goes along one side and then the other.
    """
    count = npu.cores.count
    if count == 1:
        return [0]
    width = math.isqrt(count - 1) + 1
    return {
        "bus": [1] * count,
        "ring": [1 + min(core, count - core) for core in range(count)],
        "mesh": [1 + core % width + core // width for core in range(count)],
    }[npu.noc.topology]

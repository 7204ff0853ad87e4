"""What of a machine a search of schedules reads: the key by which searches are shared.

Two machines that differ only in what stands here as neutral have the same schedules. That is so by
construction: a search is given the machine with these numbers replaced, and sees no others.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.targets.hardware import Dispatch, Energy, Noc, Npu, Requantize

MIB = 2**20


def searched(npu: Npu) -> Npu:
    """Returns a machine with everything neutral that no search reads.

    Not read are dispatch and energy; the network of a single core; DRAM's capacity; all memories
    but the nearest, and how it aligns; how long cores wait for each other; how sums become bytes;
    and what is checked when a program is compiled: ranks, layouts, padding.
    """
    near = npu.level
    return replace(
        npu,
        sram=(replace(near, align_bytes=1),),
        dram=replace(npu.dram, capacity_mib=near.bytes / MIB),
        dispatch=Dispatch(),
        energy=Energy(),
        noc=npu.noc if npu.cores.count > 1 else Noc(),
        requantize=Requantize(),
        cores=replace(npu.cores, sync_cycles=0),
        mxu=replace(npu.mxu, sums={}),
        constraints=replace(
            npu.constraints, channel_align={}, max_rank=0, layouts=("NHWC",), fallback="host"
        ),
    )

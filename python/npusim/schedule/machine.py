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

    Not read are dispatch, energy and the network between cores; DRAM's latencies, channels and
    capacity; banks, ports and rate of the nearest memory, and all farther ones; how long cores
    wait for each other; how sums become bytes; and what is checked when a program is compiled:
    ranks, layouts, padding.
    """
    near = npu.level
    level = replace(near, bytes_per_cycle=1.0, banks=1, ports_per_bank=1, align_bytes=1)
    dram = replace(
        npu.dram,
        channels=1,
        read_latency_ns=0.0,
        write_latency_ns=0.0,
        interleave_bytes=1,
        capacity_mib=near.bytes / MIB,
    )
    return replace(
        npu,
        sram=(level,),
        acc=replace(npu.acc, bytes_per_cycle=1.0),
        dma=replace(npu.dma, max_dims=1),
        dram=dram,
        dispatch=Dispatch(),
        energy=Energy(),
        noc=Noc(),
        requantize=Requantize(),
        cores=replace(npu.cores, sync_cycles=0),
        mxu=replace(npu.mxu, sums={}),
        constraints=replace(
            npu.constraints, channel_align={}, max_rank=0, layouts=("NHWC",), fallback="host"
        ),
    )

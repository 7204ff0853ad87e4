"""How fast programs are simulated: tile events a second, whole models, and sweeps.

    PYTHONPATH=python:. python -m benchmarks.simulate_speed [--decoder]

Everything on one core. Products are walked tile by tile and with whole periods counted; models are
compiled for npu-edge-32x32, and a process's first simulation of each is timed, from the program in
memory, then the same again, which is remembered. Sweeps change two numbers that no search of
schedules reads, and three that it does, so that every machine is searched anew. `--decoder`: one
token of a decoder of Qwen2.5-1.5B's sizes, too, which takes `transformers` and half a minute to
extract.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tests.models.bert import Bert
from tests.models.resnet import Bottleneck, ResNet

import npusim
from npusim import _runtime
from npusim.schedule import best_schedule, product_work
from npusim.simulate.sweep import sweep
from npusim.simulate.tiles import UNCALIBRATED, native_facts
from npusim.targets import TargetConfig

MACHINE = "npu-edge-32x32"
PRODUCTS = ((64, 64, 4096), (4096, 4096, 4096), (1, 1536, 151_936), (16_384, 16_384, 16_384))


def seconds(action: Callable[[], Any], repeats: int = 1) -> float:
    """Returns the least time of a call, of the processor: others may use the machine.

    What was made before is kept from Python's collector of garbage, as it is not there where a
    program was loaded from a file.
    """
    gc.collect()
    gc.freeze()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def products() -> None:
    """Prints tile events a second: what units do and copies, of products m, k, n in int8."""
    hardware = TargetConfig.named(MACHINE).hardware
    assert hardware is not None and hardware.npu is not None
    npu = hardware.npu
    print("| m, k, n | tiles | events | walked, M events/s | tiles walked | counted, M events/s |")
    print("|---|---:|---:|---:|---:|---:|")
    for m, k, n in PRODUCTS:
        facts = native_facts(npu, best_schedule(npu, product_work(m, n, k, "int8")), UNCALIBRATED)
        walked, counted = (
            seconds(partial(_runtime.walk_tiles, *facts, 0, way), 5) for way in (False, True)
        )
        found = _runtime.walk_tiles(*facts)
        rates = [f"{1e-6 * found['events'] / t:.1f}" for t in (walked, counted)]
        print(f"| {m}, {k}, {n} | {found['tiles']:,} | {found['events']:,} | {rates[0]} ", end="")
        print(f"| {found['walked']:,} | {rates[1]} |")


def models(decoder: bool) -> Iterator[tuple[str, npusim.CompiledProgram, dict[str, Any]]]:
    """Yields programs, with the arguments of their simulation."""
    with torch.device("meta"):
        resnet = ResNet(Bottleneck, (3, 4, 6, 3)).eval()
        bert, words = Bert().eval(), torch.zeros(1, 128, dtype=torch.int64)
    yield "ResNet-50", npusim.compile((resnet, (torch.zeros(1, 3, 224, 224),)), MACHINE), {}
    yield "BERT-base, 128 tokens", npusim.compile((bert, (words,) * 3), MACHINE), {}
    if decoder:
        from benchmarks.device_profiles import QWEN, decoder

        program = npusim.compile(npusim.extract_llm(decoder(QWEN), max_context=4096), MACHINE)
        yield "Qwen2.5-1.5B, one token", program, {"method": "decode"}
        yield "Qwen2.5-1.5B, 128 tokens", program, {"method": "prefill"}


def main() -> None:
    """Reads the command line, measures, prints tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decoder", action="store_true")
    args = parser.parse_args()
    products()
    print("\n| run | commands | events | first, ms | again, ms | with report, ms |")
    print("|---|---:|---:|---:|---:|---:|")
    resnet = None
    for name, program, given in models(args.decoder):
        resnet = resnet or program
        first, again = (seconds(lambda: npusim.simulate(program, **given)) for _ in range(2))  # noqa: B023
        found = npusim.simulate(program, **given)
        report = seconds(lambda: found.report)  # noqa: B023
        events = sum(layer.timed.units for layer in found.layers)
        times = " | ".join(f"{1e3 * t:.1f}" for t in (first, again, again + report))
        print(f"| {name} | {len(found.layers)} | {events:,} | {times} |")
    assert resnet is not None
    print("\n| sweep of ResNet-50 | configurations | s |\n|---|---:|---:|")
    tens = [str(value) for value in range(10, 110, 10)]
    for settings in (
        {"dispatch.overhead_ns": tens, "dispatch.issue_cycles": tens},
        {"mxu.rows": [str(8 * i) for i in range(1, 11)], "sram.l1.kib": ["512", "768", "1024",
         "2048", "4096"], "dram.gb_per_s": ["20", "77"]},
    ):  # fmt: skip
        count = math.prod(map(len, settings.values()))
        took = seconds(lambda: sweep(resnet, settings))  # noqa: B023
        print(f"| {', '.join(settings)} | {count} | {took:.1f} |")


if __name__ == "__main__":
    main()

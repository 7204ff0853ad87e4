"""Times of work whose bytes and operations are known: what a device reaches, for a report.

Medians of calls from Python with everything on the device, so that a call's fixed cost is in them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from npusim.compile import compile
from npusim.frontends.torch_export import extract_ir
from npusim.program.program import CompiledProgram
from npusim.runtime.device import Device
from npusim.runtime.session import Session, load
from npusim.targets import TargetConfig

_SECONDS, _FEWEST = 0.5, 5  # of calls


class _Add(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


@dataclass(frozen=True)
class Work:
    """A model, what it is given, and what a call moves and computes.

    Attributes:
        bytes: read and written.
        operations: floating-point ones; a multiplication with an addition is two.
    """

    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    bytes: int
    operations: int


def _halves(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float16)


def _matmul(rows: int, inner: int, columns: int) -> Work:
    return Work(
        lambda: nn.Linear(inner, columns, bias=False).half(),
        lambda: (_halves(rows, inner),),
        2 * (rows * inner + inner * columns + rows * columns),
        2 * rows * inner * columns,
    )


WORK: Mapping[str, Work] = {
    "a call: 16 elements added": Work(_Add, lambda: (_halves(16), _halves(16)), 96, 16),
    # No two of them are one command: what commands cost that compute next to nothing.
    "a call: 32 softmaxes of 64 elements": Work(
        lambda: nn.Sequential(*(nn.Softmax(-1) for _ in range(32))),
        lambda: (_halves(4, 16),),
        32 * 2 * 2 * 64,
        32 * 4 * 64,
    ),
    "memory: 32 Mi elements added": Work(
        _Add, lambda: (_halves(1 << 25), _halves(1 << 25)), 6 << 25, 1 << 25
    ),
    "linear: 1 row, 4096 to 4096": _matmul(1, 4096, 4096),
    "linear: 1024 rows, 4096 to 4096": _matmul(1024, 4096, 4096),
    "convolution: 8 images of 56, 3 by 3, 64 channels": Work(
        lambda: nn.Conv2d(64, 64, 3, padding=1, bias=False).half(),
        lambda: (_halves(8, 64, 56, 56),),
        4 * 8 * 64 * 56 * 56 + 2 * 64 * 64 * 9,
        2 * 8 * 64 * 64 * 9 * 56 * 56,
    ),
}


def run_timing(work: Work, target: TargetConfig, device: Device) -> dict[str, object]:
    """Times work in float16, on the device and on the CPU.

    Returns:
        The median, fastest and slowest seconds of a call, and bytes and operations a second; the
        CPU's median, and the device's with libraries in the place of own kernels, where it has any.
    """
    torch.manual_seed(0)
    model, inputs = work.model().eval(), work.inputs()
    ir = extract_ir(model, inputs)
    program = compile(ir, target)

    def seconds(of: CompiledProgram, on: Device) -> list[float]:
        return _seconds(load(of, model.state_dict(), on), inputs)

    found = seconds(program, device)
    median = statistics.median(found)
    row: dict[str, object] = {
        "median_s": median,
        "min_s": min(found),
        "max_s": max(found),
        "calls": len(found),
        "bytes_per_s": work.bytes / median,
        "operations_per_s": work.operations / median,
    }
    if target.code_format:
        row["cpu_median_s"] = statistics.median(seconds(compile(ir, "cpu"), Device("cpu")))
        by_libraries = compile(ir, replace(target, libraries="all"))
        if by_libraries != program:
            row["libraries_median_s"] = statistics.median(seconds(by_libraries, device))
    return row


def _seconds(session: Session, inputs: tuple[Tensor, ...]) -> list[float]:
    session(*inputs)  # what happens once
    seconds: list[float] = []
    while len(seconds) < _FEWEST or sum(seconds) < _SECONDS:
        start = time.perf_counter()
        session(*inputs)
        seconds.append(time.perf_counter() - start)
    return seconds

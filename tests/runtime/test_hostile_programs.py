"""Programs that ask for too much: refused where a limit says so, and ended by Ctrl-C."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import npusim
from npusim import _runtime
from npusim.abi.kernels import KERNELS
from npusim.errors import DeviceError, Error, ProgramFormatError
from npusim.program.program import BufferKind
from tests.runtime import programs
from tests.runtime.hostile_programs import endless_sum


def test_work_is_counted_and_refused_above_a_limit() -> None:
    program = endless_sum(16, 1000)
    steps = 16 * 1000 + 16
    x = np.ones(1, np.float32)
    (y,) = npusim.load(program, max_work=steps)(x)
    np.testing.assert_array_equal(y, np.full(16, 1000, np.float32))
    with pytest.raises(Error, match=f"takes {steps} steps, and max_work is {steps - 1}.*net.py:3"):
        npusim.load(program, max_work=steps - 1)
    with pytest.raises(DeviceError, match="max_work is a count of steps"):
        npusim.Device("cpu", max_work=0)
    with pytest.raises(DeviceError, match="max_work is an option of Device"):
        npusim.load(program, device=npusim.Device("cpu"), max_work=1)


def test_a_task_that_nobody_could_stop_is_refused() -> None:
    with pytest.raises(ProgramFormatError, match="one of its tasks takes more than"):
        npusim.load(endless_sum(1, 1 << 40))


_LONG = """
import numpy as np, npusim, sys
session = npusim.load(sys.argv[1], threads=int(sys.argv[2]))
print("ready", flush=True)
try:
    session(np.ones(1, np.float32))
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_a_long_run(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "long.npubin"
    endless_sum(1 << 16, 1 << 32).save(path)  # days
    child = subprocess.Popen(
        [sys.executable, "-c", _LONG, str(path), str(threads)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=100)[0] == "stopped\n"
    finally:
        child.kill()


def test_what_works_in_place_stands_once() -> None:
    said = {k.name for k in KERNELS.values() if k.in_place and not k.generated_only}
    assert set(_runtime.in_place_kernels()) == said


def test_memory_is_counted_and_refused_above_a_limit() -> None:
    program = programs.mlp()
    declared = _runtime.Program.from_bytes(program.to_bytes()).declared_bytes
    weights = sum(b.bytes for b in program.buffers if b.kind is BufferKind.WEIGHT)
    assert declared > weights + program.persistent_bytes
    state = programs.mlp_weights()
    x = np.ones((1, 16), np.float32)
    (expected,) = npusim.load(program, state)(x)
    (y,) = npusim.load(program, state, threads=1, max_memory=declared + (1 << 20))(x)
    np.testing.assert_array_equal(y, expected)
    refused = rf"declares {declared} bytes of memory \(.*weights {weights}.*is {declared - 1}"
    device = npusim.Device(max_memory=declared - 1)
    for load in (
        lambda: npusim.load(program, state, max_memory=declared - 1),
        lambda: npusim.load_weights(state, program, device),
        lambda: npusim.Executor(program, device),
        lambda: npusim.State(program, pickle.loads(pickle.dumps(device))),
    ):
        with pytest.raises(Error, match=refused):
            load()
    with pytest.raises(DeviceError, match="max_memory is a count of bytes"):
        npusim.Device("cpu", max_memory=0)
    with pytest.raises(DeviceError, match="max_memory is an option of Device"):
        npusim.load(program, state, device=device, max_memory=1 << 20)


def test_a_small_file_cannot_ask_for_all_memory() -> None:
    """What is declared is refused before it is allocated, and what kernels work in as well."""
    program = replace(programs.mlp(), state_bytes=1 << 40)
    with pytest.raises(Error, match=r"\(state 1099511627776, .*max_memory is 1048576"):
        npusim.load(program, programs.mlp_weights(), max_memory=1 << 20)
    x = torch.zeros(1, 5000)
    graph = npusim.extract_ir(_Sorted().eval(), (x,))
    sorts = npusim.compile(graph)
    declared = _runtime.Program.from_bytes(sorts.to_bytes()).declared_bytes
    with pytest.raises(Error, match=f"work in [0-9]+ bytes beside the {declared} that"):
        npusim.load(sorts, threads=1, max_memory=declared)
    npusim.load(sorts, threads=1, max_memory=declared + (1 << 18))(x)


class _Sorted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x, -1).values

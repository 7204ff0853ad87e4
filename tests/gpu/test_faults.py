"""What goes wrong with a GPU: no memory, another architecture, a fault of the device, company.

Each in a process of its own, since some of these break the driver for the process they happen in.
"""

from __future__ import annotations

import os

import pytest

from tests.gpu.device import finish, require_gpu, run, start

require_gpu()

PRELUDE = """
import gc
import torch, npusim
from npusim import DeviceBuffer, DeviceError, ProgramFormatError
from tests.gpu.images import small_program, trapping, with_images, without_source

def check(session, model, x):
    with torch.no_grad():
        want = model(x)
    (got,) = session(x)
    assert (got - want).abs().max() <= 1e-4 * want.abs().max()
"""


RUN = """
program, model, x = small_program()
session = npusim.load(program, model.state_dict(), device="cuda")
for _ in range(300):
    check(session, model, x)
"""


@pytest.mark.skipif(
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1,
    reason="it takes all memory of the GPU from the tests that run beside it: run it without -n",
)
def test_without_memory_the_error_says_so_and_the_next_program_runs() -> None:
    out = run(
        PRELUDE
        + """
device = npusim.Device("cuda")
free = torch.cuda.mem_get_info()[0]
taken = []
try:
    while True:
        taken.append(DeviceBuffer(device, "uint8", (4 << 30,)))
except DeviceError as error:
    print(error)
try:
    while True:
        taken.append(DeviceBuffer(device, "uint8", (128 << 20,)))
except DeviceError:
    pass
program, model, x = small_program()
large = torch.nn.Linear(8192, 8192, bias=False).eval()
y = torch.zeros(1, 8192)
other = npusim.compile((large, (y,)), "cuda")
try:
    npusim.load(other, large.state_dict(), device)
except DeviceError as error:
    print(error)
taken.clear()
check(npusim.load(program, model.state_dict(), device), model, x)
check(npusim.load(other, large.state_dict(), device), large, torch.randn(1, 8192))
del device, taken
gc.collect()
assert torch.cuda.mem_get_info()[0] > free - (1 << 30), "memory is kept"
"""
    )
    first, second = out.splitlines()
    assert "CUDA device 0 has no 4294967296 bytes to give" in first and "are free" in first
    assert "bytes to give" in second and "are free" in second


def test_a_program_for_another_architecture_is_compiled_from_its_source_or_refused() -> None:
    out = run(
        PRELUDE
        + """
major, _ = torch.cuda.get_device_capability()
program, model, x = small_program("cuda:sm_80" if major != 8 else "cuda:sm_90")
check(npusim.load(program, model.state_dict(), device="cuda"), model, x)
try:
    npusim.load(with_images(program, without_source), model.state_dict(), device="cuda")
except npusim.Error as error:
    print(error)
"""
    )
    assert "brings no source; this device is sm_" in out


def test_a_fault_of_the_device_says_to_start_the_process_again() -> None:
    out = run(
        PRELUDE
        + """
program, model, x = small_program()
session = npusim.load(with_images(program, trapping), model.state_dict(), device="cuda")
for _ in range(2):
    try:
        session(x)
    except DeviceError as error:
        print(error)
try:
    DeviceBuffer.from_numpy(x.numpy(), session.device)
except DeviceError as error:
    print(error)
"""
    )
    lines = out.splitlines()
    assert len(lines) == 3
    assert all("The device is lost to this process: start the process again." in s for s in lines)
    run(PRELUDE + RUN)


def test_two_processes_share_a_gpu() -> None:
    for process in [start(PRELUDE + RUN), start(PRELUDE + RUN)]:
        finish(process)

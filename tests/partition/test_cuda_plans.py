"""Plans on a device with memory of its own: what is copied, and who waits (over a stub driver)."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.runtime.test_cuda import run, stub  # noqa: F401  (a fixture)

PRELUDE = """
import numpy as np, torch
import npusim
from torch import nn
from tests.partition.stub_plans import driver_calls, plan_of_sums, watched, whenever_watched

class Net(nn.Module):
    def forward(self, x, y, z):
        a, b, c = x + y, x + z, y + z
        d, e = watched(a), watched(b)
        return a, d + e, d + c

args = [torch.arange(6.0) * k for k in (1, 10, 100)]
plan = plan_of_sums(Net(), *args)
assert [p.executor for p in plan.partitions] == ["native", "pytorch", "native"]
executor = npusim.DAGExecutor(plan, "cuda", summary=False)
NAMES = ("cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuEventSynchronize")

def agrees(got, want):
    return all(np.array_equal(np.asarray(y), r.numpy()) for y, r in zip(got, want, strict=True))
"""


def test_copies_start_early_and_nodes_wait_for_their_own_values(stub: Path) -> None:  # noqa: F811
    code = """
    assert agrees(executor(*args), Net()(*args))
    seen = whenever_watched(*NAMES)
    before = driver_calls(*NAMES)
    got = executor(*args)
    (down, up, waits), (down_2, up_2, waits_2) = (np.subtract(at, before) for at in seen)
    assert (down, down_2) == (2, 2), "both values are on their way before either is read"
    assert (up, up_2) == (3, 4), "what the first node makes goes up before the second runs"
    uploads = (3, 4)  # an upload waits for its pinned chunk, which is free
    assert (waits - uploads[0], waits_2 - uploads[1]) == (1, 2), "each node waits for its own value"
    down, up, _ = np.subtract(driver_calls(*NAMES), before)
    assert (down, up) == (2 + 2, 3 + 2), "c stays there, and a has come for both who ask for it"
    assert agrees(got, Net()(*args))

    # Calls share pinned memory, and results have their own.
    kept = [got]
    pinned = driver_calls("cuMemHostAlloc")
    kept += [executor(*(k * x for x in args)) for k in (2, 3, 4)]
    kept.append(executor(*(5 * x.numpy() for x in args)))
    assert driver_calls("cuMemHostAlloc") == pinned
    assert driver_calls("cuStreamSynchronize") == (0,), "nobody waits for everything"
    for k, got in enumerate(kept, 1):
        assert agrees(got, [k * r for r in Net()(*args)]), k
    """
    run(PRELUDE + textwrap.dedent(code), stub)


def test_values_of_the_device_stay_there_and_faults_pass(stub: Path) -> None:  # noqa: F811
    code = """
    from npusim import DeviceBuffer
    given = [DeviceBuffer.from_numpy(x.numpy(), executor.device) for x in args]
    before = driver_calls("cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync")
    got = executor(*given)
    down, up = np.subtract(driver_calls("cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"), before)
    assert (down, up) == (2, 2), "what PyTorch reads, and what it makes"
    assert all(type(y) is DeviceBuffer for y in got)
    assert agrees([y.to_numpy() for y in got], Net()(*args))

    class Late(nn.Module):
        def forward(self, x, y):
            return watched(x) + y
    late = npusim.DAGExecutor(plan_of_sums(Late(), *args[:2]), executor.device, summary=False)
    (y,) = late(*given[:2])
    assert agrees([y.to_numpy()], [Late()(*args[:2])]), "an input on the device, read by PyTorch"

    # A copy that fails is one error, and the next call runs.
    import ctypes, os
    driver = ctypes.CDLL(os.environ["NPUSIM_CUDA_DRIVER"])
    driver.stub_set(b"fail cuMemcpyDtoHAsync", 700)
    try:
        executor(*args)
    except npusim.DeviceError as error:
        assert "could not copy from the device" in str(error), error
    else:
        raise AssertionError("no error")
    driver.stub_set(b"fail cuMemcpyDtoHAsync", 0)
    assert agrees(executor(*args), Net()(*args))
    """
    run(PRELUDE + textwrap.dedent(code), stub)


def test_a_fault_is_found_inside_its_partition(stub: Path) -> None:  # noqa: F811
    code = """
    options = {"state_dict": {}, "test_inputs": tuple(args), "device": "cuda"}
    ok, report = npusim.verify_plan(plan, **options, bisect=True)
    assert ok and report.first_divergence.value.max_rel == 0, report
    for which in (0, 2):
        wrong = plan_of_sums(Net(), *args, entries={which: "subtract"})
        ok, report = npusim.verify_plan(wrong, **options)
        first = report.first_divergence
        assert not ok and (first.partition, first.command, first.cause) == (which, 0, "command")
        assert [i.max_rel for i in first.inputs] == [None, None], "inputs of the partition"
    """
    run(PRELUDE + textwrap.dedent(code), stub)

"""Arrays of the host on Metal without a copy: whole pages, where they lie, both ways."""

from __future__ import annotations

import gc
import mmap
import threading
import weakref

import numpy as np
import pytest

import npusim
from npusim.errors import ShapeError
from npusim.program.program import CompiledProgram
from npusim.runtime import DeviceBuffer, Executor
from tests.metal.conftest import alive
from tests.metal.programs import UNARY, MetalBuilder, image, lookup
from tests.softmetal import metal

COUNT = mmap.PAGESIZE // 4  # floats of a page


def pages(count: int = COUNT, shift: int = 0) -> np.ndarray:
    """An array that begins `shift` floats behind the beginning of a page."""
    memory = np.frombuffer(mmap.mmap(-1, 4 * (count + shift)), np.float32)
    memory[:] = np.arange(count + shift)
    return memory[shift:]


def tripled(count: int = COUNT) -> CompiledProgram:
    b = MetalBuilder()
    x, y = b.input("x", (count,)), b.output("y", (count,))
    launch = {"entry": "run", "grid": [count // 64, 1, 1], "block": [64, 1, 1]}
    b.launch(image(UNARY.format(expression="x[i] * 3.0f"), launches=[launch]), [x], [y])
    return b.finish()


@pytest.mark.parametrize("shift", [0, 4])
def test_pages_are_shared_both_ways_and_kept(device: npusim.Device, shift: int) -> None:
    array = pages(shift=shift)
    buffer = DeviceBuffer.from_numpy(array, device, copy=False)
    view = buffer.to_numpy()
    assert np.shares_memory(view, array)
    executor = Executor(tripled(), device)
    for _ in range(2):
        array += 1.0
        (y,) = executor.run({"x": buffer}).values()
        np.testing.assert_array_equal(y.to_numpy(), array * np.float32(3))
    executor.run({"x": y}, outputs={"y": buffer})
    np.testing.assert_array_equal(array, y.to_numpy() * np.float32(3), "it is waited for")
    kept = weakref.ref(array)
    del array, buffer, executor, y
    gc.collect()
    assert kept() is not None
    del view
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    "array", [pages(8), pages(COUNT - 4), pages(shift=1), pages(shift=3)], ids=str
)
def test_what_cannot_be_shared_is_copied_or_refused(
    device: npusim.Device, array: np.ndarray
) -> None:
    with pytest.raises(ShapeError, match=r"the device metal cannot use these \d+ bytes where they"):
        DeviceBuffer.from_numpy(array, device, copy=False)
    buffer = DeviceBuffer.from_numpy(array, device)
    assert not np.shares_memory(buffer.to_numpy(), array)
    np.testing.assert_array_equal(buffer.to_numpy(), array)


def test_copies_strides_and_read_only_arrays(device: npusim.Device) -> None:
    array = pages()
    own = DeviceBuffer.from_numpy(array, device, copy=True)
    array[0] = 7.0
    assert own.to_numpy()[0] == 0.0
    with pytest.raises(ShapeError, match="not contiguous"):
        DeviceBuffer.from_numpy(pages(2 * COUNT)[::2], device, copy=False)
    array.flags.writeable = False
    shown = DeviceBuffer.from_numpy(array, device, copy=False)
    assert not shown.writable and not shown.to_numpy().flags.writeable
    (y,) = Executor(tripled(), device).run({"x": shown}).values()
    np.testing.assert_array_equal(y.to_numpy(), array * np.float32(3))
    with pytest.raises(npusim.Error, match="read"):
        Executor(tripled(), device).run({"x": own}, outputs={"y": shown})
    for copy in (None, True, False):
        empty = DeviceBuffer.from_numpy(np.empty((2, 0), np.int8), device, copy=copy)
        assert empty.shape == (2, 0) and empty.to_numpy().size == 0


def test_dlpack_both_ways(device: npusim.Device) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(pages())
    buffer = DeviceBuffer.from_dlpack(tensor, device, copy=False)
    assert buffer.__dlpack_device__() == (1, 0)
    (y,) = Executor(tripled(), device).run({"x": buffer}).values()
    back = torch.from_dlpack(y)
    del y
    assert torch.equal(back, tensor * 3)
    assert torch.from_dlpack(buffer).data_ptr() == tensor.data_ptr()
    small = DeviceBuffer.from_dlpack(torch.ones(3, dtype=torch.bfloat16), device)
    assert torch.from_dlpack(small).tolist() == [1.0] * 3
    with pytest.raises(ShapeError, match="cannot use these 12 bytes"):
        DeviceBuffer.from_dlpack(torch.ones(3), device, copy=False)


def test_sessions_use_arrays_in_place(device: npusim.Device) -> None:
    """No buffer stays behind that a copy would need, on the way in or out."""
    session = npusim.load(tripled(64 * COUNT), device=device)
    before = alive()
    array = pages(64 * COUNT)
    for _ in range(3):
        array += 1.0
        (y,) = session(array)
        np.testing.assert_array_equal(y, array * np.float32(3))
    assert alive() == before
    (y,) = session(pages(64 * COUNT, shift=1))  # at no multiple of 16 bytes
    assert y[0] == 3.0 and alive() > before


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffle"])
def test_several_threads_share_an_array(device: npusim.Device, order: str) -> None:
    metal.set_option("ORDER", order)
    metal.set_option("DELAY_US", 100)
    array, program, wrong = pages(), tripled(), []
    expected = array * np.float32(3)

    def work() -> None:
        session, executor = npusim.load(program, device=device), Executor(program, device)
        for _ in range(6):
            (by_copy,) = executor.run({"x": DeviceBuffer.from_numpy(array, device)}).values()
            if not np.array_equal(session(array)[0], expected):
                wrong.append("session")
            if not np.array_equal(by_copy.to_numpy(), expected):
                wrong.append("executor")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_run_that_fails_lets_go_of_arrays(device: npusim.Device) -> None:
    table = np.arange(4, dtype=np.float32)
    session = npusim.load(lookup(4, COUNT), {"table": table}, device)
    ids = pages(2 * COUNT).view(np.int64)
    ids[:] = 3
    before = alive()
    assert session(ids)[0].tolist() == [3.0] * COUNT
    ids[5] = 4
    with pytest.raises(npusim.Error, match="out of range: 4, limit 4"):
        session(ids)
    ids[5] = 2
    assert session(ids)[0][5] == 2.0 and alive() == before

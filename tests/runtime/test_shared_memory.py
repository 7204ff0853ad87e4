"""Arrays and buffers over the same memory: what is shared, copied or refused, and who keeps it."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import npusim
from npusim.errors import ShapeError
from npusim.program.program import TensorSpec
from npusim.runtime import DeviceBuffer

CPU = npusim.Device("cpu", threads=1)


def test_an_array_is_shared_both_ways_and_kept() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = DeviceBuffer.from_numpy(array, CPU, copy=False)
    array[0, 0] = 9.0
    view = np.asarray(buffer)
    assert view[0, 0] == 9.0 and np.shares_memory(view, array)
    view[1, 2] = -1.0
    assert array[1, 2] == -1.0
    kept = weakref.ref(array)
    del array, buffer
    gc.collect()
    assert kept() is not None and view[1, 2] == -1.0, "the view keeps buffer and array"
    del view
    gc.collect()
    assert kept() is None


def test_a_copy_is_made_on_request() -> None:
    array = np.arange(4, dtype=np.int64)
    buffer = DeviceBuffer.from_numpy(array, CPU, copy=True)
    array[:] = 0
    assert buffer.to_numpy().tolist() == [0, 1, 2, 3] and buffer.writable


def test_a_read_only_array_is_a_read_only_buffer() -> None:
    array = np.ones(4, np.float32)
    array.flags.writeable = False
    buffer = DeviceBuffer.from_numpy(array, CPU, copy=False)
    assert not buffer.writable and not np.asarray(buffer).flags.writeable
    with pytest.raises(npusim.Error, match="cannot take these bytes"):
        buffer.write(bytes(16))
    with pytest.raises(BufferError, match="read only"):
        np.from_dlpack(buffer)
    assert DeviceBuffer.from_numpy(array, CPU, copy=True).writable
    with pytest.raises(ShapeError, match=r"cannot be lent by DLPack.*from_numpy"):
        DeviceBuffer.from_dlpack(array, CPU)


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.ones((3, 4), np.float32).T, "not contiguous"),
        (np.ones(8, np.float32)[::2], "not contiguous"),
        (np.ones(4, ">f4"), "native"),
        (np.frombuffer(bytes(17), np.uint8)[1:].view(np.float32), "aligned"),
    ],
)
def test_what_does_not_lie_as_kernels_read_it_is_copied_or_refused(
    array: np.ndarray, why: str
) -> None:
    with pytest.raises(ShapeError, match=f"cannot be shared.*{why}"):
        DeviceBuffer.from_numpy(array, CPU, copy=False)
    buffer = DeviceBuffer.from_numpy(array, CPU)
    np.testing.assert_array_equal(buffer.to_numpy(), array)
    assert not np.shares_memory(buffer.to_numpy(), array)


def test_padding_and_rounding_are_copies() -> None:
    array = np.ones((2, 3), np.float32)
    padded = TensorSpec("x", 0, "float32", (2, 3), (2, 4))
    with pytest.raises(ShapeError, match=r"'x' cannot be shared.*padded"):
        DeviceBuffer.from_numpy(array, CPU, padded, copy=False)
    rounded = TensorSpec("x", 0, "bfloat16", (2, 3), (2, 3))
    with pytest.raises(ShapeError, match=r"'x' cannot be shared.*rounded"):
        DeviceBuffer.from_numpy(array, CPU, rounded, copy=False)
    with pytest.raises(ShapeError, match="'x' has dtype float64, expected float32"):
        DeviceBuffer.from_numpy(array.astype(np.float64), CPU, padded, copy=False)


@pytest.mark.parametrize("copy", [None, True, False])
def test_nothing_can_always_be_shared(copy: bool | None) -> None:
    buffer = DeviceBuffer.from_numpy(np.empty((0, 3), np.float16), CPU, copy=copy)
    assert buffer.shape == (0, 3) and buffer.nbytes == 0


def test_dlpack_shares_and_keeps_both_ways() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(4.0)
    buffer = DeviceBuffer.from_dlpack(tensor, CPU, copy=False)
    tensor[0] = 5.0
    back = torch.from_dlpack(buffer)
    assert back.data_ptr() == tensor.data_ptr() and back[0] == 5.0
    own = DeviceBuffer.from_dlpack(tensor, CPU, copy=True)
    tensor[0] = 6.0
    assert own.to_numpy()[0] == 5.0
    del tensor, buffer
    gc.collect()
    assert back.tolist() == [6.0, 1.0, 2.0, 3.0]
    with pytest.raises(ShapeError, match="not contiguous"):
        DeviceBuffer.from_dlpack(torch.ones(3, 4).T, CPU)

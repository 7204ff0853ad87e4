"""What a session may be called with besides plain arrays, where it lies, and what comes back."""

from __future__ import annotations

import array
import ctypes
import gc
import sys
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.runtime.host_arrays import host_arrays
from tests.runtime import programs

VALUES = np.arange(1, 13, dtype=np.float32).reshape(3, 4)


class Shown:
    """Shows an array by NumPy's interface alone."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.__array_interface__ = values.__array_interface__


class Lent:
    """Shows an array by DLPack alone, without a shape or a library."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class Kind(np.ndarray):
    """A subclass without a meaning of its own."""


def of_ctypes(values: np.ndarray) -> ctypes.Array:
    return ((ctypes.c_float * 4) * 3).from_buffer_copy(values.tobytes())


@pytest.mark.parametrize(
    "make",
    [
        memoryview,
        lambda x: memoryview(x.tobytes()).cast("f", (3, 4)),
        of_ctypes,
        Shown,
        lambda x: x.view(Kind),
        lambda x: memoryview(np.asfortranarray(x)),
        lambda x: memoryview(x.astype(">f4")),
    ],
    ids=["view", "cast", "ctypes", "interface", "subclass", "fortran", "other bytes"],
)
def test_what_shows_host_memory_gives_arrays(make) -> None:
    session = npusim.load(programs.identity((3, 4)), threads=2)
    for (y,) in (session(make(VALUES)), session(x=make(VALUES))):
        assert type(y) is np.ndarray
        np.testing.assert_array_equal(y, VALUES)


@pytest.mark.parametrize(
    ("letter", "dtype"),
    [
        *(("b", "int8"), ("h", "int16"), ("i", "int32"), ("q", "int64"), ("B", "uint8")),
        *(("d", "float64"), ("f", "float32")),
    ],
)
def test_arrays_of_the_standard_library(dtype: str, letter: str) -> None:
    session = npusim.load(programs.identity((3,), dtype))
    (y,) = session(array.array(letter, [1, 2, 3]))
    assert y.dtype == dtype and y.tolist() == [1, 2, 3]


def test_bytes_are_uint8_and_bools_are_bool() -> None:
    session = npusim.load(programs.identity((3,), "uint8"))
    for value in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        assert session(value)[0].tobytes() == b"abc"
    flags = np.array([True, False, True])
    assert npusim.load(programs.identity((3,), "bool"))(memoryview(flags))[0].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (memoryview(VALUES.T), "shape"),
        (memoryview(VALUES.astype(np.float64)), "float64"),
        (memoryview(VALUES.view(np.int32)), "int32"),
        (memoryview(VALUES.tobytes()), "uint8|shape"),
        (np.ma.masked_array(VALUES, VALUES > 3), "masked"),
        (VALUES.tolist(), "list"),
        ("abc", "str"),
        (None, "NoneType"),
    ],
)
def test_others_are_refused(value, words: str) -> None:
    session = npusim.load(programs.identity((3, 4)))
    for _ in range(2):
        with pytest.raises(npusim.ShapeError, match=words):
            session(value)


def test_a_buffer_off_the_alignment_is_copied() -> None:
    given = memoryview(b"\0" + VALUES.tobytes())[1:].cast("B").cast("f", (3, 4))
    (y,) = npusim.load(programs.identity((3, 4)))(given)
    np.testing.assert_array_equal(y, VALUES)


def test_buffers_are_given_back() -> None:
    session = npusim.load(programs.swap(4))
    held, other = bytearray(16), np.ones(4, np.float32)
    for _ in range(3):
        session(memoryview(held).cast("f"), other)
        with pytest.raises(npusim.ShapeError):
            session(memoryview(held).cast("f"), other[:3])
    gc.collect()
    held.append(1)  # refused as long as anything holds a view of it


def test_dlpack_without_a_library() -> None:
    session = npusim.load(programs.identity((3, 4)))
    (y,) = session(Lent(VALUES))
    np.testing.assert_array_equal(np.from_dlpack(y), VALUES)
    with pytest.raises(npusim.ShapeError, match="shape"):
        session(Lent(VALUES[:2].copy()))


def test_a_buffer_over_an_array_gives_a_buffer() -> None:
    session = npusim.load(programs.identity((3, 4)))
    given = npusim.DeviceBuffer.from_numpy(VALUES, session.device)
    (y,) = session(given)
    assert isinstance(y, npusim.DeviceBuffer)
    np.testing.assert_array_equal(y.to_numpy(), VALUES)


def test_arrays_that_fit_are_left_alone() -> None:
    assert host_arrays([VALUES]) is None and host_arrays([[1.0]]) is None
    assert host_arrays([VALUES, VALUES.T])[0] is VALUES


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 4), (3, 0, 2), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "float16"])
def test_tensors_of_pytorch_come_back_as_its_own_would(shape, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    session = npusim.load(programs.identity(shape, dtype))
    x = torch.ones(shape).to(getattr(torch, dtype))
    for _ in range(2):
        (y,) = session(x)
        assert type(y) is torch.Tensor and y.dtype == x.dtype and y.shape == x.shape
        assert y.is_contiguous() and y.stride() == torch.empty(shape).stride()
        assert not y.requires_grad and y.is_leaf and torch.equal(y, x)
        assert y.numel() == 0 or y.data_ptr() % 64 == 0
        assert torch.equal(y.fill_(0), torch.zeros_like(x)), "writable"


def test_tensors_of_pytorch_outlive_the_session() -> None:
    torch = pytest.importorskip("torch")
    session = npusim.load(programs.identity((1000,)))
    kept = [session(torch.full((1000,), float(i)))[0] for i in range(50)]
    part = session(torch.arange(1000.0))[0][10:20]
    del session
    gc.collect()
    assert all(bool((y == i).all()) for i, y in enumerate(kept))
    assert part.tolist() == list(range(10, 20))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the size of the process")
def test_memory_of_tensors_is_freed() -> None:
    torch = pytest.importorskip("torch")
    session = npusim.load(programs.identity((1 << 20,)))
    x = torch.ones(1 << 20)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    session(x)
    before = resident()
    for _ in range(50):
        session(x)
    assert resident() - before < 40 << 20, "50 results of 4 MiB"

"""Devices and buffers: options, and what is shared with NumPy, PyTorch and DLPack."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import npusim
from npusim import DeviceBuffer, TensorSpec, _runtime
from tests.runtime import programs


@pytest.fixture
def device() -> npusim.Device:
    return npusim.Device("cpu", threads=1)


def test_unknown_devices_and_options_are_refused() -> None:
    with pytest.raises(npusim.DeviceError, match=r"no device tpu.*cpu, .*null"):
        npusim.Device("tpu")
    with pytest.raises(npusim.DeviceError, match=r"instruction set mmx.*usable here"):
        npusim.Device("cpu", isa="mmx")
    for threads in (-1, 100_000):
        with pytest.raises(npusim.DeviceError, match="threads must lie"):
            npusim.Device("cpu", threads=threads)


def test_options_are_refused_by_name() -> None:
    options: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("null", {"threads": 2}, r"null has no option threads; it has: max_memory"),
        ("null", {"isa": "avx2"}, r"null has no option isa"),
        ("cpu", {"ordinal": 0}, r"cpu has no option ordinal; it has: threads, pin_threads, isa,"),
        ("cpu", {"heaps": 1}, r"cpu has no option heaps"),
        ("cpu", {"threads": True}, r"option threads .* is a whole number, not true or false"),
        ("cpu", {"threads": 1.5}, r"option threads is no number, text or truth value: 1\.5"),
        ("cpu", {"threads": 1 << 80}, r"option threads is no number"),
        ("cpu", {"threads": "2"}, r"option threads .* is a whole number, not a text"),
        ("cpu", {"pin_threads": 1}, r"option pin_threads .* is true or false"),
        ("cpu", {"isa": 2}, r"option isa .* is a text"),
        ("cpu", {"isa": b"avx2"}, r"option isa is no number, text or truth value"),
    )
    for name, given, words in options:
        with pytest.raises(npusim.DeviceError, match=words):
            npusim.Device(name, **given)
    with pytest.raises(npusim.DeviceError, match="null has no option max_work"):
        npusim.load(programs.swap(3), device="null", max_work=10)
    none = npusim.Device("null", threads=None, isa=None, ordinal=None, heaps=None)
    assert none.name == "null"
    assert npusim.Device("cpu", threads=np.int64(3)).description.endswith("3 threads")
    own = {"threads", "pin_threads", "isa", "max_work"}
    assert set(_runtime.device_options("cpu")) == own | set(_runtime.device_options("null"))
    assert set(_runtime.device_options("null")) == {"max_memory"}  # every device has it
    assert _runtime.device_parts("cpu", []) == _runtime.device_parts("null", []) == []
    for unknown in (_runtime.device_options, lambda name: _runtime.device_parts(name, [])):
        with pytest.raises(npusim.DeviceError, match="no device tpu"):
            unknown("tpu")


def test_description_says_what_runs() -> None:
    for isa in _runtime.isa_names():
        description = npusim.Device("cpu", threads=2, isa=isa).description
        assert isa in description and "2 threads" in description


def test_the_environment_chooses_the_instruction_set() -> None:
    code = "import npusim; print(npusim.Device('cpu').description)"
    isa = _runtime.isa_names()[-1]
    result = subprocess.run(
        [sys.executable, "-c", code], env={"NPUSIM_ISA": isa, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert isa in result.stdout


def test_every_instruction_set_has_the_same_kernels() -> None:
    first, *others = [_runtime.kernel_schemas(isa) for isa in _runtime.isa_names()]
    assert first and all(other == first for other in others)


def test_pinned_threads_compute_the_same() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux pins threads")
    from tests.runtime import programs

    device = npusim.Device("cpu", threads=2, pin_threads=True)
    state = programs.mlp_weights((64, 64))
    x = np.ones((300, 64), np.float32)
    (y,) = npusim.load(programs.mlp(300, (64, 64)), state, device)(x)
    np.testing.assert_allclose(y, programs.mlp_reference(state, x), rtol=1e-5, atol=1e-5)


def test_from_numpy_shares_memory_and_keeps_it_alive(device: npusim.Device) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = DeviceBuffer.from_numpy(array, device)
    assert np.shares_memory(buffer.to_numpy(), array)
    array[0, 0] = 42
    del array
    gc.collect()
    assert (buffer.to_numpy() == [[42, 1, 2], [3, 4, 5]]).all()


def test_views_outlive_their_buffer(device: npusim.Device) -> None:
    buffer = DeviceBuffer(device, "float32", (1000,))
    view = buffer.to_numpy()
    view[...] = 3
    del buffer
    gc.collect()
    assert (view == 3).all()


def test_strided_arrays_are_copied(device: npusim.Device) -> None:
    array = np.arange(12, dtype=np.int16).reshape(3, 4)[:, ::2]
    buffer = DeviceBuffer.from_numpy(array, device)
    assert (buffer.to_numpy() == array).all()
    assert not np.shares_memory(buffer.to_numpy(), array)


def test_padding_is_zero_and_hidden(device: npusim.Device) -> None:
    spec = TensorSpec("x", 0, "float32", (2, 3), (4, 8))
    array = np.ones((2, 3), np.float32)
    buffer = DeviceBuffer.from_numpy(array, device, spec)
    assert buffer.shape == (2, 3) and buffer.alloc_shape == (4, 8) and buffer.nbytes == 128
    whole = np.frombuffer(buffer.read(), np.float32).reshape(4, 8)
    assert whole.sum() == 6 and (whole[:2, :3] == 1).all()
    assert (buffer.to_numpy(spec) == array).all()


def test_read_only_arrays_stay_read_only(device: npusim.Device) -> None:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    buffer = DeviceBuffer.from_numpy(array, device)
    assert not buffer.writable and not buffer.to_numpy().flags.writeable
    with pytest.raises(BufferError, match="read only"):
        buffer.__dlpack__()


def test_the_buffer_protocol(device: npusim.Device) -> None:
    buffer = DeviceBuffer(device, "int32", (2, 2))
    view = memoryview(buffer)
    assert view.shape == (2, 2) and view.format == "i" and view.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
def test_dlpack_both_ways_without_a_copy(device: npusim.Device, dtype: str) -> None:
    array = np.array([[0, 1, 1]], dtype)
    buffer = DeviceBuffer.from_dlpack(array, device)
    assert buffer.dtype == dtype and buffer.shape == (1, 3)
    assert np.shares_memory(buffer.to_numpy(), array)
    back = np.from_dlpack(buffer)
    assert np.shares_memory(back, array) and (back == array).all()
    del buffer
    gc.collect()
    assert (back == array).all()


def test_dlpack_with_torch(device: npusim.Device) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(4).to(torch.bfloat16)
    buffer = DeviceBuffer.from_dlpack(tensor, device)
    assert buffer.dtype == "bfloat16" and buffer.address == tensor.data_ptr()
    again = torch.from_dlpack(buffer)
    assert again.data_ptr() == tensor.data_ptr() and torch.equal(again, tensor)
    assert (buffer.to_numpy() == [0, 1, 2, 3]).all()


def test_dlpack_of_an_empty_tensor_may_have_any_strides(device: npusim.Device) -> None:
    torch = pytest.importorskip("torch")
    buffer = DeviceBuffer.from_dlpack(torch.ones(0, 3).as_strided((0, 3), (1, 7)), device)
    assert buffer.shape == (0, 3)


def test_dlpack_refusals(device: npusim.Device) -> None:
    torch = pytest.importorskip("torch")
    for tensor, words in [
        (torch.ones(4, 4).T[1:], "not contiguous"),
        (torch.ones(2, dtype=torch.complex64), "dtype"),
    ]:
        with pytest.raises(npusim.ShapeError, match=words):
            DeviceBuffer.from_dlpack(tensor, device)
    capsule = torch.ones(2).__dlpack__()
    _runtime.DeviceBuffer(device, capsule)
    with pytest.raises(npusim.ShapeError, match="used up"):
        _runtime.DeviceBuffer(device, capsule)


def test_wrong_specs_are_refused(device: npusim.Device) -> None:
    spec = TensorSpec("x", 0, "float32", (2, 3), (2, 3))
    for array, words in [
        (np.ones((3, 2), np.float32), r"\[3, 2\], expected \[2, 3\]"),
        (np.ones((2, 3)), "float64, expected float32"),
    ]:
        with pytest.raises(npusim.ShapeError, match=words):
            DeviceBuffer.from_numpy(array, device, spec)
    with pytest.raises(npusim.ShapeError, match="the buffer holds"):
        DeviceBuffer(device, "float32", (3, 2)).to_numpy(spec)
    with pytest.raises(npusim.ShapeError, match="no dtype complex64"):
        DeviceBuffer.from_numpy(np.ones(2, np.complex64), device)


@pytest.mark.parametrize(
    ("dtype", "shape", "alloc", "words"),
    [
        ("float8", (1,), None, "no dtype float8"),
        ("float32", (-1,), None, "negative"),
        ("float32", (2**40,), None, "terabyte"),
        ("float32", (2**62, 2**62), None, "terabyte"),
        ("float32", (4,), (2,), "smaller"),
        ("float32", (4,), (4, 1), "rank"),
    ],
)
def test_absurd_buffers_are_refused(device, dtype, shape, alloc, words) -> None:
    with pytest.raises(npusim.ShapeError, match=words):
        DeviceBuffer(device, dtype, shape, alloc)

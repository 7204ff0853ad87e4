"""Values cross to devices with memory of their own and back, bit for bit (over a stub driver)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import npusim
from npusim.errors import ShapeError
from npusim.ir.types import TensorType
from npusim.partition.crossing import Held
from tests.runtime.test_cuda import run, stub  # noqa: F401  (a fixture)

CODE = """
import numpy as np, torch
import npusim
from npusim.ir.types import TensorType
from npusim.partition.crossing import Held
from npusim.program.program import TensorSpec

device = npusim.Device("cuda")
assert not device.uses_host_memory and not device.host_visible
for dtype in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool"):
    wanted = getattr(torch, dtype)
    for shape in ((), (5,), (3, 4), (0, 2)):
        x = (torch.randn(shape) * 9).to(wanted)
        kind = TensorType(dtype, shape)
        buffer = Held("x", kind, device, tensor=x).buffer()
        assert buffer.device is device or buffer.device.name == "cuda"
        back = Held("x", kind, device, buffer=buffer)
        assert back.tensor().dtype == wanted and torch.equal(back.tensor(), x), (dtype, shape)
        copy = back.copy()
        assert copy.tensor().data_ptr() != back.tensor().data_ptr() or x.numel() == 0
        assert torch.equal(copy.tensor(), x)
        zeros = Held("z", kind, device)
        assert not Held("z", kind, device, buffer=zeros.buffer()).tensor().any()
x = torch.arange(6, dtype=torch.bfloat16)
spec = TensorSpec("x", 0, "bfloat16", (6,), (8,))
padded = Held("x", TensorType("bfloat16", (6,)), device, tensor=x).buffer(spec)
assert tuple(padded.alloc_shape) == (8,)
back = Held("x", TensorType("bfloat16", (6,)), device, buffer=padded)
assert torch.equal(back.tensor(), x)
strided = torch.arange(12.0).reshape(3, 4).t()
there = Held("x", TensorType("float32", (4, 3)), device, tensor=strided).buffer()
assert np.array_equal(there.to_numpy(), strided.numpy())
given = Held("x", TensorType("float32", (4, 3)), device, given=strided.numpy())
assert torch.equal(given.tensor(), strided)
assert np.array_equal(given.buffer().to_numpy(), strided.numpy())
assert isinstance(given.like(np.ones(1)), np.ndarray)
print("crossed")
"""


def test_memory_of_its_own(stub: Path) -> None:  # noqa: F811
    assert run(CODE, stub) == "crossed\n"


def test_host_memory_is_shared_both_ways() -> None:
    device = npusim.Device("cpu")
    x = torch.randn(4, 4, dtype=torch.bfloat16)
    kind = TensorType("bfloat16", (4, 4))
    buffer = Held("x", kind, device, tensor=x).buffer()
    assert buffer.address == x.data_ptr()
    assert Held("x", kind, device, buffer=buffer).tensor().data_ptr() == x.data_ptr()


def test_views_that_are_lazy_are_made_real() -> None:
    device = npusim.Device("cpu")
    z = torch.randn(4, dtype=torch.complex64)
    imaginary = z.conj().imag  # carries a bit that says: negated
    assert imaginary.is_neg()
    held = Held("x", TensorType("float32", (4,)), device, tensor=imaginary)
    assert torch.equal(torch.from_dlpack(held.buffer()), -z.imag)


def test_a_dtype_the_device_lacks_stays_where_it_is() -> None:
    device = npusim.Device("cpu")
    z = torch.randn(4, dtype=torch.complex64)
    held = Held("z", TensorType("complex64", (4,)), device, tensor=z)
    with pytest.raises(ShapeError, match="'z' is complex64, which no device has: it cannot cross"):
        held.buffer()
    assert torch.equal(held.copy().tensor(), z)
    small = torch.ones(2).to(torch.float8_e4m3fn)
    held = Held("f", TensorType("float8_e4m3fn", (2,)), device, tensor=small)
    with pytest.raises(ShapeError, match="which NumPy does not have"):
        held.like(None)
    assert held.like(torch.ones(1)).dtype == torch.float8_e4m3fn

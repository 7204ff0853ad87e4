"""Tensors whose bits are not their values: resolved or refused, as inputs and as weights."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import npusim
from tests.runtime import programs

VALUES = torch.arange(1.0, 5.0)
DOUBLES = torch.complex(torch.zeros(4), VALUES)  # its conjugate's imaginary part is negative


class Wrapper(torch.Tensor):
    """Keeps its values elsewhere, as quantized and distributed tensors do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(str(function))


class Plain(torch.Tensor):
    """Has its values where any tensor has them."""


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(4)


RESOLVED = {
    "negative": lambda: torch._neg_view(VALUES.clone()),
    "imaginary": lambda: DOUBLES.conj().imag,
    "one": lambda: torch._neg_view(VALUES.clone())[2:3],
    "requires grad": lambda: torch._neg_view(VALUES.clone()).requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(torch._neg_view(VALUES.clone())),
    "subclass": lambda: VALUES.clone().as_subclass(Plain),
    "strided": lambda: torch.arange(1.0, 9.0)[::2],
    "scalar": lambda: torch._neg_view(torch.tensor(3.0)),
}
REFUSED = {
    "fake": fake,
    "functional": lambda: torch._to_functional_tensor(VALUES.clone()),
    "wrapper": lambda: Wrapper(VALUES),
    "meta": lambda: VALUES.to("meta"),
    "sparse": lambda: VALUES.to_sparse(),
    "mkldnn": lambda: VALUES.to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([VALUES, VALUES[:2]]),
    "quantized": lambda: torch.quantize_per_tensor(VALUES, 0.1, 0, torch.quint8),
    "masked": lambda: np.ma.masked_array(VALUES.numpy(), VALUES.numpy() > 2),
}


def values_of(tensor) -> np.ndarray:
    return tensor.detach().resolve_neg().as_subclass(torch.Tensor).numpy().copy()


def weighted(shape: tuple[int, ...]) -> npusim.CompiledProgram:
    builder = programs.Builder()
    weight = builder.weight("w", shape)
    builder.copy(weight, builder.output("y", shape), int(np.prod(shape)))
    return builder.build()


@pytest.mark.parametrize("name", RESOLVED)
def test_inputs_are_resolved(name: str) -> None:
    tensor = RESOLVED[name]()
    expected, shape = values_of(tensor), tuple(tensor.shape)
    session = npusim.load(programs.identity(shape))
    for _ in range(3):  # the first call is not like the others
        (y,) = session(torch.ones(shape))
        np.testing.assert_array_equal(y.numpy(), np.ones(shape, np.float32))
        np.testing.assert_array_equal(session(tensor)[0].numpy(), expected)
        np.testing.assert_array_equal(session(x=tensor)[0].numpy(), expected)


@pytest.mark.parametrize("name", RESOLVED)
def test_buffers_and_weights_are_resolved(name: str) -> None:
    tensor = RESOLVED[name]()
    expected, shape = values_of(tensor), tuple(tensor.shape)
    device = npusim.Device(threads=1)
    if tensor.is_contiguous():
        buffer = npusim.DeviceBuffer.from_dlpack(tensor, device)
        np.testing.assert_array_equal(buffer.to_numpy(), expected)
    session = npusim.load(weighted(shape), {"w": tensor}, device)
    np.testing.assert_array_equal(session()[0], expected)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_has_no_plain_values_is_refused(name: str) -> None:
    value = REFUSED[name]()
    session = npusim.load(programs.identity((4,)))
    for _ in range(2):
        with pytest.raises(npusim.ShapeError, match="'x' is"):
            session(value)
        with pytest.raises(npusim.ShapeError):
            session(x=value)
        session(VALUES)
    with pytest.raises(npusim.ShapeError):
        npusim.DeviceBuffer.from_dlpack(value, session.device)
    if not isinstance(value, np.ndarray):
        return
    with pytest.raises(npusim.ShapeError):
        npusim.DeviceBuffer.from_numpy(value, session.device)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_weights_without_plain_values_are_refused(name: str) -> None:
    with pytest.raises(npusim.WeightMismatchError, match="weight 'w' is"):
        npusim.load(weighted((4,)), {"w": REFUSED[name]()})


@pytest.mark.parametrize("before", [0, 2])
def test_calls_inside_a_mode_without_values_are_refused(before: int) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    session = npusim.load(programs.identity((4,)))
    for _ in range(before):
        session(VALUES)
    with FakeTensorMode():
        for _ in range(2):
            with pytest.raises(npusim.ShapeError, match="FakeTensorMode"):
                session(VALUES)
    np.testing.assert_array_equal(session(VALUES)[0].numpy(), VALUES.numpy())


def test_tensors_of_torch_func_are_refused() -> None:
    session = npusim.load(programs.identity((4,)))
    session(VALUES)

    def call(x):
        return session(x)[0]

    with pytest.raises(npusim.ShapeError, match=r"torch\.func"):
        torch.func.vmap(call)(torch.ones(2, 4))
    with pytest.raises(npusim.ShapeError, match=r"torch\.func"):
        torch.func.grad(lambda x: call(x).sum())(VALUES)

"""The two interpreters of scalar programs agree on every opcode, class and awkward number."""

import numpy as np
import pytest
import torch

from npusim.abi import scalar_numpy, scalar_torch
from npusim.abi.scalar import OPCODES, ScalarOp, ScalarProgram
from npusim.ir.types import TensorType

SPECIAL = [0, 1, -1, 2, -3, 0.5, -0.5, 2.5, 3.5, -2.5, float("nan"), float("inf"), -float("inf")]
SPECIAL += [20.0, 20.5, -20.5]  # about softplus's threshold
CASES = [(name, cls) for name, row in OPCODES.items() for cls in row[3]]
INTEGER_DIVISIONS = ("div_trunc", "div_floor", "remainder", "fmod")


def operands(name, cls):
    """Returns all combinations of special and random numbers, as many as the opcode takes."""
    rng = np.random.default_rng(0)
    base = np.concatenate([SPECIAL, rng.normal(size=20) * 3])
    if cls == "i":
        base = rng.integers(0 if "shift" in name else -9, 10, size=40)
    arity = OPCODES[name][1]
    if arity == 3:
        xs = [rng.permutation(base) for _ in range(3)]
    else:
        xs = [g.reshape(-1) for g in np.meshgrid(*[base] * arity, indexing="ij")]
    xs = [x.astype(scalar_numpy.CLASS_DTYPES[cls]) for x in xs]
    if name == "where":
        xs[0] = np.arange(xs[0].size, dtype=np.int64) % 2
    if cls == "i" and name in INTEGER_DIVISIONS:
        xs = [x[xs[1] != 0] for x in xs]
    if name == "gelu":  # PyTorch's vectorised gelu of infinity is not a number
        xs = [x[np.isfinite(x)] for x in xs]
    return xs


def test_both_know_every_opcode():
    assert set(scalar_numpy.FUNCTIONS) == set(scalar_torch.functions()) == set(OPCODES)


@pytest.mark.parametrize(("name", "cls"), CASES)
def test_agreement(name, cls):
    xs = operands(name, cls)
    classes = ("i", cls, cls) if name == "where" else (cls,) * len(xs)
    program = ScalarProgram(classes, (ScalarOp(name, tuple(range(len(xs))), cls),))
    a = scalar_numpy.run(program, xs)
    b = scalar_torch.run(program, [torch.from_numpy(np.ascontiguousarray(x)) for x in xs]).numpy()
    assert a.dtype == b.dtype
    if a.dtype.kind == "i":
        np.testing.assert_array_equal(a, b)
    else:
        rtol, atol = (2e-5, 1e-6) if cls == "f" else (1e-9, 1e-12)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def test_literals_and_broadcasting():
    body = (ScalarOp("mul", (0, ("const", 2.0)), "f"), ScalarOp("add", (2, 1), "f"))
    program = ScalarProgram(("f", "f"), body)
    xs = [np.arange(3, dtype=np.float32).reshape(3, 1), np.arange(2, dtype=np.float32)]
    expected = xs[0] * 2 + xs[1]
    np.testing.assert_array_equal(scalar_numpy.run(program, xs), expected)
    tensors = [torch.from_numpy(x) for x in xs]
    np.testing.assert_array_equal(scalar_torch.run(program, tensors).numpy(), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "bool"])
def test_storage_rounds_as_pytorch_does(dtype):
    x = torch.tensor([0.0, 1.5, -2.25, 3.14159, 100.7, -7.9, 1.00390625, 1.01171875])
    stored = x.to(getattr(torch, dtype))
    data = scalar_numpy.encode(x.numpy(), dtype)
    assert torch.equal(torch.frombuffer(bytearray(data), dtype=stored.dtype), stored)
    back = scalar_numpy.decode(data, TensorType(dtype, (8,)))
    np.testing.assert_array_equal(back, stored.to(torch.float64).numpy())

"""Every scalar operation of tinygrad in every dtype: its result, or a refusal by name."""

from __future__ import annotations

import pytest

pytest.importorskip("tinygrad")

import numpy as np
from tinygrad import Tensor, dtypes
from tinygrad.uop.ops import GroupOp, Ops

import npusim
from npusim.frontends.tinygrad import from_tinygrad
from tests.frontends.tinygrad.running import array, assert_same, run

FLOATS = {
    dtypes.half: 2e-3, dtypes.bfloat16: 2e-2, dtypes.float: 1e-5, dtypes.double: 1e-9,
}  # fmt: skip
INTEGERS = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64, dtypes.uint8)
ABSENT = (dtypes.uint16, dtypes.uint32, dtypes.uint64)

# Operations for numbers with a fraction alone, for integers alone, and no scalar operation of a
# device at all: tinygrad itself refuses those elsewhere, or has them for its renderers only.
FRACTIONAL = {Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.SQRT, Ops.RECIPROCAL, Ops.POW, Ops.TRUNC}
WHOLE = {Ops.CDIV, Ops.CMOD, Ops.FLOORDIV, Ops.FLOORMOD, Ops.SHL, Ops.SHR}
BITWISE = {Ops.XOR, Ops.OR, Ops.AND}
NOT_RUN = {Ops.THREEFRY, Ops.FDIV, Ops.MULACC}
ALL = (GroupOp.Unary | GroupOp.Binary | GroupOp.Ternary) - NOT_RUN


def _count(op):
    return 1 if op in GroupOp.Unary else 2 if op in GroupOp.Binary else 3


def _compute(op, operands):
    return Tensor(operands[0].uop.alu(op, *(x.uop for x in operands[1:])))


def _operands(op, dtype):
    """Returns operands that the operation is defined for."""
    # Not every compiler computes in bfloat16; tinygrad's interpreter does.
    device = "PYTHON" if dtype == dtypes.bfloat16 else None
    random = np.random.default_rng(_count(op))
    made = []
    for place in range(_count(op)):
        if dtype == dtypes.bool or (op is Ops.WHERE and place == 0):
            made.append(Tensor(random.integers(0, 2, 12).astype(bool), device=device).realize())
            continue
        values = random.standard_normal(12) * 3
        if dtype not in FLOATS:
            values = np.floor(np.abs(values) if dtypes.is_unsigned(dtype) else values)
        positive = op in (Ops.SQRT, Ops.LOG2, Ops.SHL, Ops.SHR) or (op is Ops.POW and place == 0)
        if positive:
            values = np.abs(values) + (0.25 if dtype in FLOATS else 0)
        if op is Ops.RECIPROCAL or (op in WHOLE and place == 1):
            values = np.where(np.abs(values) < 0.3, 1, values)
        made.append(Tensor(values.tolist(), dtype=dtype, device=device).realize())
    return made


def _agrees(ops, dtype, tolerance):
    """Asserts that the results of operations, in one graph, are tinygrad's."""
    operands = {op: _operands(op, dtype) for op in ops}
    flat = [x for op in ops for x in operands[op]]

    def compute(*given):
        rest = iter(given)
        return [_compute(op, [next(rest) for _ in range(_count(op))]) for op in ops]

    got = run(from_tinygrad(compute, flat), flat)
    wanted = compute(*flat)
    Tensor.realize(*wanted)
    for op, result, want in zip(ops, got, wanted, strict=True):
        try:
            assert_same(result, array(want), tolerance)
        except AssertionError as error:
            raise AssertionError(f"{op} of {dtype}: {error}") from None


def _sorted(ops):
    return sorted(ops, key=str)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_operations_on_fractions(dtype):
    _agrees(_sorted(ALL - WHOLE - BITWISE), dtype, FLOATS[dtype])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_operations_on_integers(dtype):
    _agrees(_sorted(ALL - FRACTIONAL), dtype, 0)


def test_operations_on_truth_values():
    _agrees(_sorted(ALL - FRACTIONAL - WHOLE), dtypes.bool, 0)


@pytest.mark.parametrize("dtype", ABSENT, ids=str)
def test_dtypes_that_no_device_has_are_refused_by_name(dtype):
    x = Tensor([1, 2, 3], dtype=dtype).realize()
    imported = from_tinygrad(lambda x: x + x, x)
    with pytest.raises(npusim.UnsupportedOpError, match=r"aten\.add.*dtype uint(16|32|64)"):
        npusim.compile(imported.graph)


def test_conversions():
    x = Tensor([-2.0, -0.4, 0.0, 0.6, 3.7], device="PYTHON").realize()
    signed = (dtypes.bool, dtypes.int8, dtypes.int32, dtypes.int64, *FLOATS)

    def convert(x):
        return [x.cast(dtype) for dtype in signed]

    for result, want in zip(run(from_tinygrad(convert, x), [x]), convert(x), strict=True):
        assert_same(result, array(want), 0)


def test_bits_read_as_another_dtype_are_refused_by_name():
    x = Tensor([1.0, 2.0]).realize()
    imported = from_tinygrad(lambda x: x.bitcast(dtypes.int32), x)
    with pytest.raises(npusim.UnsupportedOpError, match=r"aten\.view\.dtype"):
        npusim.compile(imported.graph)

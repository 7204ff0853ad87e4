"""`npu.lstm_step`: one step of a long short-term memory, its product and its gates in one command.

Of x[…, k], weight[4·units, k], bias[4·units]?, addend[…, 4·units]? and the last cell, c[…, units]:
with s = x·Wᵀ + bias + addend in four parts of so many units, of which `gates` names the places of
input, forget, cell and output (Hochreiter and Schmidhuber, 1997, with Gers' forget gate):

    c' = sigmoid(s_forget) * c + sigmoid(s_input) * tanh(s_cell),  y = sigmoid(s_output) * tanh(c').

Results are y and c'. Sums and gates are not rounded in between. A target without such a kernel gets
the product and the formulas.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from npusim.abi.scalar import ScalarOp, ScalarProgram
from npusim.errors import ShapeError
from npusim.ir.graph import Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.pointwise_kernel import emit_program
from npusim.lowering.view import View
from npusim.ops.fused import NO_EPILOGUE, infer_linear
from npusim.ops.linear import emit_linear, rows, stored_as_rows

if TYPE_CHECKING:
    from torch import Tensor

LSTM_STEP = "npu.lstm_step"
GATES = 4
_DTYPES = ("float32", "float16", "bfloat16")
_ONE_PASS = 4  # rows, with which the kernel reads W once
_MOST_ROWS, _MOST_PRODUCTS = 16, 1 << 23  # of more, tensor cores are worth commands of their own


def is_step(m: int, units: int, k: int) -> bool:
    """Tells whether `lstm_step` computes so many rows faster than a product and two formulas.

    It multiplies outside of the tensor cores, and reads W once for every four rows.
    """
    products = GATES * m * units * k
    return products > 0 and (m <= _ONE_PASS or (m <= _MOST_ROWS and products <= _MOST_PRODUCTS))


def _lower(node: Node, low: Lowering) -> None:
    x, weight, bias, addend, cell = low.inputs(node)
    assert x is not None and weight is not None and cell is not None
    hidden, kept = node.outputs
    y = low.room(hidden, hidden.type)
    new = low.result(kept)
    if y.numel == 0:
        return
    if not stored_as_rows(weight):
        weight = low.dense(weight)
    if bias is not None:
        bias = low.dense(low.cast(bias, "float32"))
    gates = node.attrs["gates"]
    assert isinstance(gates, tuple)
    places = tuple(int(str(g)) for g in gates)
    if addend is not None:
        addend = rows(low, addend)[0]
    small = is_step(prod(x.shape[:-1]), y.shape[-1], x.shape[-1])
    if "lstm_step" in low.target.kernels and small and _rows_apart(y) is not None:
        _emit_step(low, (x, weight, bias, addend, cell), places, y, new)
    else:
        _emit_apart(low, (x, weight, bias, addend, cell), places, y, new)


def _rows_apart(y: View) -> int | None:
    """Returns how far apart the rows of a result lie, if all by as much."""
    lead = replace(y, shape=y.shape[:-1], strides=y.strides[:-1]).reshape((prod(y.shape[:-1]),))
    contiguous = y.shape[-1] == 1 or y.strides[-1] == 1
    return lead.strides[0] if lead is not None and contiguous else None


_Operands = tuple[View, View, View | None, View | None, View]


def _emit_step(
    low: Lowering, operands: _Operands, gates: tuple[int, ...], y: View, new: View
) -> None:
    x, weight, bias, addend, cell = operands
    x, m, ldx = rows(low, x)
    cell, _, ldc = rows(low, cell)
    lda = rows(low, addend)[2] if addend is not None else 0
    params: dict[str, Param] = {
        "m": m,
        "units": y.shape[-1],
        "k": x.shape[-1],
        "ldx": ldx,
        "ldw": weight.strides[0],
        "lda": lda,
        "ldc": ldc,
        "ldy": _rows_apart(y) or 0,
        "ld_new": _rows_apart(new) or 0,
        "gates": gates,
        "has_bias": int(bias is not None),
        "has_addend": int(addend is not None),
        **codes(dtype=x.dtype),
    }
    given = [v for v in (x, weight, bias, addend, cell) if v is not None]
    low.emit("lstm_step", params, given, [y, new])


def _emit_apart(
    low: Lowering, operands: _Operands, gates: tuple[int, ...], y: View, new: View
) -> None:
    x, weight, bias, addend, cell = operands
    units = y.shape[-1]
    sums = low.temp(TensorType(x.dtype, (*x.shape[:-1], GATES * units)))
    extra = {**_NOTHING, "has_bias": int(bias is not None), "residual": int(addend is not None)}
    emit_linear(
        low, x, [weight], sums, (extra, [v for v in (bias, addend) if v is not None]), addend
    )
    parts = [sums.slice(sums.rank - 1, g * units, units) for g in gates]
    emit_program(low, _CELL, [*parts[:3], cell], new)
    emit_program(low, _HIDDEN, [parts[3], new], y)


_NOTHING: dict[str, Param] = {"act": 0, "act_lo": 0.0, "act_hi": 0.0}
_CELL = ScalarProgram(
    ("f",) * 4,
    (
        ScalarOp("sigmoid", (0,), "f"),
        ScalarOp("sigmoid", (1,), "f"),
        ScalarOp("tanh", (2,), "f"),
        ScalarOp("mul", (5, 3), "f"),
        ScalarOp("mul", (4, 6), "f"),
        ScalarOp("add", (7, 8), "f"),
    ),
)
_HIDDEN = ScalarProgram(
    ("f",) * 2,
    (
        ScalarOp("sigmoid", (0,), "f"),
        ScalarOp("tanh", (1,), "f"),
        ScalarOp("mul", (2, 3), "f"),
    ),
)


def reference_lstm_step(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    addend: Tensor | None,
    cell: Tensor,
    /,
    *,
    gates: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """Computes `npu.lstm_step` in float32, or float64 for such operands."""
    import torch

    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    sums = torch.nn.functional.linear(x.to(wide), weight.to(wide))
    for other in (bias, addend):
        if other is not None:
            sums = sums + other.to(wide)
    parts = sums.chunk(GATES, -1)
    enter, forget, candidate, leave = (parts[g] for g in gates)
    new = forget.sigmoid() * cell.to(wide) + enter.sigmoid() * candidate.tanh()
    return (leave.sigmoid() * new.tanh()).to(x.dtype), new.to(x.dtype)


def infer_lstm_step(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    addend: TensorType | None,
    cell: TensorType,
    /,
    *,
    gates: tuple[int, ...],
) -> tuple[TensorType, TensorType]:
    """Returns the types of `npu.lstm_step`; ShapeError when the operands do not fit."""
    attrs = {**NO_EPILOGUE, "residual": int(addend is not None)}
    sums = infer_linear(x, weight, bias, addend, **attrs)
    units = sums.shape[-1] // GATES
    if sums.shape[-1] % GATES or cell != TensorType(x.dtype, (*x.shape[:-1], units)):
        raise ShapeError(f"{LSTM_STEP}: the sums are {sums}, but the cell {cell}.")
    if sorted(gates) != list(range(GATES)):
        raise ShapeError(f"{LSTM_STEP}: gates are {gates}; expected each of 0 to 3 once.")
    return cell, cell


def _supported(node: Node, graph: object) -> str | None:
    types = getattr(graph, "types")  # noqa: B009
    wrong = next((t for i in node.inputs if i and (t := types[i].dtype) not in _DTYPES), None)
    return None if wrong is None else f"dtype {wrong}; supported are {', '.join(_DTYPES)}"


def _case(m: tuple[int, ...], units: int, k: int, label: str, **change: object) -> Case:
    bias = None if change.get("bare") else (GATES * units,)
    addend = None if change.get("bare") else (*m, GATES * units)
    operands = ((*m, k), (GATES * units, k), bias, addend, (*m, units))
    return Case(operands, {"gates": change.get("gates", (0, 1, 2, 3))}, label)


register(
    OpDef(
        LSTM_STEP,
        lower=_lower,
        supports=_supported,
        reference=reference_lstm_step,
        infer=infer_lstm_step,
        cases=(
            _case((1, 1), 32, 32, "one_row"),
            _case((1, 8), 24, 128, "rows"),
            _case((3,), 20, 640, "long", gates=(0, 2, 3, 1)),
            _case((5,), 7, 13, "odd", bare=True),
            _case((40,), 16, 24, "many_rows"),
        ),
        tolerance=8,
    )
)

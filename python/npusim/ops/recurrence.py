"""`npu.recurrence`: all steps of a recurrence whose sums of what comes from outside are there.

Of sums[T, …, gates·units], a weight [gates·units, units], bias[gates·units]?, the rows before the
first step […, units] and, of an LSTM, its cell before it, in the order of `npu.recurrent_step`,
which each step is (ops/recurrent_step.py): step t reads sums[t], or sums[T - 1 - t] where
`reverse`, and leaves its rows there in the result [T, …, units]; an LSTM leaves its last cell, too.
States between steps are rounded to their dtype.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from npusim.abi.scalar import OPCODES
from npusim.errors import ShapeError, TargetConstraintError
from npusim.ir.graph import Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View
from npusim.ops.recurrent_step import (
    CELLS,
    DTYPES,
    GATES,
    Operands,
    emit_step,
    infer_recurrent_step,
    reference_recurrent_step,
    wrong_dtype,
)

if TYPE_CHECKING:
    from torch import Tensor

    from npusim.targets.target_config import TargetConfig

RECURRENCE = "npu.recurrence"


def is_recurrence(target: TargetConfig, cell: str, dtype: str, units: int) -> bool:
    """Tells whether a kernel of the target computes such a recurrence.

    Device code holds the weight on the chip, the CPU's kernel reads it once a step.
    """
    known = target.has("recurrence") and cell in GATES and dtype in DTYPES and units > 0
    return known and (not target.arch or units <= _held_units(target, dtype))


def joins_steps(target: TargetConfig, cell: str, dtype: str, units: int) -> bool:
    """Tells whether steps of a known number become one command, as where each is a launch.

    On the CPU they stay products, which several threads share.
    """
    return bool(target.arch) and is_recurrence(target, cell, dtype, units)


def _held_units(target: TargetConfig, dtype: str) -> int:
    """Returns the most units whose weight device code holds on the chip."""
    measured = target.recurrent
    return measured.held_units if dtype != "float32" else measured.held_floats


def _lower(node: Node, low: Lowering) -> None:
    sums, weight, bias, hidden, state = low.inputs(node)
    assert sums is not None and weight is not None and hidden is not None
    cell, units = str(node.attrs["cell"]), sums.shape[-1] // GATES[str(node.attrs["cell"])]
    if node.outputs[0].type.numel == 0:
        for value in node.outputs:
            low.result(value)
        return
    operands = (hidden, weight, bias, sums, state)
    if is_recurrence(low.target, cell, sums.dtype, units):
        _emit(low, node, operands)
    elif is_symbolic(sums.shape[0]):
        raise TargetConstraintError(
            f"calls choose the length of this recurrence, of {units} units; "
            + (
                f"one kernel computes all steps of up to {_held_units(low.target, sums.dtype)} only"
                if low.target.has("recurrence")
                else "no kernel of the target computes all steps"
            )
        )
    else:
        _emit_steps(low, node, operands)


def _emit(low: Lowering, node: Node, operands: Operands) -> None:
    hidden, weight, bias, sums, state = operands
    assert sums is not None
    if _steps_of_rows(sums) is None:
        sums = low.dense(sums)
    if weight.strides[1] != 1:
        weight = low.dense(weight)
    if bias is not None:
        bias = low.dense(low.cast(bias, "float32"))
    hidden = low.dense(hidden)
    state = None if state is None else low.dense(state)
    result, *kept = node.outputs
    y = low.room(result, result.type.with_order(low.order_of(result)))
    into = y if _steps_of_rows(y) is not None else low.temp(replace(result.type, order=None))
    steps, rows, given = (*sums.shape[:1], prod(sums.shape[1:-1]), _steps_of_rows(sums))
    left = _steps_of_rows(into)
    assert given is not None and left is not None
    gates = node.attrs["gates"]
    assert isinstance(gates, tuple)
    cells = [low.result(value) for value in kept]
    params: dict[str, Param] = {
        "steps": steps,
        "m": rows,
        "units": into.shape[-1],
        "ldw": weight.strides[0],
        "sums_step": given[0],
        "sums_row": given[1],
        "y_step": left[0],
        "y_row": left[1],
        "gates": tuple(int(str(g)) for g in gates),
        "cell": CELLS.index(str(node.attrs["cell"])),
        "act": OPCODES[str(node.attrs["act"])][0],
        "reverse": int(bool(node.attrs["reverse"])),
        "has_bias": int(bias is not None),
        **codes(dtype=sums.dtype),
    }
    read = [v for v in (sums, weight, bias, hidden, state) if v is not None]
    low.emit("recurrence", params, read, [into, *cells])
    if into is not y:
        low.copy(into, y)


def _steps_of_rows(x: View) -> tuple[int, int] | None:
    """Returns how far apart steps lie, and rows of a step, if all do by as much; else None."""
    lead = replace(x, shape=x.shape[1:-1], strides=x.strides[1:-1]).reshape((prod(x.shape[1:-1]),))
    if lead is None or (x.shape[-1] != 1 and x.strides[-1] != 1):
        return None
    return x.strides[0], lead.strides[0]


def _emit_steps(low: Lowering, node: Node, operands: Operands) -> None:
    """One step after the other, for a target that has no such kernel."""
    hidden, weight, bias, sums, state = operands
    assert sums is not None
    result, *kept = node.outputs
    y, order = low.result(result), range(sums.shape[0])
    last = hidden if node.attrs["cell"] == "gru" else state
    for place in reversed(order) if node.attrs["reverse"] else order:
        rows = y.select(0, place)
        cells = [low.temp(value.type) for value in kept]
        given = (hidden, weight, bias, sums.select(0, place), last)
        emit_step(low, node, given, [rows, *cells])
        hidden, last = rows, cells[0] if kept else rows if node.attrs["cell"] == "gru" else None
    for value in kept:
        assert last is not None
        low.define(value, last)


def reference_recurrence(
    sums: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    hidden: Tensor,
    state: Tensor | None,
    /,
    *,
    cell: str,
    gates: tuple[int, ...],
    act: str = "tanh",
    reverse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes `npu.recurrence` step by step."""
    import torch

    found, order = {}, range(sums.shape[0])
    last = hidden if cell == "gru" else state
    for place in reversed(order) if reverse else order:
        step = reference_recurrent_step(
            hidden, weight, bias, sums[place], last, cell=cell, gates=gates, act=act
        )
        hidden, last = step if isinstance(step, tuple) else (step, step if cell == "gru" else None)
        found[place] = hidden
    y = torch.stack([found[place] for place in order])
    return (y, last) if cell == "lstm" and last is not None else y


def infer_recurrence(
    sums: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    hidden: TensorType,
    state: TensorType | None,
    /,
    *,
    cell: str,
    gates: tuple[int, ...],
    act: str = "tanh",
    reverse: bool = False,
) -> TensorType | tuple[TensorType, TensorType]:
    """Returns the types of `npu.recurrence`; ShapeError when the operands do not fit."""
    if sums.rank < 2 or sums.shape[1:-1] != hidden.shape[:-1] or sums.shape[0] == 0:
        raise ShapeError(
            f"{RECURRENCE}: sums {sums} are not of steps of the rows of {hidden}.",
            hint="Sums have the steps first, at least one, and then the dimensions of the rows.",
        )
    added = TensorType(sums.dtype, sums.shape[1:])
    if (state is not None) != (cell == "lstm"):
        raise ShapeError(f"{RECURRENCE}: {cell} with the cell {state}; only an LSTM has one.")
    last = hidden if cell == "gru" else state
    step = infer_recurrent_step(hidden, weight, bias, added, last, cell=cell, gates=gates, act=act)
    rows = step[0] if isinstance(step, tuple) else step
    if rows != hidden:
        raise ShapeError(f"{RECURRENCE}: a step makes {rows} of {hidden}; expected the same type.")
    y = TensorType(rows.dtype, (sums.shape[0], *rows.shape))
    return (y, rows) if cell == "lstm" else y


def _case(
    cell: str, steps: int, m: tuple[int, ...], units: int, label: str, **change: object
) -> Case:
    gates = GATES[cell]
    bias = None if change.get("bare") else (gates * units,)
    state = (*m, units) if cell == "lstm" else None
    attrs = {"cell": cell, "gates": change.get("gates", tuple(range(gates)))}
    attrs |= {"act": change.get("act", "tanh"), "reverse": bool(change.get("reverse"))}
    sums = (steps, *m, gates * units)
    return Case((sums, (gates * units, units), bias, (*m, units), state), attrs, f"{cell}_{label}")


register(
    OpDef(
        RECURRENCE,
        lower=_lower,
        supports=wrong_dtype,
        reference=reference_recurrence,
        infer=infer_recurrence,
        cases=(
            _case("lstm", 5, (1,), 32, "one_row"),
            _case("lstm", 3, (2, 9), 40, "rows", gates=(0, 2, 3, 1), reverse=True),
            _case("lstm", 2, (3,), 13, "odd", bare=True),
            _case("lstm", 1, (4,), 96, "one_step"),
            _case("gru", 4, (5,), 24, "rows", gates=(1, 0, 2)),
            _case("gru", 3, (17,), 100, "wide", reverse=True),
            _case("plain", 4, (3,), 24, "rows", act="relu", reverse=True),
            _case("plain", 3, (9,), 7, "odd", bare=True),
        ),
        tolerance=8,
    )
)

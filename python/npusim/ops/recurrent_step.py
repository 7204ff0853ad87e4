"""`npu.recurrent_step`: one step of a recurrence, its product and its gates in one command.

Of x[…, k], weight[gates·units, k], bias[gates·units]?, addend[…, gates·units]? and the last state,
[…, units], with the parts of s = x·Wᵀ + bias whose places `gates` names, and of a, the addend:

* `plain` (Elman, 1990), of one part and no state: y = act(s + a), tanh or relu.
* `gru` (Cho et al., 2014; the reset after the product, as PyTorch has it), of reset, update and
  candidate, whose state is h: n = tanh(a_n + sigmoid(s_r + a_r) * s_n),
  y = (h - n) * sigmoid(s_z + a_z) + n.
* `lstm` (Hochreiter and Schmidhuber, 1997, with Gers' forget gate), of input, forget, cell and
  output, whose state is c, with s + a for s: c' = sigmoid(s_f) * c + sigmoid(s_i) * tanh(s_g),
  y = sigmoid(s_o) * tanh(c'). Results are y and c'.

Sums and gates are not rounded in between. A target without such a kernel gets the product and the
formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from npusim.abi.scalar import OPCODES, ScalarOp, ScalarProgram
from npusim.errors import ShapeError
from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.pointwise_kernel import emit_program
from npusim.lowering.view import View
from npusim.ops.fused import NO_EPILOGUE, infer_linear
from npusim.ops.linear import emit_linear, rows, stored_as_rows

if TYPE_CHECKING:
    from torch import Tensor

    from npusim.targets.measured import Recurrent

RECURRENT_STEP = "npu.recurrent_step"
GATES: Mapping[str, int] = {"plain": 1, "gru": 3, "lstm": 4}  # parts of a product, by cell
ACTIVATIONS = ("tanh", "relu")  # of plain recurrences
CELLS = tuple(GATES)  # in the order of their numbers in the kernel's parameters
DTYPES = ("float32", "float16", "bfloat16")
Operands = tuple[View, View, View | None, View | None, View | None]


def is_step(measured: Recurrent, cell: str, m: int, units: int, k: int) -> bool:
    """Tells whether `recurrent_step` computes so many rows faster than a product and formulas.

    It multiplies outside of the tensor cores, and reads W once for every few rows.
    """
    products = GATES[cell] * m * units * k
    most = measured.plain_products if cell == "plain" else measured.gated_products
    return products > 0 and (m <= measured.block_rows or (m <= measured.rows and products <= most))


def _lower(node: Node, low: Lowering) -> None:
    x, weight, bias, addend, state = low.inputs(node)
    assert x is not None and weight is not None
    hidden, *kept = node.outputs
    y = low.room(hidden, hidden.type)
    results = [y, *(low.result(value) for value in kept)]
    if y.numel:
        emit_step(low, node, (x, weight, bias, addend, state), results)


def emit_step(low: Lowering, node: Node, operands: Operands, results: list[View]) -> None:
    """Emits one step of the node's cell: a command where it is one, else a product and formulas."""
    x, weight, bias, addend, state = operands
    if not stored_as_rows(weight):
        weight = low.dense(weight)
    if bias is not None:
        bias = low.dense(low.cast(bias, "float32"))
    if addend is not None:
        addend = rows(low, addend)[0]
    operands = (x, weight, bias, addend, state)
    cell, y = str(node.attrs["cell"]), results[0]
    small = is_step(low.target.recurrent, cell, prod(x.shape[:-1]), y.shape[-1], x.shape[-1])
    apart = all(_rows_apart(result) is not None for result in results)
    if low.target.has("recurrent_step") and small and apart:
        _emit_step(low, node, operands, results)
    else:
        _emit_apart(low, node, operands, results)


def _rows_apart(y: View) -> int | None:
    """Returns how far apart the rows of a result lie, if all by as much."""
    lead = replace(y, shape=y.shape[:-1], strides=y.strides[:-1]).reshape((prod(y.shape[:-1]),))
    contiguous = y.shape[-1] == 1 or y.strides[-1] == 1
    return lead.strides[0] if lead is not None and contiguous else None


def _places(node: Node) -> tuple[int, ...]:
    gates = node.attrs["gates"]
    assert isinstance(gates, tuple)
    return tuple(int(str(g)) for g in gates)


def _emit_step(low: Lowering, node: Node, operands: Operands, results: list[View]) -> None:
    x, weight, bias, addend, state = operands
    x, m, ldx = rows(low, x)
    lds = lda = 0
    if state is not None:
        state, _, lds = rows(low, state)
    if addend is not None:
        lda = rows(low, addend)[2]
    apart = [_rows_apart(y) or 0 for y in results]
    params: dict[str, Param] = {
        "m": m,
        "units": results[0].shape[-1],
        "k": x.shape[-1],
        "ldx": ldx,
        "ldw": weight.strides[0],
        "lda": lda,
        "lds": lds,
        "ldy": apart[0],
        "ld_new": apart[-1],
        "gates": _places(node),
        "cell": CELLS.index(str(node.attrs["cell"])),
        "act": OPCODES[str(node.attrs["act"])][0],
        "has_bias": int(bias is not None),
        "has_addend": int(addend is not None),
        **codes(dtype=x.dtype),
    }
    given = [v for v in (x, weight, bias, addend, state) if v is not None]
    low.emit("recurrent_step", params, given, results)


def _emit_apart(low: Lowering, node: Node, operands: Operands, results: list[View]) -> None:
    x, weight, bias, addend, state = operands
    cell, units, y = str(node.attrs["cell"]), results[0].shape[-1], results[0]
    gates = _places(node)
    within = addend if cell != "gru" else None  # what a GRU's candidate adds comes after its reset
    sums = low.temp(TensorType(x.dtype, (*x.shape[:-1], GATES[cell] * units)))
    extra = {**_NOTHING, "has_bias": int(bias is not None), "residual": int(within is not None)}
    emit_linear(
        low, x, [weight], sums, (extra, [v for v in (bias, within) if v is not None]), within
    )
    parts = [sums.slice(sums.rank - 1, g * units, units) for g in gates]
    if cell == "plain":
        act = ScalarOp(str(node.attrs["act"]), (0,), "f")
        emit_program(low, ScalarProgram(("f",), (act,)), parts, y)
        return
    assert state is not None
    if cell == "gru":
        assert addend is not None
        added = [addend.slice(addend.rank - 1, g * units, units) for g in gates]
        added = [v.reshape(y.shape) or low.dense(v) for v in added]
        emit_program(low, _GRU, [*parts, *added, state], y)
        return
    emit_program(low, _CELL, [*parts[:3], state], results[1])
    emit_program(low, _HIDDEN, [parts[3], results[1]], y)


_NOTHING: dict[str, Param] = {"act": 0, "act_lo": 0.0, "act_hi": 0.0}
_GRU = ScalarProgram(
    ("f",) * 7,
    (
        ScalarOp("add", (0, 3), "f"),
        ScalarOp("sigmoid", (7,), "f"),
        ScalarOp("mul", (8, 2), "f"),
        ScalarOp("add", (5, 9), "f"),
        ScalarOp("tanh", (10,), "f"),
        ScalarOp("add", (1, 4), "f"),
        ScalarOp("sigmoid", (12,), "f"),
        ScalarOp("sub", (6, 11), "f"),
        ScalarOp("mul", (14, 13), "f"),
        ScalarOp("add", (15, 11), "f"),
    ),
)
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


def reference_recurrent_step(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    addend: Tensor | None,
    state: Tensor | None,
    /,
    *,
    cell: str,
    gates: tuple[int, ...],
    act: str = "tanh",
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes `npu.recurrent_step` in float32, or float64 for such operands."""
    import torch

    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    sums = torch.nn.functional.linear(x.to(wide), weight.to(wide))
    if bias is not None:
        sums = sums + bias.to(wide)
    added = torch.zeros_like(sums) if addend is None else addend.to(wide).reshape(sums.shape)
    parts, more = (t.chunk(GATES[cell], -1) for t in (sums, added))
    if cell == "plain" or state is None:
        return getattr(torch, act)(sums + added).to(x.dtype)  # type: ignore[no-any-return]
    if cell == "gru":
        reset, update, candidate = gates
        opened = (parts[reset] + more[reset]).sigmoid()
        new = (more[candidate] + opened * parts[candidate]).tanh()
        kept = (parts[update] + more[update]).sigmoid()
        return ((state.to(wide) - new) * kept + new).to(x.dtype)
    enter, forget, candidate, leave = (parts[g] + more[g] for g in gates)
    cell_now = forget.sigmoid() * state.to(wide) + enter.sigmoid() * candidate.tanh()
    return (leave.sigmoid() * cell_now.tanh()).to(x.dtype), cell_now.to(x.dtype)


def infer_recurrent_step(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    addend: TensorType | None,
    state: TensorType | None,
    /,
    *,
    cell: str,
    gates: tuple[int, ...],
    act: str = "tanh",
) -> TensorType | tuple[TensorType, TensorType]:
    """Returns the types of `npu.recurrent_step`; ShapeError when the operands do not fit."""
    parts = GATES.get(cell)
    if parts is None or act not in ACTIVATIONS:
        raise ShapeError(f"{RECURRENT_STEP}: unknown cell {cell!r} or activation {act!r}.")
    attrs = {**NO_EPILOGUE, "residual": int(addend is not None)}
    sums = infer_linear(x, weight, bias, addend, **attrs)
    hidden = TensorType(x.dtype, (*x.shape[:-1], sums.shape[-1] // parts))
    fits = state is None if cell == "plain" else state == hidden
    if sums.shape[-1] % parts or not fits or (cell == "gru" and addend is None):
        raise ShapeError(
            f"{RECURRENT_STEP}: the sums of {cell} are {sums}, the addend is {addend} and the "
            f"state {state}."
        )
    if sorted(gates) != list(range(parts)):
        known = f"expected each of 0 to {parts - 1} once"
        raise ShapeError(f"{RECURRENT_STEP}: gates of {cell} are {gates}; {known}.")
    return (hidden, hidden) if cell == "lstm" else hidden


def wrong_dtype(node: Node, graph: Graph) -> str | None:
    """Returns what is said of an operand of a dtype that no recurrence has; None without one."""
    dtypes = (graph.types[i].dtype for i in node.inputs if i)
    wrong = next((dtype for dtype in dtypes if dtype not in DTYPES), None)
    return None if wrong is None else f"dtype {wrong}; supported are {', '.join(DTYPES)}"


def _case(cell: str, m: tuple[int, ...], units: int, k: int, label: str, **change: object) -> Case:
    gates = GATES[cell]
    bias = None if change.get("bare") else (gates * units,)
    addend = None if change.get("bare") and cell != "gru" else (*m, gates * units)
    state = None if cell == "plain" else (*m, units)
    attrs = {"cell": cell, "gates": change.get("gates", tuple(range(gates)))}
    attrs["act"] = change.get("act", "tanh")
    return Case(((*m, k), (gates * units, k), bias, addend, state), attrs, f"{cell}_{label}")


register(
    OpDef(
        RECURRENT_STEP,
        lower=_lower,
        supports=wrong_dtype,
        reference=reference_recurrent_step,
        infer=infer_recurrent_step,
        cases=(
            _case("lstm", (1, 1), 32, 32, "one_row"),
            _case("lstm", (1, 8), 24, 128, "rows"),
            _case("lstm", (3,), 20, 640, "long", gates=(0, 2, 3, 1)),
            _case("lstm", (5,), 7, 13, "odd", bare=True),
            _case("lstm", (200,), 16, 24, "many_rows"),
            _case("gru", (1, 1), 32, 32, "one_row"),
            _case("gru", (3, 7), 24, 128, "rows", gates=(1, 0, 2)),
            _case("gru", (5,), 7, 13, "odd", bare=True),
            _case("gru", (200,), 16, 24, "many_rows"),
            _case("plain", (1, 1), 32, 32, "one_row"),
            _case("plain", (1, 8), 24, 128, "rows", act="relu"),
            _case("plain", (5,), 7, 13, "odd", bare=True),
            _case("plain", (200,), 16, 24, "many_rows"),
        ),
        tolerance=8,
    )
)

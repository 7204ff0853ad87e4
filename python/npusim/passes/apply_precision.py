"""Multiplies and stores in 16 bits what bears it, as the target's `precision` says.

What does is decided by `analysis/narrow_values.py`. Weights are converted once, at load, after
what was folded into them in float32; sums are of float32 everywhere. Inputs, outputs and states
keep their dtypes. Each value is converted at most once, however many read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npusim.abi.precision import FLOAT16_MAX, Precision
from npusim.abi.scalar import ScalarOp, ScalarProgram
from npusim.analysis.narrow_values import (
    MATMULS,
    MEAN,
    MULTIPLIED,
    WEIGHTED,
    NarrowValues,
    Storing,
    formula,
)
from npusim.errors import TargetConstraintError
from npusim.ir.graph import Attr, Graph, Node, Value
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ops.widening_matmul import WIDENING_MATMUL
from npusim.targets.target_config import TargetConfig

_CAST = "aten._to_copy.default"
_EPSILON = 2.0**-23  # of norms of float32 that name none
_BOUNDED = {"sigmoid": 1.0, "tanh": 1.0, "hardsigmoid": 1.0, "erf": 1.0}


def apply_precision(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph in the target's precision.

    Raises:
        TargetConstraintError: there is no such precision, or the model's products are of 16 bits
            already, and of others than are wanted.
    """
    precision = Precision.parse(target.precision)
    if precision is None:
        return graph
    storing = Storing(target.has("widening_matmul"), target.carries_float32)
    values = NarrowValues(graph, precision, storing)
    if not values.products:
        _refuse_others(graph, precision, target.precision)
        return graph
    narrowing = _Narrowing(graph, precision, values, storing)
    return rewrite(graph, narrowing.visit)


def _refuse_others(graph: Graph, precision: Precision, name: str) -> None:
    found = {n.type.dtype for n in graph.nodes if n.op in MULTIPLIED and len(n.outputs) == 1}
    others = found & {"float16", "bfloat16"} - {precision.dtype}
    if others:
        raise TargetConstraintError(
            f"precision={name!r} converts products of float32, but the model's are of "
            f"{' and '.join(sorted(others))} already.",
            hint="Compile it without a precision, or convert the model to float32 first.",
        )


class _Narrowing:
    """One graph being rewritten."""

    def __init__(
        self, graph: Graph, precision: Precision, values: NarrowValues, storing: Storing
    ) -> None:
        self._graph = graph
        self._precision = precision
        self._values = values
        self._norms_convert = storing.carries and not precision.saturates
        self._casts: dict[tuple[str, str], str] = {}

    def visit(self, node: Node, rewriter: Rewriter) -> Answer:
        if all(i is None or i in rewriter.static for i in node.inputs):
            return None
        if node.name in self._values.products:
            return self._product(node, rewriter)
        narrow = [
            rewriter.types[i].dtype == self._precision.dtype
            and self._graph.types.get(i, rewriter.types[i]).dtype == "float32"
            for i in node.inputs
            if i is not None
        ]
        of_floats = bool(node.outputs) and all(v.type.dtype == "float32" for v in node.outputs)
        if of_floats and node.op == MEAN:
            return self._mean(node, any(narrow))
        if node.op in _ROW_NORMS and self._norms_convert:
            return self._norm(node, rewriter)
        if of_floats and (program := formula(node, self._graph)) is not None:
            return self._formula(node, program, any(narrow), rewriter)
        if not any(narrow):
            return None
        stored = all(v.name in self._values.stored for v in node.outputs)
        dtype = self._precision.dtype if stored and of_floats else "float32"
        inputs = [
            self._cast(i, dtype, node, rewriter) if self._follows(node, n, i, rewriter) else i
            for n, i in enumerate(node.inputs)
        ]
        return replace(node, inputs=tuple(inputs), outputs=_typed(node.outputs, dtype, of_floats))

    def _follows(self, node: Node, position: int, value: str | None, rewriter: Rewriter) -> bool:
        """Tells whether an operand has the dtype of the others: not the vectors of a norm."""
        if value is None or rewriter.types[value].dtype not in ("float32", self._precision.dtype):
            return False
        return position == 0 or node.op not in _WITH_VECTORS

    def _product(self, node: Node, rewriter: Rewriter) -> Answer:
        count, dtype = MULTIPLIED[node.op], self._precision.dtype
        stored = self._is_stored(node)
        if not stored and self._values.widens(node):
            inputs = [self._cast(i, dtype, node, rewriter) for i in node.inputs]
            return replace(become(node, WIDENING_MATMUL, inputs, {}), outputs=node.outputs)
        if node.op not in WEIGHTED and not stored:  # their results would be rounded
            inputs = [self._cast(i, "float32", node, rewriter) for i in node.inputs]
            return replace(node, inputs=tuple(inputs)) if tuple(inputs) != node.inputs else None
        inputs = [
            self._cast(i, dtype, node, rewriter) if n < count else i
            for n, i in enumerate(node.inputs)
        ]
        attrs: dict[str, Attr] = dict(node.attrs)
        if not stored:
            attrs["dtype"] = "float32"
        elif self._precision.saturates and node.op in WEIGHTED:
            attrs |= _saturating(attrs)
        outputs = _typed(node.outputs, dtype if stored else "float32", True)
        return replace(node, inputs=tuple(inputs), outputs=outputs, attrs=attrs)

    def _is_stored(self, node: Node) -> bool:
        """Tells whether a product's result is stored in 16 bits by the product itself."""
        if node.output.name not in self._values.stored:
            return False
        if not self._precision.saturates or node.op not in (*WEIGHTED, *MATMULS):
            return True
        if node.op not in WEIGHTED or node.op == "npu.gated_linear":
            return False
        after = node.attrs["residual"] == 2
        return not after and node.attrs["act"] in ("copy", "relu", "clamp", *_BOUNDED)

    def _mean(self, node: Node, narrow: bool) -> Answer:
        stored = self._precision.stores and node.output.name in self._values.stored
        dtype = self._precision.dtype if stored else "float32"
        if not narrow and not stored:
            return None
        attrs = {**node.attrs, "dtype": dtype}
        return replace(node, attrs=attrs, outputs=_typed(node.outputs, dtype, True))

    def _norm(self, node: Node, rewriter: Rewriter) -> Answer:
        """A norm of rows reads and stores either dtype."""
        x = node.inputs[0]
        assert x is not None
        before = rewriter.types[x].dtype
        stored = node.output.name in self._values.stored
        dtype = self._precision.dtype if stored else "float32"
        eps = node.attrs.get("eps")
        eps = _EPSILON if eps is None else eps
        if dtype == before:
            attrs: dict[str, Attr] = {**node.attrs, "eps": eps}
            return replace(node, attrs=attrs, outputs=_typed(node.outputs, dtype, True))
        shape = node.attrs["normalized_shape"]
        attrs = {"kind": _ROW_NORMS[node.op], "normalized_shape": shape, "eps": eps, "dtype": dtype}
        fused = become(node, "npu.row_norm", node.inputs, attrs)
        return replace(fused, outputs=_typed(node.outputs, dtype, True))

    def _formula(
        self, node: Node, program: ScalarProgram, narrow: bool, rewriter: Rewriter
    ) -> Answer:
        stored = node.output.name in self._values.stored
        if not stored and not narrow:
            return None
        if stored and self._precision.saturates:
            program = _saturated(program)
        dtype = self._precision.dtype if stored else "float32"
        attrs: dict[str, Attr] = {"program": program.to_attr(), "dtype": dtype}
        fused = become(node, "npu.pointwise", node.inputs, attrs)
        return replace(fused, outputs=_typed(node.outputs, dtype, True))

    def _cast(self, value: str | None, dtype: str, node: Node, rewriter: Rewriter) -> str | None:
        """Returns a float value in a dtype, converted where it is first needed."""
        if value is None or rewriter.types[value].dtype in (dtype, "bool"):
            return value
        if (value, dtype) not in self._casts:
            self._casts[value, dtype] = self._converted(value, dtype, node, rewriter)
        return self._casts[value, dtype]

    def _converted(self, value: str, dtype: str, node: Node, rewriter: Rewriter) -> str:
        wanted = replace(rewriter.types[value], dtype=dtype)
        cat = rewriter.producer(value) if value in rewriter.static else None
        if cat is not None and cat.op == "aten.cat.default":  # parts are read where they lie
            parts: Sequence[str | None] = [self._cast(i, dtype, node, rewriter) for i in cat.inputs]
            return rewriter.emit(cat.op, parts, wanted, cat.attrs, like=node)
        name = f"{value}_{dtype}"
        if self._precision.saturates and dtype == self._precision.dtype:
            program = _saturated(ScalarProgram(("f",), (ScalarOp("copy", (0,), "f"),)))
            attrs: dict[str, Attr] = {"program": program.to_attr(), "dtype": dtype}
            return rewriter.emit("npu.pointwise", (value,), wanted, attrs, like=node, name=name)
        return rewriter.emit(_CAST, (value,), wanted, {"dtype": dtype}, like=node, name=name)


_WITH_VECTORS = frozenset(
    (
        *(f"aten.{n}.default" for n in ("layer_norm", "rms_norm", "group_norm", "instance_norm")),
        "npu.group_norm",
    )
)
_ROW_NORMS = {"aten.layer_norm.default": "layer", "aten.rms_norm.default": "rms"}


def _typed(outputs: tuple[Value, ...], dtype: str, change: bool) -> tuple[Value, ...]:
    if not change:
        return outputs
    return tuple(replace(v, type=replace(v.type, dtype=dtype)) for v in outputs)


def _saturated(program: ScalarProgram) -> ScalarProgram:
    """Returns a formula with its result bounded to what float16 holds; NaN stays."""
    bounds = (("const", -FLOAT16_MAX), ("const", FLOAT16_MAX))
    last = len(program.inputs) + len(program.body) - 1
    return replace(program, body=(*program.body, ScalarOp("clamp", (last, *bounds), "f")))


def _saturating(attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Returns what an epilogue's activation becomes where its result is stored as float16."""
    act = attrs["act"]
    if act in _BOUNDED:
        return {}
    low, high = attrs["act_lo"], attrs["act_hi"]
    assert isinstance(low, (int, float)) and isinstance(high, (int, float))
    if act != "clamp":
        low, high = (0.0 if act == "relu" else -FLOAT16_MAX), FLOAT16_MAX
    low, high = (min(max(x, -FLOAT16_MAX), FLOAT16_MAX) for x in (low, high))
    return {"act": "clamp", "act_lo": float(low), "act_hi": float(high)}

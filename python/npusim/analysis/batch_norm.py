"""What the passes about batch norms share: which nodes they are, and values in another dtype."""

from __future__ import annotations

from npusim.ir.graph import Attr, Node
from npusim.ir.rewriter import Rewriter
from npusim.ir.types import TensorType

BATCH_NORMS = (
    "aten.batch_norm.default",
    "aten._native_batch_norm_legit_no_training.default",
)
FLOATS_16_BIT = ("float16", "bfloat16")


def has_fixed_statistics(node: Node, rewriter: Rewriter) -> bool:
    """Tells whether statistics come from the checkpoint, in x's dtype, and nobody asks for them."""
    x, _, _, mean, var = node.inputs
    if node.attrs.get("training", False) or mean is None or var is None or x is None:
        return False
    if any(rewriter.uses(v.name) for v in node.outputs[1:]):
        return False
    operands = [i for i in node.inputs[1:] if i is not None]
    dtype = rewriter.types[x].dtype
    return all(i in rewriter.static and rewriter.types[i].dtype == dtype for i in operands)


def cast(value: str, dtype: str, like: Node, rewriter: Rewriter) -> str:
    """Returns a value in a dtype."""
    type = rewriter.types[value]
    if type.dtype == dtype:
        return value
    attrs: dict[str, Attr] = {"dtype": dtype}
    wanted = TensorType(dtype, type.shape)
    return rewriter.emit("aten._to_copy.default", (value,), wanted, attrs, like=like)

"""What is known while importing is computed while importing: by ONNX's own reference, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto, TypeProto, helper
from onnx.reference import ReferenceEvaluator

from npusim.errors import ExportError, first_line
from npusim.frontends.onnx.kinds import Array


class BeyondReference(ExportError):
    """ONNX's reference cannot compute a node."""


# Integers are shapes, positions, masks: folded whatever they are. Floats only as single settings:
# what is made of weights is the program's to compute, at load.
MAX_INTEGERS = 1 << 16
MAX_FLOATS = 64

# The shapes of their results are values, or everything they give follows from settings: nothing
# but values can tell what they give.
NEEDS_VALUES = frozenset(
    (
        *("NonZero", "Unique", "Compress", "NonMaxSuppression"),
        *("TfIdfVectorizer", "ImageDecoder", "MelWeightMatrix"),
    )
)


def is_foldable(arrays: Sequence[Array | None]) -> bool:
    """Tells whether a node over these operands, all known, is computed while importing."""
    for array in arrays:
        if array is None:
            continue
        limit = MAX_INTEGERS if array.dtype.kind in "iub" else MAX_FLOATS
        if array.size > limit:
            return False
    return True


def evaluate(
    node: NodeProto, arrays: Sequence[Array | None], opsets: Mapping[str, int]
) -> list[Array]:
    """Returns a node's results.

    Raises:
        BeyondReference: it cannot compute them.
        ExportError: nothing can.
    """
    if node.op_type == "GatherElements" and not node.domain:
        return [_gathered(node, *arrays)]
    names = [name for name, array in zip(node.input, arrays, strict=True) if array is not None]
    feeds = dict(zip(node.input, arrays, strict=True))
    outputs = [name for name in node.output if name]
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_value_info(name, TypeProto()) for name in dict.fromkeys(names)],
        [helper.make_value_info(name, TypeProto()) for name in outputs],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports)
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(model).run(None, {n: feeds[n] for n in names})
    except Exception as error:  # ONNX's reference raises whatever NumPy raises
        raise BeyondReference(
            f"{node.op_type} of known values cannot be computed: {first_line(error)}"
        ) from None
    return [np.asarray(result) for result in results]


def _gathered(node: NodeProto, data: Array | None, index: Array | None) -> Array:
    """Returns elements along an axis, of which the reference only chooses among 32.

    Raises:
        ExportError: an element is outside, or the shapes do not fit.
    """
    if data is None or index is None or data.ndim != index.ndim or not data.ndim:
        raise ExportError("GatherElements takes two tensors of as many dimensions.")
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0) % data.ndim
    fits = (d == axis or n <= data.shape[d] for d, n in enumerate(index.shape))
    if not all(fits):
        raise ExportError(
            f"it gathers {list(index.shape)} elements of {list(data.shape)}; only along its axis "
            "there may be more."
        )
    within = tuple(slice(None if d == axis else n) for d, n in enumerate(index.shape))
    try:
        taken: Array = np.take_along_axis(data[within], index, axis)
    except (IndexError, ValueError) as error:
        raise ExportError(first_line(error)) from None
    return taken

"""promote_operands: 0-d operands in the dtype that PyTorch takes them in."""

import pytest

from npusim.passes.promote_operands import promote_operands


def converted(draft, cpu, op, *types, **attrs):
    """Returns the dtypes of the operands that the op reads after the pass."""
    operands = [draft.x(*shape, dtype=dtype) for dtype, shape in types]
    graph = promote_operands(draft.graph(draft.call(op, *operands, **attrs)), cpu)
    return tuple(graph.types[i].dtype for i in graph.nodes[-1].inputs)


@pytest.mark.parametrize(
    ("op", "left", "right", "expected"),
    [
        ("aten.eq.Tensor", ("uint8", (3,)), ("int64", ()), ("uint8", "uint8")),
        ("aten.lt.Tensor", ("float64", ()), ("float32", (3,)), ("float32", "float32")),
        ("aten.logical_and.default", ("uint8", (3,)), ("int16", ()), ("uint8", "uint8")),
        ("aten.mul.Tensor", ("float16", (3,)), ("int64", ()), ("float16", "float32")),
        ("aten.div.Tensor", ("bfloat16", ()), ("int64", ()), ("float32",)),
        # What is held anyway, has dimensions, or is of a higher kind stays.
        ("aten.eq.Tensor", ("int64", (3,)), ("uint8", ()), ("int64", "uint8")),
        ("aten.eq.Tensor", ("uint8", (3,)), ("int64", (3,)), ("uint8", "int64")),
        ("aten.gt.Tensor", ("int32", (3,)), ("float64", ()), ("int32", "float64")),
        ("aten.mul.Tensor", ("int64", ()), ("float16", (3,)), ("int64", "float16")),
        ("aten.mul.Tensor", ("uint8", (3,)), ("int64", ()), ("uint8", "int64")),
    ],
)
def test_what_has_no_dimensions_is_converted(draft, cpu, op, left, right, expected):
    assert converted(draft, cpu, op, left, right) == expected

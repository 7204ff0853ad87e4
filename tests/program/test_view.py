"""Views against NumPy's own strided arrays: same elements, never a wrong alias."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.ir.types import row_major
from npusim.lowering.view import View, collapse

SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple)


def of(shape: tuple[int, ...]) -> View:
    return View(0, 0, "int32", shape, row_major(shape))


def elements(view: View, total: int) -> np.ndarray:
    """Returns the positions a view addresses, as an array of its shape."""
    base = np.arange(max(total, 1), dtype=np.int32)
    assert view.offset % 4 == 0
    return np.lib.stride_tricks.as_strided(
        base[view.offset // 4 :], view.shape, [4 * s for s in view.strides]
    )


@st.composite
def transformed(draw: st.DrawFn) -> tuple[View, np.ndarray, int]:
    """A view after a few random aliasing steps, and the same steps done by NumPy."""
    shape = draw(SHAPES)
    view, total = of(shape), prod(shape)
    array = np.arange(total, dtype=np.int32).reshape(shape)
    for _ in range(draw(st.integers(0, 3))):
        step = draw(st.sampled_from(("permute", "slice", "expand", "unsqueeze")))
        if step == "permute":
            dims = draw(st.permutations(range(view.rank)))
            view, array = view.permute(dims), array.transpose(dims)
        elif step == "slice" and view.rank and min(view.shape) > 0:
            dim = draw(st.integers(0, view.rank - 1))
            start = draw(st.integers(0, view.shape[dim] - 1))
            stride = draw(st.sampled_from((1, 2)))
            size = (view.shape[dim] - start + stride - 1) // stride
            index = [slice(None)] * view.rank
            index[dim] = slice(start, None, stride)
            view, array = view.slice(dim, start, size, stride), array[tuple(index)]
        elif step == "expand" and view.rank < 5:
            target = (draw(st.integers(1, 3)), *view.shape)
            view, array = view.expand(target), np.broadcast_to(array, target)
        elif step == "unsqueeze" and view.rank < 5:
            dim = draw(st.integers(0, view.rank))
            view, array = view.unsqueeze(dim), np.expand_dims(array, dim)
    return view, array, total


@given(transformed())
def test_aliases_address_what_numpy_addresses(case: tuple[View, np.ndarray, int]) -> None:
    view, array, total = case
    assert view.shape == array.shape
    np.testing.assert_array_equal(elements(view, total), array)


@settings(max_examples=300)
@given(transformed(), st.data())
def test_reshape_is_right_or_refused(
    case: tuple[View, np.ndarray, int], data: st.DataObject
) -> None:
    view, array, total = case
    factors: list[int] = []
    rest = view.numel
    while rest > 1:
        factor = data.draw(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0]))
        factors.append(factor)
        rest //= factor
    shape = tuple(factors) if view.numel else (0, 3)
    shaped = view.reshape(shape)
    if shaped is not None:
        np.testing.assert_array_equal(elements(shaped, total), array.reshape(shape))
    else:  # nor can NumPy without a copy
        strided = np.lib.stride_tricks.as_strided
        base = np.zeros(1, np.int32)
        alias = strided(base, view.shape, [4 * s for s in view.strides], writeable=False)
        with pytest.raises(AttributeError):
            alias.shape = shape


@given(transformed())
def test_collapse_visits_the_same_elements(case: tuple[View, np.ndarray, int]) -> None:
    view, _, total = case
    if not view.numel:
        return
    shape, (strides,) = collapse(view.shape, view.strides)
    flat = View(0, view.offset, "int32", tuple(shape), tuple(strides))
    assert sorted(elements(flat, total).ravel()) == sorted(elements(view, total).ravel())


def test_collapse_keeps_operands_in_step() -> None:
    """A transposed operand forbids merging; a dense pair collapses to one dimension."""
    assert collapse((2, 3, 4), (12, 4, 1), (12, 4, 1)) == ([24], [[1], [1]])
    assert collapse((3, 4), (4, 1), (1, 3)) == ([3, 4], [[4, 1], [1, 3]])
    assert collapse((1, 1), (0, 0)) == ([1], [[0]])


@pytest.mark.parametrize(
    ("strides", "dense"), [((12, 4, 1), True), ((12, 1, 3), True), ((24, 4, 1), False)]
)
def test_dense_means_no_holes(strides: tuple[int, ...], dense: bool) -> None:
    assert View(0, 0, "float32", (2, 3, 4), strides).is_dense is dense

"""Index algebra: what a loop reads behind movement, compared with NumPy's own movement."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

pytest.importorskip("tinygrad")

from npusim.frontends.tinygrad.index import Access, Linear, behind, loop
from npusim.frontends.tinygrad.known import evaluate
from npusim.frontends.tinygrad.terms import Leaf, Term, Terms


def _moved(terms: Terms, x: Term, choose: random.Random) -> Term:
    """Returns a term after a random movement."""
    shape, rank = x.shape, len(x.shape)
    dim = choose.randrange(rank)
    kind = choose.choice(("permute", "flip", "shrink", "pad", "expand", "split", "merge", "pool"))
    if kind == "permute":
        return terms.permute(x, choose.sample(range(rank), rank))
    if kind == "flip":
        return terms.flip(x, [dim])
    if kind == "shrink" and shape[dim] > 2:
        return terms.shrink(x, [(1, n) if d == dim else (0, n) for d, n in enumerate(shape)])
    if kind == "pad":
        return terms.pad(x, [(1, 2) if d == dim else (0, 0) for d in range(rank)])
    if kind == "expand":
        return terms.expand(terms.reshape(x, (1, *shape)), (2, *shape))
    if kind == "split" and shape[dim] % 2 == 0:
        return terms.reshape(x, (*shape[:dim], shape[dim] // 2, 2, *shape[dim + 1 :]))
    if kind == "merge" and dim + 1 < rank:
        return terms.reshape(x, (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :]))
    if kind == "pool" and dim == rank - 1 and shape[dim] > 2:
        return _windows(terms, x)
    return x


def _windows(terms: Terms, x: Term) -> Term:
    """Returns windows of two elements of the last dimension, as tinygrad makes them."""
    *lead, n = x.shape
    whole = [(0, m) for m in lead]
    x = terms.expand(terms.reshape(x, (*lead, 1, n)), (*lead, 3, n))
    x = terms.shrink(terms.reshape(x, (*lead, 3 * n)), [*whole, (0, 2 * (n + 1))])
    return terms.shrink(terms.reshape(x, (*lead, 2, n + 1)), [*whole, (0, 2), (0, n - 1)])


def _read(access: Access) -> np.ndarray:
    """Returns what the loop reads, element by element."""
    data = evaluate(access.term)
    result = np.zeros(access.sizes, np.int64)
    for place in itertools.product(*map(range, access.sizes)):
        inside = all(0 <= _value(g.index, place) < g.size for g in access.guards)
        if inside:
            result[place] = data[tuple(_value(i, place) for i in access.index)]
    return result


def _value(index: Linear, place: tuple[int, ...]) -> int:
    return index.constant + sum(factor * place[axis] for axis, factor in index.terms)


@pytest.mark.parametrize("seed", range(40))
def test_a_loop_behind_movement_reads_what_the_movement_shows(seed):
    choose, terms = random.Random(seed), Terms()
    data = np.arange(1, 25)
    term = terms.make("leaf", "int64", (24,), (), Leaf("constant", "x", data))
    term = terms.reshape(term, choose.choice([(2, 3, 4), (4, 6), (6, 4), (2, 12)]))
    for _ in range(choose.randint(2, 6)):
        moved = _moved(terms, term, choose)
        term = moved if moved.numel <= 800 else term
    wanted = evaluate(term)
    access: Access | None = loop(term, term.shape)
    while access is not None:
        np.testing.assert_array_equal(_read(access), wanted)
        access = behind(access)


def test_a_division_that_carries_is_not_carried_out():
    both = Linear(((0, 1), (1, 1)))
    assert both.divided(10, (5, 6)) == (Linear(), both)
    assert both.divided(10, (6, 6)) is None


def test_factors_are_divided():
    index = Linear(((0, 11), (1, 1)), 20)
    quotient, rest = index.divided(10, (3, 8))
    assert quotient == Linear(((0, 1),), 2)
    assert rest == Linear(((0, 1), (1, 1)))

"""Reshapes and permutations that follow one another, as one order of one set of factors.

Each extent of the value that a chain begins with is a product of factors, split as far as the
chain's reshapes ask for; what the chain ends with has the same factors in another order, some of
them joined. So a chain is at most a reshape that splits, a permutation, and a reshape that joins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npusim.analysis.shapes import PERMUTATIONS, RESHAPES, permutation
from npusim.ir.graph import Attr, Node
from npusim.ir.rewriter import Rewriter
from npusim.ir.symbolic import is_symbolic


@dataclass(eq=False, slots=True)
class Factor:
    """A factor of an extent. Factors are told apart by identity; their sizes may be equal."""

    size: int


@dataclass(frozen=True, slots=True)
class ViewChain:
    """Views between two values.

    Attributes:
        root: the value that they begin with.
        factors: of its extents, in its order; extents of 1 have none.
        dims: the factors of each extent of the value that they end with.
        length: how many views.
    """

    root: str
    factors: tuple[Factor, ...]
    dims: tuple[tuple[Factor, ...], ...]
    length: int

    def place(self, factor: Factor) -> int:
        """Returns a factor's position in the root."""
        return next(i for i, f in enumerate(self.factors) if f is factor)


def view_chain(value: str, rewriter: Rewriter, *more: Node) -> ViewChain:
    """Returns the longest chain of reshapes and permutations that ends with a value.

    It begins behind a reshape whose extents share no factors with those before, such as one from
    [4, 6] to [8, 3].

    Args:
        more: views of the value, one of the other, with which the chain ends instead.
    """
    nodes: list[Node] = list(more[::-1])
    root = value
    while (node := rewriter.producer(root)) is not None and node.op in RESHAPES | PERMUTATIONS:
        (before,) = node.inputs
        assert before is not None
        nodes.append(node)
        root = before
    while True:
        tracked = _track(root, nodes[::-1], rewriter)
        if tracked is not None:
            return tracked
        root = nodes.pop().outputs[0].name


def _track(root: str, nodes: Sequence[Node], rewriter: Rewriter) -> ViewChain | None:
    dims = [[] if size == 1 else [Factor(size)] for size in rewriter.types[root].shape]
    factors = [factor for dim in dims for factor in dim]
    for node in nodes:
        if node.op in PERMUTATIONS:
            dims = [dims[d] for d in permutation(node, len(dims))]
            continue
        reshaped = _regroup([f for dim in dims for f in dim], node.type.shape, factors)
        if reshaped is None:
            return None
        dims = reshaped
    return ViewChain(root, tuple(factors), tuple(tuple(dim) for dim in dims), len(nodes))


def _regroup(
    row: list[Factor], shape: Sequence[int], factors: list[Factor]
) -> list[list[Factor]] | None:
    """Returns the factors of each extent, splitting some where extents end within them."""
    dims: list[list[Factor]] = []
    rest = row[::-1]
    for size in shape:
        dim: list[Factor] = []
        while size != 1:
            if not rest:
                return None
            factor = rest.pop()
            if factor.size != size:
                if is_symbolic((factor.size, size)) or 0 in (factor.size, size):
                    return None
                if size % factor.size:
                    if factor.size % size:
                        return None
                    left = Factor(factor.size // size)
                    factors.insert(next(i for i, f in enumerate(factors) if f is factor) + 1, left)
                    factor.size = size
                    rest.append(left)
                size //= factor.size
            else:
                size = 1
            dim.append(factor)
        dims.append(dim)
    return None if rest else dims


View = tuple[str, tuple[int, ...], Mapping[str, Attr]]  # op, shape of the result, attributes


def views_to(
    shape: Sequence[int], chain: ViewChain, order: Sequence[int], result: Sequence[int]
) -> list[View]:
    """Returns the views that bring a chain's factors from its root into an order.

    Args:
        shape: of the root.
        order: positions of all factors in the root, as the result has them.
        result: its shape.
    """
    split = tuple(factor.size for factor in chain.factors)
    permuted = tuple(split[d] for d in order)
    views: list[View] = []
    if list(order) != sorted(order):
        if split != tuple(shape):
            views.append(("aten.view.default", split, {"size": split}))
        views.append(("aten.permute.default", permuted, {"dims": tuple(order)}))
        shape = permuted
    if tuple(result) != tuple(shape):
        views.append(("aten.view.default", tuple(result), {"size": tuple(result)}))
    return views

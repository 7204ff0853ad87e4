"""Recovers matrix products from multiply and reduce, by which axes each factor depends on.

Of a sum over a product, the axes that only the first factor has are rows, those that only the
second has are columns, those of both are batches, and the axes summed over are in both. Nothing
else is a contraction. Convolutions are looked for first (`windows.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.frontends.tinygrad.builder import Builder
from npusim.frontends.tinygrad.index import Access, behind, loop
from npusim.frontends.tinygrad.plans import Plan, arranged
from npusim.frontends.tinygrad.terms import Term
from npusim.ir.graph import Value

_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Product:
    """A sum over axes of a product of two factors.

    Attributes:
        term: the reduction.
        a, b: how the loop reads the factors; behind all movement that only broadcasts.
        summed: the axes summed over, without those of size 1.
        free: all other axes, in the order of the result.
        dtype: of the factors as they are multiplied.
    """

    term: Term
    a: Access
    b: Access
    summed: tuple[int, ...]
    free: tuple[int, ...]
    dtype: str


def product_of(term: Term) -> Product | None:
    """Returns the sum of products that a term is, or None."""
    if term.op != "reduce" or term.arg[0] != "add":
        return None
    source = term.sources[0]
    if source.op == "cast" and source.dtype in _FLOATS and source.sources[0].dtype in _FLOATS:
        source = source.sources[0]  # products are summed wider than the factors are
    if source.op != "mul" or source.dtype == "bool":
        return None
    sizes = source.shape
    a, b = (loop(factor, sizes) for factor in source.sources)
    summed = tuple(x for x in term.arg[1] if sizes[x] > 1)
    free = tuple(x for x in range(len(sizes)) if x not in term.arg[1])
    return Product(term, simplest(a), simplest(b), summed, free, source.dtype)


def simplest(access: Access) -> Access:
    """Returns the same read from the first tensor before what only broadcasts and orders."""
    while access.term.op in ("expand", "permute", "reshape"):
        before = behind(access)
        if before is None or not before.is_simple():
            break
        access = before
    return access


def contraction(term: Term) -> Plan | None:
    """Plans a sum of products as a linear or a matrix product; a recovery."""
    product = narrowed(term)
    if product is None or not (product.a.is_simple() and product.b.is_simple()):
        return None
    a, b = product.a, product.b
    both = a.axes & b.axes
    if not product.summed or not set(product.summed) <= both:
        return None
    rows, columns = sorted(a.axes - both), sorted(b.axes - both)
    if not rows and not columns:
        return None  # a square, or a product of two vectors for each batch
    if rows and columns and rows[0] > columns[0]:
        a, b = b, a
    if both == set(product.summed) and a.term.static != b.term.static:
        return _linear(product, term, a, b)
    return _matmul(product, term, a, b)


def narrowed(term: Term) -> Product | None:
    """Returns the sum of products that a term is, or that it is the rounded result of."""
    if term.op != "cast":
        return product_of(term)
    total = term.sources[0]
    while total.op == "reshape":
        total = total.sources[0]
    product = product_of(total)
    return product if product is not None and product.dtype == term.dtype else None


def _linear(product: Product, term: Term, a: Access, b: Access) -> Plan:
    """Plans a product with a matrix that is known before the run: x[…, k] and weight[n, k]."""
    x, weight = (b, a) if a.term.static else (a, b)
    outs = [i for i in product.free if i in weight.axes]
    ones = [i for i in product.free if i not in weight.axes and i not in x.axes]
    last = max(outs, default=len(a.sizes))
    rows = [i for i in product.free if i in x.axes or (i in ones and i < last)]
    order = [*rows, *outs, *(i for i in ones if i not in rows)]

    def build(graph: Builder, left: Value, right: Value) -> Value:
        groups = [[i] for i in rows] + [list(product.summed)]
        left = arranged(graph, graph.cast(left, term.dtype), x.dims(), groups, x.sizes)
        groups = [outs, list(product.summed)]
        right = arranged(graph, graph.cast(right, term.dtype), weight.dims(), groups, x.sizes)
        y = graph.op("linear.default", left, right, None)
        return ordered(graph, y, order, product, term)

    return Plan((x.term, weight.term), build, "linear")


def _matmul(product: Product, term: Term, a: Access, b: Access) -> Plan:
    batch, rows, columns = _roles(product, a, b)
    order = [*batch, *rows, *columns]

    def build(graph: Builder, left: Value, right: Value) -> Value:
        groups = [[i] for i in batch]
        summed = list(product.summed)
        left, right = graph.cast(left, term.dtype), graph.cast(right, term.dtype)
        left = arranged(graph, left, a.dims(), [*groups, rows, summed], a.sizes)
        right = arranged(graph, right, b.dims(), [*groups, summed, columns], a.sizes)
        y = graph.op("matmul.default", left, right)
        return ordered(graph, y, order, product, term)

    return Plan((a.term, b.term), build, "matmul")


def _roles(product: Product, a: Access, b: Access) -> tuple[list[int], list[int], list[int]]:
    """Divides the axes of the result into batches, rows and columns; those of size 1 too."""
    batch = [i for i in product.free if i in a.axes and i in b.axes]
    rows = [i for i in product.free if i in a.axes and i not in b.axes]
    columns = [i for i in product.free if i in b.axes and i not in a.axes]
    ones = [i for i in product.free if i not in a.axes | b.axes]
    if not rows and ones:
        before = [i for i in ones if not columns or i < columns[0]]
        rows = before[-1:]
    if not columns and ones:
        columns = [i for i in ones if i not in rows and (not rows or i > rows[-1])][:1]
    ones = [i for i in ones if i not in rows and i not in columns]
    return sorted([*batch, *ones]), rows, columns


def ordered(graph: Builder, y: Value, order: list[int], product: Product, term: Term) -> Value:
    """Returns a result whose dimensions are axes in some order, as the term has them."""
    sizes = product.a.sizes
    y = graph.view(y, [sizes[i] for i in order])
    places = [order.index(i) for i in sorted(order)]
    y = graph.view(graph.ordered(y, places), term.shape)
    return graph.cast(y, term.dtype)

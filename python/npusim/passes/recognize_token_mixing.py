"""Multiplies tokens, or steps of time, as they lie: a linear between two transpositions.

`linear(x.transpose(1, 2)).transpose(1, 2)` is a product with W from the left, which needs no copy
of x or of its result. A linear becomes `npu.token_mixing` where what it multiplies along is not
what lies next to each other in memory, and where all that reads the result turns it back, perhaps
behind further linears and formulas. Permutations stay around it, and cancel with those of the
model.

Weights that are to be quantized and products that are to be narrowed stay as they are, as do
products of few columns, or of others than chunks of 16 bytes hold, of which tiles would be empty.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from npusim.analysis.compose import scalar_program
from npusim.analysis.shapes import PERMUTATIONS, RESHAPES, VIEWS, permutation
from npusim.analysis.view_chain import Factor, ViewChain, view_chain, views_to
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, reading, rewrite
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.ops.token_mixing import DTYPES, TOKEN_MIXING
from npusim.targets.target_config import TargetConfig

_FEWEST_COLUMNS = 32
_CHUNK = 8  # columns of 16 bits that are loaded at once


def recognize_token_mixing(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with linears between transpositions as products from the left."""
    if target.weight_quantization != "none" or target.precision != "float32":
        return graph
    turned = _turned_back(graph)

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        if node.outputs[0].name not in turned:
            return None
        return (_product if node.op == "npu.linear" else _formula)(node, rewriter)

    return rewrite(graph, visit)


def _turned_back(graph: Graph) -> Collection[str]:
    """Returns the values whose last dimension is another one to all that compute with them."""
    turned: set[str] = set()
    for node in reversed(graph.nodes):
        for value in (result.name for result in node.outputs):
            users = graph.users[value]
            turns = all(_turns(user, value, graph, turned) for user in users)
            if users and turns and value not in graph.output_values:
                turned.add(value)
    return turned


def _turns(user: Node, value: str, graph: Graph, turned: Collection[str]) -> bool:
    """Tells whether a reader of a value, or what comes behind it, moves its last dimension."""
    type, result = graph.types[value], user.outputs[0]
    if user.op in PERMUTATIONS and permutation(user, type.rank)[-1] != type.rank - 1:
        return True
    if result.name not in turned or len(user.outputs) != 1:
        return False
    if user.op in PERMUTATIONS:
        return True
    if user.op in RESHAPES:
        return bool(type.rank and result.type.rank and type.shape[-1] == result.type.shape[-1])
    if user.op == "npu.linear":
        return value in (user.inputs[0], user.inputs[3])
    with reading(user):
        return type.shape == result.type.shape and scalar_program(user, graph) is not None


def _product(node: Node, rewriter: Rewriter) -> Answer:
    x, weight, bias, residual = node.inputs
    assert x is not None and weight is not None
    types = {rewriter.types[v].dtype for v in (x, weight, residual) if v is not None}
    if types != {node.type.dtype} or node.type.dtype not in DTYPES or "dtype" in node.attrs:
        return None
    chain = view_chain(x, rewriter)
    parts = _parts(chain)
    if parts is None:
        return None
    batch, k, columns = (prod(factor.size for factor in part) for part in parts)
    if not _pays(node.type.dtype, k, columns):
        return None
    dtype, n = node.type.dtype, node.type.shape[-1]
    lying = _reshaped(chain.root, (batch, k, columns), node, rewriter)
    if residual is not None:
        given = _reshaped(residual, (batch, columns, n), node, rewriter)
        residual = _turned(given, node, rewriter)
    y = rewriter.emit(
        TOKEN_MIXING,
        (lying, weight, bias, residual),
        TensorType(dtype, (batch, n, columns)),
        node.attrs,
        like=node,
    )
    if node.type.shape == (batch, columns, n):
        return become(node, "aten.permute.default", (y,), {"dims": (0, 2, 1)})
    y = _turned(y, node, rewriter)
    return become(node, "aten.view.default", (y,), {"size": node.type.shape})


def _formula(node: Node, rewriter: Rewriter) -> Answer:
    """Computes a formula of one product's elements before the permutation behind it."""
    operands = [value for value in node.inputs if value is not None]
    if len(operands) != 1 or node.op in VIEWS or scalar_program(node, rewriter) is None:
        return None
    chain = view_chain(operands[0], rewriter)
    product = rewriter.producer(chain.root)
    if product is None or product.op != TOKEN_MIXING or chain.length == 0:
        return None
    dtype, shape = node.type.dtype, rewriter.types[chain.root].shape
    value = rewriter.emit(node.op, (chain.root,), TensorType(dtype, shape), node.attrs, like=node)
    order = [chain.place(factor) for dim in chain.dims for factor in dim]
    views = views_to(shape, chain, order, node.type.shape)
    if not views:
        return value
    *views, (op, _, attrs) = views
    for view, lying, how in views:
        value = rewriter.emit(view, (value,), TensorType(dtype, lying), how, like=node)
    return become(node, op, (value,), attrs)


_Parts = tuple[list[Factor], list[Factor], list[Factor]]


def _parts(chain: ViewChain) -> _Parts | None:
    """Returns the factors of what a linear multiplies along, and those before and behind it.

    None where they are the last, not next to each other, or rows come in another order than they
    lie in.
    """
    *rows, last = chain.dims
    given = [factor for dim in rows for factor in dim]
    places = [chain.place(factor) for factor in last]
    if not places or places != list(range(places[0], places[0] + len(places))):
        return None
    order = [chain.place(factor) for factor in given]
    if order != sorted(order) or places[-1] == len(chain.factors) - 1:
        return None
    split = [place < places[0] for place in order].count(True)
    return given[:split], list(last), given[split:]


def _pays(dtype: str, k: int, columns: int) -> bool:
    if is_symbolic((k, columns)) or k == 0 or columns < _FEWEST_COLUMNS:
        return False
    return dtype == "float32" or columns % _CHUNK == 0


def _reshaped(value: str, shape: tuple[int, ...], like: Node, rewriter: Rewriter) -> str:
    type = rewriter.types[value]
    if type.shape == shape:
        return value
    view = TensorType(type.dtype, shape)
    return rewriter.emit("aten.view.default", (value,), view, {"size": shape}, like=like)


def _turned(value: str, like: Node, rewriter: Rewriter) -> str:
    type = rewriter.types[value]
    batch, rows, columns = type.shape
    turned = TensorType(type.dtype, (batch, columns, rows))
    dims = {"dims": (0, 2, 1)}
    return rewriter.emit("aten.permute.default", (value,), turned, dims, like=like)

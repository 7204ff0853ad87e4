"""Products whose columns are the queries, keys and values of an attention over pages.

They turn and append these themselves, in one command, where nobody else reads what they are. Owns
when a product does that. Norms of heads, or anything else, between the product and the rotation
leave both as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npusim.abi.scalar import OPCODES
from npusim.ir.graph import Node
from npusim.ir.symbolic import is_symbolic
from npusim.lowering.context import Emitted, Lowering
from npusim.lowering.view import View

_STEM = "linear_rope_append"
_PRODUCTS = ("linear", "linear_behind_norm")
_HALVES = ("float16", "bfloat16")
_HEAD_COLUMNS = 64  # that heads are multiples of, and rows of W in a tile


def emit_by_product(
    node: Node, low: Lowering, params: Mapping[str, Any], reads: Sequence[View],
    writes: Sequence[View],
) -> bool:  # fmt: skip
    """Emits `paged_rope_append` as a part of the product before it; tells whether it could.

    Args:
        node: whose command it is.
        params: of `paged_rope_append`.
        reads: its operands: queries, keys, values, cosines, sines and places.
        writes: turned queries, and the pools.
    """
    if not (low.target.has(_STEM) and low.target.uses_tma) or not _has_form(params, reads):
        return False
    product = low.last_writer(reads[0].buffer)
    if product is None or not _are_its_columns(product, params, reads):
        return False
    if not _is_only_reader(node, low, reads[0].buffer):
        return False
    kept = {view.buffer for view in (*product.reads, *reads[3:])}
    if kept & {view.buffer for view in (*product.writes, *writes)}:
        return False
    low.take_back(product)
    of_product = {"slots": 0, "norm_eps": 0.0, **product.params}
    of_rope = {
        name: value
        for name, value in params.items()
        if name not in ("q_strides", "k_strides", "v_strides", "v_dim", "rotary_dim", "interleaved")
    }
    low.emit(_STEM, {**of_product, **of_rope}, [*product.reads, *reads[3:]], writes, update=True)
    return True


def _has_form(p: Mapping[str, Any], reads: Sequence[View]) -> bool:
    """Tells whether heads turn as a whole, by pairs of halves, all in chunks of 16 bytes."""
    head = p["head_dim"]
    steps = [p[name] for name in ("k_pool_strides", "v_pool_strides", "cs_strides")]
    if is_symbolic((head, p["v_dim"], p["rotary_dim"], p["heads"], p["kv_heads"], *steps)):
        return False
    whole = head == p["v_dim"] == p["rotary_dim"] and head % _HEAD_COLUMNS == 0
    apart = any(step % 8 for strides in steps for step in strides)
    return whole and not apart and not p["interleaved"] and reads[0].dtype in _HALVES


def _are_its_columns(product: Emitted, p: Mapping[str, Any], reads: Sequence[View]) -> bool:
    """Tells whether a product has queries, keys and values as its columns, one after the other."""
    if product.kernel not in _PRODUCTS or len(product.writes) != 1:
        return False
    given: Mapping[str, Any] = product.params
    (y,) = product.writes
    head, heads, kv_heads = (p[name] for name in ("head_dim", "heads", "kv_heads"))
    n = (heads + 2 * kv_heads) * head
    plain = not (given["gated"] or given["residual"]) and given["act"] == OPCODES["copy"][0]
    alike = given["x_dtype"] == given["w_dtype"] == given["y_dtype"] == p["dtype"]
    rows = given["n"] == given["ldy"] == n and given["m"] == p["length"]
    if not (plain and alike and rows):
        return False
    first = y.offset
    for x, count, name in zip(reads, (heads, kv_heads, kv_heads), "qkv", strict=False):
        apart, step = p[f"{name}_strides"]
        if (x.buffer, x.offset) != (y.buffer, first) or step != n or (count > 1 and apart != head):
            return False
        first += count * head * y.element_size
    return True


def _is_only_reader(node: Node, low: Lowering, buffer: int) -> bool:
    """Tells whether nobody but a node, and views that it sees, reads what lies in a buffer."""
    graph = low.graph
    waiting = [name for name in node.inputs[:3] if name is not None]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in graph.output_values or any(update.value == name for update in graph.updates):
            return False
        users = [user for user in graph.users[name] if user.name != node.name]
        if any(not low.shows(user, buffer) for user in users):
            return False
        waiting += [value.name for user in users for value in user.outputs]
        maker = graph.producers.get(name)
        if maker is not None:
            waiting += [n for n in maker.inputs if n is not None and low.lies_in(n, buffer)]
    return True

"""Attention over caches in pages, and the append to them, for rows of many requests.

A pool [pages, g, page_tokens, d] holds the keys, or the values, of all requests. `tables`
int64[r, p] names each request's pages in order; row t belongs to the request `requests[t]` and is
its token `positions[t]`, both int64[t]. A request of -1 is no row: nothing is written, its result
is 0.

* `npu.paged_append(x[1, g, t, d], pool, positions, requests, tables)`: the pool with each row at
  its position.
* `npu.paged_attention(q[1, h, t, d], k_pool, v_pool, positions, requests, tables)`: each row
  attends the keys 0 … position of its request, with `window` > 0 the last `window` of these.
  `softcap` c > 0 bounds the scaled scores: c * tanh(score / c). What a row gets is a function of
  its keys, its values and its position, to the bit: neither other rows nor the numbers of pages
  count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.errors import ShapeError
from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View
from npusim.ops.rope import contiguous_rows

if TYPE_CHECKING:
    from torch import Tensor

PAGED_APPEND = "npu.paged_append"
PAGED_ATTENTION = "npu.paged_attention"
MOST_PAGE_TOKENS = 128
_FLOATS = ("float32", "float16", "bfloat16")


# ---- lowering ----


def paging(pool: View, tables: View) -> dict[str, Param]:
    """Returns the parameters that say what pages there are."""
    return {
        "pages": pool.shape[0],
        "page_tokens": pool.shape[2],
        "requests": tables.shape[0],
        "table_length": tables.shape[1],
    }


def page_places(low: Lowering, node: Node, first: int) -> list[View]:
    """Returns positions, requests and tables, the operands from `first` on, dense."""
    found = low.inputs(node)[first:]
    return [low.dense(view) for view in found if view is not None]


def emit_paged_append(low: Lowering, x: View, places: list[View], y: View) -> None:
    """Emits a `paged_append` of x to the pool y, which holds the other rows."""
    x = contiguous_rows(low, x)
    params: dict[str, Param] = {
        "heads": x.shape[1],
        "length": x.shape[2],
        "head_dim": x.shape[3],
        **paging(y, places[2]),
        "x_strides": x.strides[1:3],
        "y_strides": y.strides[:3],
        **codes(dtype=x.dtype),
    }
    low.emit("paged_append", params, [x, *places], [y], update=True)


def _lower_append(node: Node, low: Lowering) -> None:
    x, pool = low.inputs(node)[:2]
    assert x is not None and pool is not None
    emit_paged_append(low, x, page_places(low, node, 2), low.updated(node.output, pool))


def _on_chunks(low: Lowering, x: View) -> View:
    """Returns a view that begins where loads of 16 bytes may begin; copies only if needed."""
    return x if not low.target.code_format or x.offset % 16 == 0 else low.dense(x)


def _lower_attention(node: Node, low: Lowering) -> None:
    q, k, v = low.inputs(node)[:3]
    assert q is not None and k is not None and v is not None
    scale, softcap, window = (node.attrs[name] for name in ("scale", "softcap", "window"))
    assert isinstance(scale, (int, float)) and isinstance(softcap, (int, float))
    assert isinstance(window, int)
    places = page_places(low, node, 3)
    y = contiguous_rows(low, low.result(node.output, strided=True))
    q, k, v = (_on_chunks(low, contiguous_rows(low, x)) for x in (q, k, v))
    params: dict[str, Param] = {
        "heads": q.shape[1],
        "kv_heads": k.shape[1],
        "length": q.shape[2],
        "head_dim": q.shape[3],
        "v_dim": v.shape[3],
        **paging(k, places[2]),
        "window": window,
        "q_strides": q.strides[1:3],
        "k_strides": k.strides[:3],
        "v_strides": v.strides[:3],
        "y_strides": y.strides[1:3],
        "scale": float(scale),
        "softcap": float(softcap),
        **codes(dtype=q.dtype),
    }
    low.emit("paged_attention", params, [q, k, v, *places], [y])


# ---- references ----


def _place(row: int, positions: Tensor, requests: Tensor, tables: Tensor) -> tuple[int, int] | None:
    """Returns (request, position) of a row; None for no row. ShapeError for one without table."""
    request, position = int(requests[row]), int(positions[row])
    if request == -1:
        return None
    if not 0 <= request < tables.shape[0]:
        raise ShapeError(f"row {row} is of request {request}; there are {tables.shape[0]} tables.")
    return request, position


def _pages(
    request: int, position: int, window: int, pool: Tensor, tables: Tensor
) -> tuple[list[int], int]:
    """Returns the pages that a position sees, and the first position of the first."""
    size, room = pool.shape[2], tables.shape[1] * pool.shape[2]
    if not 0 <= position < room:
        raise ShapeError(f"position {position} is outside the pages of a request: {room} rows.")
    first = max(0, position + 1 - window) // size if window else 0
    pages = [int(page) for page in tables[request, first : position // size + 1]]
    wrong = next((page for page in pages if not 0 <= page < pool.shape[0]), None)
    if wrong is not None:
        raise ShapeError(f"page {wrong} is outside the pool of {pool.shape[0]} pages.")
    return pages, first * size


def reference_paged_append(
    x: Tensor, pool: Tensor, positions: Tensor, requests: Tensor, tables: Tensor, /
) -> Tensor:
    """Computes `npu.paged_append`; ShapeError for a request, position or page outside."""
    result = pool.clone()
    for row in range(x.shape[2]):
        place = _place(row, positions, requests, tables)
        if place is None:
            continue
        (page,), _ = _pages(*place, 1, pool, tables)
        result[page, :, place[1] % pool.shape[2]] = x[0, :, row]
    return result


def reference_paged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    requests: Tensor,
    tables: Tensor,
    /,
    *,
    scale: float,
    softcap: float,
    window: int,
) -> Tensor:
    """Computes `npu.paged_attention`; rows of pages that nobody wrote may hold anything."""
    import torch

    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    result = torch.zeros((*q.shape[:3], v.shape[3]), dtype=wide, device=q.device)
    for row in range(q.shape[2]):
        place = _place(row, positions, requests, tables)
        if place is None:
            continue
        pages, start = _pages(*place, window, k, tables)
        end = place[1] + 1
        seen = slice((max(0, end - window) if window else 0) - start, end - start)
        keys, values = (
            torch.cat([pool[page] for page in pages], 1)[:, seen]
            .to(wide)
            .repeat_interleave(q.shape[1] // pool.shape[1], 0)
            for pool in (k, v)
        )
        scores = (keys @ q[0, :, row, :, None].to(wide))[..., 0] * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        result[0, :, row] = (scores.softmax(-1)[:, None] @ values)[:, 0]
    return result.to(q.dtype)


# ---- types ----


def infer_paged_append(
    x: TensorType,
    pool: TensorType,
    positions: TensorType,
    requests: TensorType,
    tables: TensorType,
    /,
) -> TensorType:
    """Returns the type of `npu.paged_append`; ShapeError when the operands do not fit."""
    _check_places(PAGED_APPEND, x, pool, (positions, requests, tables))
    if x.shape[1] != pool.shape[1] or x.shape[3] != pool.shape[3]:
        raise ShapeError(f"{PAGED_APPEND}: x is {x}, the pool {pool}; expected the same heads.")
    return TensorType(pool.dtype, pool.shape)


def infer_paged_attention(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    positions: TensorType,
    requests: TensorType,
    tables: TensorType,
    /,
    *,
    scale: float,
    softcap: float,
    window: int,
) -> TensorType:
    """Returns the type of `npu.paged_attention`; ShapeError when the operands do not fit."""
    for pool in (k, v):
        _check_places(PAGED_ATTENTION, q, pool, (positions, requests, tables))
    heads, groups = q.shape[1], k.shape[1]
    fits = k.shape[:3] == v.shape[:3] and q.shape[3] == k.shape[3]
    if not fits or not groups or heads % groups:
        raise ShapeError(
            f"{PAGED_ATTENTION}: q is {q}, k {k}, v {v}; expected the same pages and head size, "
            "and heads in whole groups."
        )
    if softcap < 0 or window < 0:
        raise ShapeError(
            f"{PAGED_ATTENTION}: softcap {softcap} and window {window} must not be negative."
        )
    return TensorType(q.dtype, (1, heads, q.shape[2], v.shape[3]))


def _check_places(
    op: str, rows: TensorType, pool: TensorType, places: tuple[TensorType, ...]
) -> None:
    """Raises ShapeError unless rows, a pool and what says where rows lie fit each other."""
    if not rows.rank == pool.rank == 4 or rows.shape[0] != 1 or rows.dtype != pool.dtype:
        raise ShapeError(
            f"{op}: rows are {rows}, the pool {pool}; expected [1, heads, rows, size] and [pages, "
            "heads, page tokens, size] of one dtype."
        )
    if not 1 <= pool.shape[2] <= MOST_PAGE_TOKENS:
        raise ShapeError(f"{op}: the pool is {pool}; a page has 1 to {MOST_PAGE_TOKENS} rows.")
    positions, requests, tables = places
    length = (rows.shape[2],)
    if positions.shape != length or requests.shape != length or tables.rank != 2:
        raise ShapeError(
            f"{op}: positions are {positions}, requests {requests}, tables {tables}; expected "
            f"int64[{length[0]}] twice, and a row of pages for each request."
        )
    if any(place.dtype != "int64" for place in places):
        raise ShapeError(f"{op}: positions, requests and tables must be int64.")


def _supported(node: Node, graph: Graph) -> str | None:
    assert node.inputs[0] is not None
    dtype = graph.types[node.inputs[0]].dtype
    return None if dtype in _FLOATS else f"dtype {dtype}; supported are {', '.join(_FLOATS)}"


def _case(
    rows: int,
    positions: tuple[int, int],
    requests: tuple[int, int],
    heads: int = 6,
    page: int = 16,
    softcap: float = 0.0,
    window: int = 0,
    label: str = "",
) -> Case:
    """A case of two key/value heads; numbers of positions and requests from a range each."""
    pools = ((5, 2, page, 32), (5, 2, page, 24))
    places = ((rows,), ("int", *positions)), ((rows,), ("int", *requests))
    tables = ((3, 4), ("int", 0, 5))
    attrs = {"scale": 0.2, "softcap": softcap, "window": window}
    return Case(((1, heads, rows, 32), *pools, *places, tables), attrs, label)


register(
    OpDef(
        PAGED_APPEND,
        lower=_lower_append,
        supports=_supported,
        reference=reference_paged_append,
        infer=infer_paged_append,
        cases=(
            Case(
                (
                    *((1, 2, 1, 32), (5, 2, 16, 32), ((1,), ("int", 63, 64))),
                    *(((1,), ("int", 2, 3)), ((3, 4), ("int", 4, 5))),
                ),
                id="last_row",
            ),
            Case(
                (
                    *((1, 2, 3, 7), (5, 2, 16, 7), ((3,), ("int", 0, 1))),
                    *(((3,), ("int", -1, 0)), ((3, 4), ("int", -1, 0))),
                ),
                id="no_row",
            ),
        ),
    )
)
register(
    OpDef(
        PAGED_ATTENTION,
        lower=_lower_attention,
        supports=_supported,
        reference=reference_paged_attention,
        infer=infer_paged_attention,
        cases=(
            _case(1, (0, 1), (0, 1), label="first_token"),
            _case(7, (0, 64), (-1, 3), label="rows"),
            _case(5, (63, 64), (0, 3), heads=2, label="full"),
            _case(5, (0, 64), (0, 3), heads=22, label="wide_groups"),
            _case(7, (0, 64), (0, 3), window=17, label="window"),
            _case(7, (0, 64), (0, 3), window=1, label="window_of_one"),
            _case(7, (0, 64), (0, 3), softcap=0.5, label="softcap"),
            _case(4, (0, 512), (0, 3), page=128, label="largest_pages"),
            _case(4, (0, 4), (0, 3), page=1, label="smallest_pages"),
            _case(3, (0, 64), (-1, 0), label="no_row"),
        ),
    )
)

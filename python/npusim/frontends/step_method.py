"""The method `step` of a language model: rows of many requests over one cache in pages.

* `step(tokens int64[1, T], positions int64[T], requests int64[T], tables int64[R, P], rows
  int64[R]) -> logits[R, vocab], best int64[R], highest[R]`: row t is the token at `positions[t]` of
  the request `requests[t]` (-1: no row, which touches nothing); `tables[r]` names that request's
  pages, of `page_tokens` rows each, in order; `rows[r]` is the row whose logits are wanted for r
  (-1: none; its logits are those of row 0). `best` is the token of the highest logit, the first of
  several, and `highest` that logit; of logits with a NaN they are a NaN's. Calls choose T and R.

It is made of a trace as `prefill` has it, for any number of tokens of one request from the state
`position` on. What the passes prove there (recognize_cache_append, recognize_cached_attention) is
all that rows have to do with each other and with the position: every append becomes one to pages,
every attention one over pages, and every `position + arange(T)` the input `positions`. If then
anything still reads the position or a cache, the decoder has no such method.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.analysis.affine import Affine, along
from npusim.analysis.fused_nodes import reshaped
from npusim.analysis.known_values import analyse
from npusim.errors import ExportError
from npusim.ir.graph import Graph, Node, Output, Value
from npusim.ir.rewrite import Names, drop_dead
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import TensorType
from npusim.ops.paged import MOST_PAGE_TOKENS, PAGED_APPEND, PAGED_ATTENTION
from npusim.passes import PIPELINE
from npusim.passes.recognize_cache_append import CACHE_APPEND
from npusim.passes.recognize_cached_attention import (
    CACHED_ATTENTION,
    recognize_cached_attention,
)
from npusim.passes.run import run_passes
from npusim.targets.target_config import TargetConfig


@dataclass(frozen=True)
class StepSizes:
    """How much a step takes, and how much its caches hold.

    Attributes:
        page_tokens: rows of a page.
        max_step_tokens: rows that a step takes; no more than the context.
        max_requests: requests that a step takes.
        pages: of each cache, for all requests; by default what four whole contexts need.
    """

    page_tokens: int = 64
    max_step_tokens: int = 2048
    max_requests: int = 256
    pages: int | None = None

    def within(self, context: int) -> StepSizes:
        """Returns the sizes for a context of so many tokens; ExportError for impossible ones."""
        pages = 4 * self.table_length(context) if self.pages is None else self.pages
        given = (self.max_step_tokens, self.max_requests, pages)
        if not 1 <= self.page_tokens <= MOST_PAGE_TOKENS or min(given) < 1:
            raise ExportError(
                f"A page has {self.page_tokens} rows, a step {self.max_step_tokens} rows of "
                f"{self.max_requests} requests, the cache {pages} pages; all are 1 or more, and a "
                f"page has {MOST_PAGE_TOKENS} rows at most."
            )
        return replace(self, max_step_tokens=min(self.max_step_tokens, context), pages=pages)

    def table_length(self, context: int) -> int:
        """Returns how many pages a context has."""
        return -(-context // max(self.page_tokens, 1))


def step_method(traced: Graph, sizes: StepSizes, context: int, position: str) -> Graph:
    """Returns the graph of `step`.

    Args:
        traced: takes `tokens` int64[1, T] and `rows` int64[R] of two symbolic sizes, gives what
            `step` does for these rows, and appends to caches from the state `position` on.
        sizes: as `StepSizes.within` returns them.
        context: tokens that a cache of `traced` holds.
        position: the name of the state that says how many tokens were before.

    Raises:
        ExportError: the decoder keeps what is no cache of keys and values, or reads its position
            or its caches in a way that is not proved to be row by row.
    """
    until = PIPELINE.index(recognize_cached_attention) + 1
    graph = run_passes(traced, TargetConfig.named("cpu"), pipeline=PIPELINE[:until])
    return _Paging(graph, sizes, context, position).graph()


class _Paging:
    """The change of one graph."""

    def __init__(self, graph: Graph, sizes: StepSizes, context: int, position: str) -> None:
        names = Names(graph)
        self._sizes, self._position = sizes, position
        self._known = analyse(graph)
        tokens, rows = graph.inputs
        count = tokens.type.shape[1:]
        tables = (*rows.type.shape, sizes.table_length(context))
        self._places = tuple(
            Value(names.fresh(name), TensorType("int64", shape))
            for name, shape in (("positions", count), ("requests", count), ("tables", tables))
        )
        self._pools = self._pools_of(graph, context, names)
        inputs = (tokens, *self._places, rows)
        states = tuple(self._pools.get(state.name, state) for state in graph.states)
        updates = tuple(
            Output(self._pools[update.name].name, update.value)
            for update in graph.updates
            if update.name in self._pools
        )
        self._old = replace(graph, inputs=inputs, states=states, updates=updates)

    def _pools_of(self, graph: Graph, context: int, names: Names) -> dict[str, Value]:
        """Returns the pool of each cache."""
        pools = {}
        for state in graph.states:
            if state.name == self._position:
                continue
            shape = state.type.shape
            if len(shape) != 4 or shape[0] != 1 or shape[2] != context:
                raise ExportError(
                    f"{graph.name}: the state {state.name} is {state.type}, no cache of keys or "
                    "values: the decoder has no method that serves many requests.",
                    hint="Leave serve out; requests are served by sessions then.",
                )
            pages = (self._sizes.pages or 1, shape[1], self._sizes.page_tokens, shape[3])
            name = names.fresh(f"pages.{state.name.removeprefix('cache.')}")
            pools[state.name] = Value(name, TensorType(state.type.dtype, pages))
        return pools

    def graph(self) -> Graph:
        """Returns the graph over pages, if nothing is left of what was before."""
        graph = drop_dead(rewrite(self._old, self._visit))
        here = {state.name for state in graph.states} - {self._position}
        reading = [n for n in graph.nodes if any(i in self._pools for i in n.inputs)]
        reading += graph.users.get(self._position, ())
        pools = {pool.name for pool in self._pools.values()}
        paged = (PAGED_APPEND, PAGED_ATTENTION)
        kept = {v.name for n in graph.nodes if n.op == PAGED_APPEND for v in n.outputs} | pools
        reading += [n for n in graph.nodes if n.op not in paged and kept & set(n.inputs)]
        if reading or here != pools or {update.name for update in graph.updates} != pools:
            at = f" ({reading[0].op}, node {reading[0].name})" if reading else ""
            raise ExportError(
                f"{graph.name}: what it does with its position and its caches{at} is not proved to "
                "be causal attention from the position on: the decoder has no method that serves "
                "many requests.",
                hint="Leave serve out; requests are served by sessions then.",
            )
        left = tuple(state for state in graph.states if state.name != self._position)
        return replace(graph, states=left)

    def _visit(self, node: Node, rewriter: Rewriter) -> Answer:
        places = tuple(place.name for place in self._places)
        if node.op == CACHE_APPEND:
            x, cache, _ = node.inputs
            pool = self._pools.get(cache or "")
            known = self._known.get(node.inputs[2] or "")
            if pool is None or known != Affine(0, (0,), 1, self._position):
                return None
            new = become(node, PAGED_APPEND, (x, pool.name, *places))
            output = replace(node.output, type=pool.type)
            return replace(new, outputs=(output,))
        if node.op == CACHED_ATTENTION:
            q, k, v, _ = node.inputs
            appended = [rewriter.producer(cache) for cache in (k, v)]
            if any(one is None or one.op != PAGED_APPEND for one in appended):
                return None
            return become(node, PAGED_ATTENTION, (q, k, v, *places), node.attrs)
        return self._positions(node, rewriter)

    def _positions(self, node: Node, rewriter: Rewriter) -> Answer:
        """Returns the input of positions, where a node computes them."""
        if len(node.outputs) != 1 or node.type.dtype != "int64":
            return None
        positions = self._places[0]
        count = positions.type.shape[0]
        shape = node.type.shape
        if sum(size == count for size in shape) != 1 or any(s not in (1, count) for s in shape):
            return None
        steps = tuple(along(size) if size == count else 0 for size in shape)
        if self._known.get(node.output.name) != Affine(0, steps, 1, self._position):
            return None
        return reshaped(positions.name, shape, node, rewriter)

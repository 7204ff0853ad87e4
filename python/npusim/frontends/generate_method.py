"""The method `generate` of a language model, made of its method `decode`.

* `generate(sampling float64[5], seed int64[1]) -> chosen int64[1]`: appends the token in the state
  `token`, chooses the one after it (`npu.sample`), and leaves that in the state.

What was said before is in the state `history`, a row a token: the method writes the row of the
token that it appends, and reads the others only for a repetition penalty.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.ir.graph import Graph, Node, Output, Value
from npusim.ir.rewrite import Names, substitute
from npusim.ir.types import TensorType
from npusim.ops.reference import infer_types
from npusim.ops.sampling import OPTIONS, SAMPLE

_SAMPLING = TensorType("float64", (len(OPTIONS),))


def generate_method(decode: Graph, name: str, context: int, position: str) -> Graph:
    """Returns the graph of `generate`.

    Args:
        decode: takes `tokens` int64[1, 1] and gives `logits`; advances its state `position`.
        name: of the graph.
        context: tokens that the history holds.
    """
    names = Names(decode)
    (tokens,) = decode.inputs
    token = Value(names.fresh("token"), tokens.type)
    history = Value(names.fresh("history"), TensorType("int64", (context,)))
    inputs = (
        Value(names.fresh("sampling"), _SAMPLING),
        Value(names.fresh("seed"), TensorType("int64", (1,))),
    )
    logits = next(o.value for o in decode.outputs if o.name == "logits")
    length = next(u.value for u in decode.updates if u.name == position)
    operands = (logits, *(v.name for v in inputs), length, token.name, history.name)
    types = {**decode.types, **{v.name: v.type for v in (*inputs, token, history)}}
    results = infer_types(SAMPLE, [types[operand] for operand in operands], {})
    chosen, following, longer = (
        Value(names.fresh(base), kind)
        for base, kind in zip(("chosen", "next_token", "longer_history"), results, strict=True)
    )
    sample = Node(names.fresh("sample"), SAMPLE, operands, (chosen, following, longer))
    graph = replace(
        decode,
        name=name,
        nodes=(*decode.nodes, sample),
        states=(*decode.states, token, history),
        updates=(
            *decode.updates,
            Output(token.name, following.name),
            Output(history.name, longer.name),
        ),
    )
    graph = substitute(graph, {tokens.name: token.name})
    return replace(graph, inputs=inputs, outputs=(Output("chosen", chosen.name),))

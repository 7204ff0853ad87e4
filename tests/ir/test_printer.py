"""The text form."""

from __future__ import annotations

from npusim.ir.graph import Source
from npusim.ir.printer import format_graph
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType

EXPECTED = """\
graph tiny(x: float32[2, 3])
  weight fc.weight: float32[4, 3] = tied.weight
  weight table: int64[5] from a.table (not in the state_dict)
  constant two: float32[] (4 bytes)
  %linear = aten.linear.default(%x, fc.weight, None) -> float32[2, 4]  # fc
  %max.0, %max.1 = aten.max.dim(%linear) dim=1 keepdim=False -> float32[2], int64[2]
  %mul = aten.mul.Tensor(%max.0, two) text='a' shape=(2,) -> float32[2]
  return first=%mul, second=table
"""


def test_one_node_a_line() -> None:
    builder = GraphBuilder("tiny")
    x = builder.input("x", TensorType("float32", (2, 3)))
    w = builder.weight("fc.weight", TensorType("float32", (4, 3)), aliases=("tied.weight",))
    t = builder.weight("table", TensorType("int64", (5,)), key="a.table", persistent=False)
    c = builder.constant("two", TensorType("float32", ()), bytes(4))
    type = TensorType("float32", (2, 4))
    y = builder.node("aten.linear.default", [x, w, None], type, source=Source("fc", "m.py", 3))
    types = [TensorType("float32", (2,)), TensorType("int64", (2,))]
    m = builder.nodes("aten.max.dim", [y], types, {"dim": 1, "keepdim": False})
    z = builder.node("aten.mul.Tensor", [m[0], c], types[0], {"text": "a", "shape": (2,)})
    builder.output("first", z)
    builder.output("second", t)
    graph = builder.build()
    assert format_graph(graph) == EXPECTED
    assert format_graph(graph, sources=False) == EXPECTED.replace("  # fc", "")

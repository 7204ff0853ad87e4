"""check says of every node what becomes of it and why, as compiling would."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.errors import CoverageError, Error, UnsupportedOpError
from npusim.ir.module import Module
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType

from .models import Function, keep_off, nowhere, stray


class Net(nn.Module):
    """Convolutions around an operator that only PyTorch has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.last = nn.Conv2d(32, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(stray(self.first(x)))
        return y


def net_graph() -> npusim.IR:
    return npusim.extract_ir(Net().eval(), (torch.randn(1, 3, 64, 64),))


def test_every_node_has_a_verdict_with_its_place() -> None:
    report = npusim.check(net_graph())
    assert report.counts == {"native": 2, "fallback": 1}
    (node,) = report.others
    assert node.op == "npusim_partition.stray.default"
    assert (node.status, node.constraint) == ("fallback", "op")
    assert node.file.endswith("test_check.py")
    assert node.line > 0
    assert node.crossing_bytes == 2 * 4 * 32 * 64 * 64, "in and out of PyTorch"
    assert report.crossing_bytes == node.crossing_bytes
    conv = report.nodes[0]
    assert conv.module == "first"
    assert conv.flops == 32 * 64 * 64 * (2 * 3 * 9 + 1), "products, and the bias"
    assert conv.bytes == 4 * (3 * 64 * 64 + 32 * 3 * 9 + 32 + 32 * 64 * 64)
    assert conv.seconds > 0


def test_a_share_can_be_required() -> None:
    report = npusim.check(net_graph())
    assert report.coverage == pytest.approx(2 / 3)
    assert report.require(0.6) is report
    with pytest.raises(CoverageError, match=r"66.7% .*95.0% are required(.|\n)*stray.*test_check"):
        report.require(coverage=0.95)
    with pytest.raises(Error, match="95"):
        report.require(95)


def test_reasons_name_the_constraint() -> None:
    def function(x: Tensor, v: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.complex(x, x).sinh().abs(),
            torch.nn.functional.conv1d(v, torch.ones(1, 3, 2)),
            torch.linalg.vector_norm(x, ord=3.0),
            torch.nn.functional.softmax(x.double().int().float(), 0),
            torch.nn.functional.avg_pool1d(i.double()[None], 2),
        )

    args = (torch.randn(3, 4), torch.randn(3, 8), torch.ones(2, 4))
    report = npusim.check(npusim.extract_ir(Function(function).eval(), args))
    kinds = {(n.op.split(".")[1], n.constraint) for n in report.others}
    assert ("view_as_complex", "op") in kinds
    assert ("sinh", "dtype") in kinds
    for node in report.others:
        assert node.reason


def test_what_check_calls_native_compiles() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x @ x.T).softmax(-1)

    graph = npusim.extract_ir(Function(function).eval(), torch.randn(4, 4))
    assert npusim.check(graph).coverage == 1
    npusim.compile(graph)


def test_check_refuses_what_compile_refuses() -> None:
    graph = net_graph()
    with pytest.raises(UnsupportedOpError) as caught:
        npusim.compile(graph)
    assert caught.value.nodes == tuple(n.name for n in npusim.check(graph).others)


def test_what_nobody_runs_is_unsupported() -> None:
    graph = npusim.extract_ir(Function(lambda x: nowhere(x.relu())).eval(), torch.randn(4))
    (node,) = npusim.check(graph).others
    assert node.status == "unsupported"
    assert "PyTorch has no implementation of it on the CPU" in node.reason
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType("float32", (2,)))
    builder.output("y", builder.node("nobody.knows.default", [x], TensorType("float32", (2,))))
    (node,) = npusim.check(builder.build()).others
    assert node.status == "unsupported"
    assert "PyTorch has no operator nobody.knows.default" in node.reason


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("aten.save.default", "no implementation of it on the CPU"),
        ("aten.relu_.default", "it changes its operands"),
        ("aten.from_file.default", "it opens a file"),
        ("os.system.default", "PyTorch has no operator os.system.default"),
    ],
)
def test_pytorch_is_not_asked_for_everything(op: str, words: str) -> None:
    builder = GraphBuilder("g")
    kind = TensorType("float32", (2,))
    builder.output("y", builder.node(op, [builder.input("x", kind)], kind))
    graph = builder.build()
    (node,) = npusim.check(graph).others
    assert node.status == "unsupported"
    assert words in node.reason
    with pytest.raises(UnsupportedOpError, match=words):
        npusim.partition(graph)


def test_methods_of_a_module_are_reported_together() -> None:
    graph = net_graph()
    report = npusim.check(Module("both", {"a": graph, "b": graph}))
    assert len(report.nodes) == 6
    assert {n.method for n in report.nodes} == {"a", "b"}


def test_a_predicate_and_a_pin_show_as_such() -> None:
    graph = net_graph()
    report = npusim.check(graph, is_supported=keep_off("aten.conv2d"))
    assert {n.constraint for n in report.others} == {"predicate", "op"}
    report = npusim.check(graph, pin={"last": "pytorch"})
    assert {n.constraint for n in report.others} == {"pin", "op"}


def test_is_op_supported() -> None:
    assert npusim.is_op_supported("aten.softmax.int")
    assert not npusim.is_op_supported("aten._fft_r2c.default")
    x = TensorType("float32", (2, 3))
    assert npusim.is_op_supported("aten.softmax.int", {"dim": 1}, inputs=[x])
    strange = TensorType("complex64", (2, 3))
    assert not npusim.is_op_supported("aten.add.Tensor", inputs=[strange, strange])
    with pytest.raises(Error, match="refuses"):
        npusim.is_op_supported("aten.mm.default", inputs=[x, x])

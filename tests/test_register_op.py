"""register_op: operators outside ATen stay whole, run in the reference, and are checked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.errors import Error, UnsupportedOpError
from npusim.ir.types import TensorType
from npusim.ops.reference import infer_types, run_graph


@npusim.register_op("npusim_tests.gated")
def gated(x: Tensor, gate: Tensor | None, scale: float = 1.0) -> Tensor:
    """Scales x by a gate."""
    return x * scale if gate is None else x * gate.sigmoid() * scale


def _split(x: Tensor, at: int) -> tuple[Tensor, Tensor]:
    array = x.numpy()  # which no trace could follow, hence `infer`
    return torch.from_numpy(array[:at]), torch.from_numpy(array[at:])


def _split_types(x: TensorType, at: int) -> tuple[TensorType, TensorType]:
    rest = x.shape[1:]
    return TensorType(x.dtype, (at, *rest)), TensorType(x.dtype, (x.shape[0] - at, *rest))


split = npusim.register_op("npusim_tests.split", _split, infer=_split_types)


class Model(nn.Module):
    """Calls both operators."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Maps [4, 3] to [1, 3] and [3, 3]."""
        head, tail = split(gated(x, x, scale=2.0), 1)
        return head + 1, gated(tail, None)


def test_a_registered_operator_is_one_node() -> None:
    x = torch.randn(4, 3)
    graph = npusim.extract_ir(Model().eval(), (x,))
    assert [n.op for n in graph.nodes] == [
        "npusim_tests.gated.default",
        "npusim_tests.split.default",
        "aten.add.Scalar",
        "npusim_tests.gated.default",
    ]
    assert graph.nodes[0].attrs == {"scale": 2.0}
    assert graph.nodes[3].inputs == ("split.1", None)
    for actual, expected in zip(run_graph(graph, [x]), Model()(x), strict=True):
        assert actual.equal(expected)


def test_its_types_are_inferred() -> None:
    given = TensorType("float32", (4, 3))
    assert infer_types("npusim_tests.gated.default", [given, None], {"scale": 1.0}) == (given,)
    head, tail = infer_types("npusim_tests.split.default", [given], {"at": 1})
    assert (head.shape, tail.shape) == ((1, 3), (3, 3))


def test_without_a_lowering_it_is_listed_as_unsupported() -> None:
    with pytest.raises(UnsupportedOpError, match=r"npusim_tests\.gated\.default"):
        npusim.compile((Model().eval(), (torch.randn(4, 3),)))


def test_an_operator_of_a_library_needs_only_its_name() -> None:
    @torch.library.custom_op("npusim_tests::theirs", mutates_args=())
    def theirs(x: Tensor) -> Tensor:
        return x + 1

    theirs.register_fake(lambda x: torch.empty_like(x))
    operator = npusim.register_op("npusim_tests.theirs")
    assert operator(torch.zeros(1)).item() == 1.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gated", "not an operator's name"),
        ("a.b.c", "not an operator's name"),
        ("aten.relu", "namespace aten is taken"),
        ("npu.conv", "namespace npu is taken"),
        ("npusim_tests.gated", "registered already"),
    ],
)
def test_names_are_checked(name: str, message: str) -> None:
    with pytest.raises(Error, match=message):
        npusim.register_op(name, _split)


def test_annotations_are_needed() -> None:
    with pytest.raises(Error, match="Annotate every parameter"):
        npusim.register_op("npusim_tests.bare", lambda x: x)


def test_an_unknown_operator_says_what_to_do() -> None:
    with pytest.raises(UnsupportedOpError, match=r"npusim\.register_op"):
        infer_types("npusim_tests.nowhere.default", [], {})

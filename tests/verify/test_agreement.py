"""Verification: agreement, disagreement, measures, and the first command that differs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.errors import Error, ShapeError, WeightMismatchError
from npusim.ir.graph import Graph
from npusim.ir.json import graph_to_json
from npusim.ops.reference import run_graph
from npusim.program.program import CompiledProgram
from npusim.verify import compare


class Net(nn.Module):
    """Three layers, of which tests exchange the middle one."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 16)
        self.middle = middle or nn.Softmax(-1)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 8] to [N, 4]."""
        return self.last(self.middle(self.first(x)))


@pytest.fixture(scope="module")
def net() -> Net:
    return Net().eval()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(2, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def graph(net: Net, x: Tensor) -> Graph:
    return npusim.extract_ir(net, (x,))


@pytest.fixture(scope="module")
def program(graph: Graph) -> CompiledProgram:
    return npusim.compile(graph)


def test_a_graph_agrees_with_its_model(net: Net, graph: Graph, x: Tensor) -> None:
    ok, report = npusim.verify_ir_with_state_dict(
        ir=graph, state_dict=net.state_dict(), original_model=net, test_inputs=(x,)
    )
    assert ok
    assert report.ok
    assert "agrees" in str(report)
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["ok"] is True


def test_the_model_may_be_without_data(net: Net, graph: Graph, x: Tensor) -> None:
    with torch.device("meta"):
        hollow = Net().eval()
    ok, _ = npusim.verify_ir_with_state_dict(
        ir=graph, state_dict=net.state_dict(), original_model=hollow, test_inputs=x
    )
    assert ok


def test_weights_missing_from_the_state_dict_are_not_the_models_own(
    net: Net, graph: Graph, x: Tensor
) -> None:
    state = net.state_dict()
    del state["last.bias"]
    with pytest.raises(WeightMismatchError, match=r"lack last\.bias"):
        npusim.verify_ir_with_state_dict(
            ir=graph, state_dict=state, original_model=net, test_inputs=x
        )


def test_another_model_is_a_no(net: Net, graph: Graph, x: Tensor) -> None:
    ok, report = npusim.verify_ir_with_state_dict(
        ir=graph,
        state_dict=net.state_dict(),
        original_model=Net(nn.ReLU()).eval(),
        test_inputs=(x,),
    )
    assert not ok
    assert "DIFFERS" in str(report)
    assert report.outputs[0].max_rel > report.outputs[0].tolerance


def test_a_program_agrees_with_its_model(net: Net, program: CompiledProgram, x: Tensor) -> None:
    state = net.state_dict()
    ok, report = npusim.verify_program(
        program, state_dict=state, test_inputs=(x,), original_model=net, threads=1
    )
    assert ok, report
    assert report.first_divergence is None
    assert npusim.verify_program(program, state_dict=state, test_inputs=(x,))[0]


def test_a_graph_is_compiled_on_the_way(net: Net, graph: Graph, x: Tensor) -> None:
    assert npusim.verify_program(graph, state_dict=net.state_dict(), test_inputs=(x,))[0]


def test_the_first_command_that_differs_is_named(
    net: Net, program: CompiledProgram, x: Tensor
) -> None:
    # The program computes softmax; its graph is made to say log softmax, so that the command and
    # its reference differ from there on.
    lowered = program.graph
    assert lowered is not None
    nodes = [
        replace(n, op="aten.log_softmax.int", attrs={"dim": -1, "dtype": None})
        if "softmax" in n.op
        else n
        for n in lowered.nodes
    ]
    assert nodes != list(lowered.nodes)
    changed = graph_to_json(replace(lowered, nodes=tuple(nodes)))
    lying = replace(program, metadata={**program.metadata, "graph": changed})
    ok, report = npusim.verify_program(lying, state_dict=net.state_dict(), test_inputs=(x,))
    assert not ok
    first = report.first_divergence
    assert first is not None
    assert first.op.startswith("aten.softmax")
    assert first.kernel == "softmax"
    assert "middle" in first.source
    assert 0 < first.command < len(program.methods[0].commands) - 1
    assert f"command {first.command} softmax" in str(report)
    assert report.to_json()["first_divergence"]["node"] == first.node


def test_what_does_not_fit_is_an_error(net: Net, program: CompiledProgram, x: Tensor) -> None:
    state = net.state_dict()
    with pytest.raises(ShapeError, match=r"takes 1 inputs \(x\), not 2"):
        npusim.verify_program(program, state_dict=state, test_inputs=(x, x), original_model=None)
    with pytest.raises(ShapeError, match=r"must be float32\[2, 8\], not float32\[3, 8\]"):
        npusim.verify_program(program, state_dict=state, test_inputs=(torch.ones(3, 8),))
    with pytest.raises(WeightMismatchError, match=r"lack first.weight, float32\[16, 8\]"):
        npusim.verify_program(program, test_inputs=(x,))
    with pytest.raises(Error, match="training mode"):
        npusim.verify_program(
            program, state_dict=state, test_inputs=(x,), original_model=Net().train()
        )
    with pytest.raises(ShapeError, match="tuple"):
        npusim.verify_program(program, state_dict=state, test_inputs="x")


def test_a_model_that_raises_is_told_in_one_line(program: CompiledProgram, x: Tensor) -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("\n  no such thing\nand a trace\nof many lines")

    for model, told in (
        (
            Raises().eval(),
            r"^Raises itself fails .*ValueError: no such thing \(.*agreement.py:\d+\)",
        ),
        (Net().eval(), r"^Net itself fails .*RuntimeError: .*shapes"),
    ):
        with pytest.raises(Error, match=told) as refused:
            npusim.verify_program(
                program, state_dict={}, original_model=model, test_inputs=(torch.ones(3, 5),)
            )
        assert "\n" not in str(refused.value)


def test_inputs_and_weights_of_a_reference_run_are_checked(graph: Graph, net: Net) -> None:
    state = net.state_dict()
    x = torch.ones(2, 8)
    assert run_graph(graph, {"x": x}, state)[0].equal(run_graph(graph, [x.numpy()], state)[0])
    for inputs, message in (
        ([], r"takes 1 inputs \(x\), not 0"),
        ({"y": x}, "x is missing"),
        ({"x": x, "y": x}, "not y"),
        ([x.double()], r"must be float32\[2, 8\], not float64\[2, 8\]"),
    ):
        with pytest.raises(ShapeError, match=message):
            run_graph(graph, inputs, state)
    with pytest.raises(WeightMismatchError, match=r"first\.weight must be"):
        run_graph(graph, [x], {**state, "first.weight": torch.ones(3)})


def test_measures() -> None:
    expected = torch.tensor([3.0, -4.0])
    result = compare("y", torch.tensor([3.0, -3.0]), expected)
    assert (result.max_abs, result.max_rel) == (1.0, 0.25)
    assert result.sqnr_db == pytest.approx(10 * math.log10(25))
    assert result.cosine == pytest.approx(21 / (5 * math.sqrt(18)))
    assert not result.ok
    assert compare("y", torch.tensor([3.0, -3.0]), expected, tolerance=0.25).ok
    equal = compare("y", expected, expected)
    assert equal.ok
    assert equal.sqnr_db == math.inf
    assert equal.to_json()["sqnr_db"] is None


@pytest.mark.parametrize(
    ("actual", "expected", "ok"),
    [
        ([math.nan, math.inf, 1.0], [math.nan, math.inf, 1.0], True),
        ([1.0, math.inf, 1.0], [math.nan, math.inf, 1.0], False),
        ([math.nan], [1.0], False),
        ([-math.inf], [math.inf], False),
        ([0.0, 0.0], [0.0, 0.0], True),
        ([0.0, 1e-9], [0.0, 0.0], False),
        ([], [], True),
    ],
)
def test_special_values(actual: list[float], expected: list[float], ok: bool) -> None:
    assert compare("y", torch.tensor(actual), torch.tensor(expected)).ok is ok


def test_integers_must_be_equal() -> None:
    big = torch.tensor([2**60, 1])
    assert compare("y", big, big).ok
    assert not compare("y", big + torch.tensor([1, 0]), big).ok
    assert not compare("y", big + torch.tensor([1, 0]), big, tolerance=1.0).ok
    assert not compare("y", torch.tensor([True]), torch.tensor([False])).ok


def test_types_must_be_equal() -> None:
    with pytest.raises(ShapeError, match=r"y is float32\[2\], but PyTorch gives float64\[2\]"):
        compare("y", torch.ones(2), torch.ones(2, dtype=torch.float64))

"""A failing model becomes a small part that fails, in a folder that anybody can run."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.errors import Error
from npusim.ir.types import TensorType
from npusim.verify.reduce import reduce, run_isolated
from npusim.verify.repro import Repro
from npusim.verify.synthetic import TensorData


class Net(nn.Module):
    """Exact operations around a softmax, whose exponentials are rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((64,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 8, 8] to [N, 64]."""
        x = torch.relu(x).transpose(1, 2).flatten(1)
        return (torch.softmax(x, -1) * self.scale).neg().flip(1)


@pytest.fixture(scope="module")
def failing() -> tuple[npusim.IR, Tensor, dict[str, Tensor]]:
    model = Net().eval()
    x = torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(1))
    return npusim.extract_ir(model, (x,)), x, dict(model.state_dict())


def test_the_part_that_fails_remains(
    failing: tuple[npusim.IR, Tensor, dict[str, Tensor]], tmp_path: Path
) -> None:
    graph, x, state = failing
    repro, failure = reduce(graph, [x], state, tolerance=1e-12)
    assert failure.kind == "differs"
    assert [node.op for node in repro.graph.nodes] == ["aten.softmax.int"]
    repro.save(tmp_path / "repro")
    assert {p.name for p in (tmp_path / "repro").iterdir()} == {
        "graph.json",
        "repro.json",
        "command.txt",
    }
    again = Repro.load(tmp_path / "repro")
    assert again.graph == repro.graph and again.data.keys() <= repro.data.keys()
    assert run_isolated(again) == failure
    exact = Repro(repro.graph, "cpu", repro.data)  # the ordinary tolerance
    assert exact.run() is None


def test_a_model_that_works_is_not_reduced(
    failing: tuple[npusim.IR, Tensor, dict[str, Tensor]],
) -> None:
    graph, x, state = failing
    with pytest.raises(Error, match="does not fail"):
        reduce(graph, [x], state)


def test_what_does_not_compile_is_reduced_to_its_node() -> None:
    class Unsupported(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            square = x @ x.mT + torch.eye(4)
            return torch.linalg.cholesky_ex(square)[0].relu()

    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    graph = npusim.extract_ir(Unsupported().eval(), (x,))
    repro, failure = reduce(graph, [x], {})
    assert failure.kind == "compile UnsupportedOpError"
    assert len(repro.graph.nodes) == 1 and "cholesky" in repro.graph.nodes[0].op


def test_a_process_that_dies_is_a_failure(
    failing: tuple[npusim.IR, Tensor, dict[str, Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = failing[0]
    dying = tmp_path / "dying"
    dying.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dying.chmod(dying.stat().st_mode | stat.S_IXUSR)
    data = {v.name: TensorData.like(torch.zeros(v.type.shape)) for v in graph.inputs}
    data |= {w.name: TensorData.like(torch.zeros(w.type.shape)) for w in graph.weights}
    monkeypatch.setattr(sys, "executable", str(dying))
    failure = run_isolated(Repro(graph, "cpu", data))
    assert failure is not None and failure.kind == "crash" and "signal 11" in failure.message


def test_a_process_that_cannot_run_says_why_in_one_line(
    failing: tuple[npusim.IR, Tensor, dict[str, Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raising = tmp_path / "raising"
    raising.write_text("#!/bin/sh\necho Traceback >&2; echo 'Boom: at last' >&2; exit 3\n")
    raising.chmod(raising.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(raising))
    graph, x, state = failing
    with pytest.raises(Error, match=r"could not be run: Boom: at last\.") as refused:
        reduce(graph, [x], state)
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize("target", ["none", "", "\udcff\udcfe"])
def test_a_target_that_is_not_there_is_no_failure_of_the_graph(target: str, tmp_path: Path) -> None:
    graph = npusim.extract_ir(nn.ReLU().eval(), (torch.ones(2),))
    with pytest.raises(npusim.TargetConstraintError, match="target"):
        reduce(graph, (torch.ones(2),), {}, target=target)
    data = {value.name: TensorData.like(torch.ones(2)) for value in graph.inputs}
    Repro(graph, target, data).save(tmp_path / "folder")
    with pytest.raises(npusim.TargetConstraintError, match="target"):
        Repro.load(tmp_path / "folder").run()


def test_messages_that_are_no_text_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = npusim.extract_ir(nn.ReLU().eval(), (torch.ones(2),))
    said = b"compile Error\n\nno file \xff\xfe\n"
    done = subprocess.CompletedProcess([], 0, stdout=said, stderr=b"")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    data = {value.name: TensorData.like(torch.ones(2)) for value in graph.inputs}
    failure = run_isolated(Repro(graph, "cpu", data))
    assert failure is not None and failure.message == "no file \ufffd\ufffd"


def test_a_defect_of_the_compiler_is_a_failure(
    failing: tuple[npusim.IR, Tensor, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a pass of npusim\nwith a trace")

    monkeypatch.setattr("npusim.verify.repro.compile", broken)
    graph = failing[0]
    data = {v.name: TensorData.like(torch.zeros(v.type.shape)) for v in graph.inputs}
    data |= {w.name: TensorData.like(torch.zeros(w.type.shape)) for w in graph.weights}
    failure = Repro(graph, "cpu", data).run()
    assert failure is not None and failure.kind == "compile KeyError"
    assert "\n" not in failure.message


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(100) * 3 + 5,
        torch.tensor([0.0, -torch.inf, 0.0, torch.nan]),
        torch.randint(-3, 90, (7, 5)),
        torch.rand(4, 4) < 0.5,
        torch.randn(33).bfloat16(),
        torch.zeros(0, 3),
        torch.full((3,), torch.inf),
        torch.randn(5, dtype=torch.complex64),
    ],
)
def test_data_are_like_what_was_measured(tensor: Tensor) -> None:
    data = TensorData.like(tensor)
    made = data.make("x", 0)
    assert made.dtype == tensor.dtype and made.shape == tensor.shape
    assert TensorData.from_json(
        json.loads(json.dumps(data.to_json(), allow_nan=False))
    ) == data or (any(v != v for v in data.values))
    assert torch.equal(torch.nan_to_num(made), torch.nan_to_num(data.make("x", 0)))
    if tensor.is_complex() or not tensor.numel():
        return
    finite = tensor[tensor.isfinite()]
    kept = made[made.isfinite()]
    if finite.numel() and kept.numel():
        assert kept.min() >= finite.min() and kept.max() <= finite.max()


def test_a_damaged_folder_is_refused(
    failing: tuple[npusim.IR, Tensor, dict[str, Tensor]], tmp_path: Path
) -> None:
    graph = failing[0]
    data = {v.name: TensorData(v.type) for v in (*graph.inputs, *graph.weights)}
    Repro(graph, "cpu", data).save(tmp_path)
    path = tmp_path / "repro.json"
    good = json.loads(path.read_text())
    for change, message in (
        ({"format": 99}, "format 99"),
        ({"data": {}}, "does not describe"),
        ({"data": {**good["data"], "x": {"dtype": "float32"}}}, "malformed"),
        ({"seed": "many"}, "malformed"),
    ):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(Error, match=message):
            Repro.load(tmp_path)
    path.write_text("{")
    with pytest.raises(Error, match="malformed"):
        Repro.load(tmp_path)
    path.unlink()
    with pytest.raises(Error, match="Cannot read"):
        Repro.load(tmp_path)
    assert TensorData(TensorType("float32", (2,))).make("x", 1).shape == (2,)

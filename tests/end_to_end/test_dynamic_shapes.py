"""One program for all sizes up to a bound agrees with PyTorch at 1, below the bound and at it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import npusim
from tests.end_to_end.dynamic_models import MODELS, Dynamic


def extracted(case: Dynamic) -> tuple[torch.nn.Module, npusim.IR]:
    """Returns a seeded model and its graph."""
    torch.manual_seed(0)
    model = case.model().eval()
    example = case.arguments(*case.sizes[0])
    return model, npusim.extract_ir(model, example, dynamic_shapes=case.shapes)


@pytest.mark.parametrize("name", MODELS)
def test_all_sizes_agree(name: str, tmp_path: Path) -> None:
    case = MODELS[name]
    model, graph = extracted(case)
    graph.save(tmp_path / "graph.json")
    npusim.IR.load(tmp_path / "graph.json").save(tmp_path / "again.json")  # NaN equals nothing
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "graph.json").read_bytes()
    path = tmp_path / "program.npubin"
    npusim.compile(graph).save(path)
    assert npusim.CompiledProgram.load(path).to_bytes() == path.read_bytes()
    session = npusim.load(path, weights=model.state_dict())
    relative, absolute = case.tolerance
    for sizes in case.sizes:
        arguments = case.arguments(*sizes)
        with torch.no_grad():
            expected = model(*arguments)
        results = session(*arguments)
        wanted = expected.values() if isinstance(expected, dict) else expected
        wanted = (wanted,) if isinstance(wanted, torch.Tensor) else tuple(wanted)
        assert len(results) == len(wanted)
        for got, want in zip(results, wanted, strict=True):
            where = f"{name} at {sizes}: ".__add__
            torch.testing.assert_close(got, want, rtol=relative, atol=absolute, msg=where)


def test_no_threads_and_any_instruction_set_give_the_same() -> None:
    """Tasks are planned for the sizes of the call, whoever computes them."""
    case = MODELS["bert"]
    model, graph = extracted(case)
    program = npusim.compile(graph)
    one, three = (
        npusim.load(program, weights=model.state_dict(), device="cpu", threads=n) for n in (1, 3)
    )
    for sizes in case.sizes[1:4]:
        arguments = case.arguments(*sizes)
        for a, b in zip(one(*arguments), three(*arguments), strict=True):
            assert torch.equal(a, b)


def test_a_fixed_graph_gives_what_the_open_one_gives() -> None:
    case = MODELS["decoder"]
    model, graph = extracted(case)
    fixed = npusim.specialize(graph, {"batch": 3, "seq": 17})
    assert not fixed.symbols
    arguments = case.arguments(3, 17)
    sessions = (
        npusim.load(npusim.compile(ir), weights=model.state_dict()) for ir in (graph, fixed)
    )
    a, b = (session(*arguments)[0] for session in sessions)
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_verify_compares_at_the_sizes_of_its_inputs() -> None:
    case = MODELS["perceptron"]
    model, graph = extracted(case)
    ok, report = npusim.verify_program(
        npusim.compile(graph),
        state_dict=model.state_dict(),
        test_inputs=case.arguments(3),
        original_model=model,
        bisect=True,
    )
    assert ok, report
    ok, report = npusim.verify_ir_with_state_dict(
        ir=graph,
        state_dict=model.state_dict(),
        original_model=model,
        test_inputs=case.arguments(5),
    )
    assert ok, report


def test_sizes_to_prepare_are_sizes_of_the_model() -> None:
    _, graph = extracted(MODELS["perceptron"])
    for sizes, words in (
        ({"bach": 2}, r"no symbolic size 'bach'; it has: batch 1 … 8"),
        ({"batch": 9}, r"batch is 9; possible is batch 1 … 8"),
    ):
        with pytest.raises(npusim.ShapeError, match=words):
            npusim.compile(graph, sizes=[sizes])
    assert npusim.check(graph).coverage == 1.0

"""Programs, plans, weights and sessions by pickle and copy; no pickle runs code in any verb."""

from __future__ import annotations

import copy
import copyreg
import pickle
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim import _runtime
from tests.runtime import programs, toy_language_model
from tests.runtime.test_weights import write_safetensors

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16)


def again(value):
    return pickle.loads(pickle.dumps(value))


def test_a_program_before_and_after_it_was_loaded() -> None:
    program = programs.mlp()
    assert again(program) == program
    before = pickle.dumps(program)
    session = npusim.load(program, programs.mlp_weights())
    assert pickle.dumps(program) == before
    (y,) = npusim.load(again(program), programs.mlp_weights())(X)
    np.testing.assert_array_equal(y, session(X)[0])
    assert copy.deepcopy(program) == program
    assert copy.copy(program) is program


def test_a_damaged_program_in_a_pickle_is_refused() -> None:
    damaged = pickle.dumps(programs.mlp()).replace(b"NPUB", b"NPUC")
    with pytest.raises(npusim.ProgramFormatError):
        pickle.loads(damaged)
    native = _runtime.Program.from_bytes(programs.mlp().to_bytes())
    assert again(native).to_bytes() == native.to_bytes()


@pytest.mark.parametrize("form", ["tensors", "file", "copied file"])
def test_a_session(form: str, tmp_path: Path) -> None:
    state = programs.mlp_weights()
    path = write_safetensors(tmp_path / "w.safetensors", state)
    source = state if form == "tensors" else path
    session = npusim.load(
        programs.mlp(), source, npusim.Device(threads=3), copy=form == "copied file"
    )
    (y,) = session(X)
    for twin in (again(session), copy.deepcopy(session), copy.copy(session)):
        assert type(twin) is npusim.Session
        np.testing.assert_array_equal(twin(X)[0], y)
        assert twin.device.description == session.device.description
    assert copy.deepcopy(session).weights is session.weights


def test_weights_of_a_file_are_loaded_from_it_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_safetensors(tmp_path / "w.safetensors", programs.mlp_weights())
    pickled = pickle.dumps(npusim.load(programs.mlp(), "w.safetensors"))
    monkeypatch.chdir("/")
    assert pickle.loads(pickled)(X)
    (tmp_path / "w.safetensors").unlink()
    with pytest.raises(npusim.Error, match=r"w\.safetensors"):
        pickle.loads(pickled)


def test_prepared_weights_are_for_devices_of_a_kind() -> None:
    kinds = _runtime.isa_names()
    if len(kinds) < 2:
        pytest.skip("this processor has one instruction set")
    session = npusim.load(programs.mlp(), programs.mlp_weights(), npusim.Device(isa=kinds[0]))
    make, parts = copyreg.dispatch_table[_runtime.Weights](session.weights)
    program, device, *prepared = parts
    make(program, device, *prepared)
    with pytest.raises(npusim.WeightMismatchError, match="prepared for"):
        make(program, npusim.Device(isa=kinds[1]), *prepared)


def test_the_state_of_a_session_goes_with_it() -> None:
    session = npusim.load(programs.memory_of_last_call(2))
    session(np.array([1, 2], np.float32))
    twins = (again(session), copy.deepcopy(session))
    session(np.array([3, 4], np.float32))
    for twin in twins:
        np.testing.assert_array_equal(twin(np.zeros(2, np.float32))[0], [1, 2])


def test_states_and_buffers_and_devices() -> None:
    device = npusim.Device(threads=2)
    state = npusim.State(toy_language_model.program(), device)
    state.set("position", np.array([5]))
    for twin in (again(state), copy.copy(state), copy.deepcopy(state)):
        assert type(twin) is npusim.State
        np.testing.assert_array_equal(twin.get("position"), [5])
    buffer = npusim.DeviceBuffer.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3), device)
    np.testing.assert_array_equal(again(buffer).to_numpy(), buffer.to_numpy())
    assert copy.deepcopy(device) is device
    assert again(device).description == device.description


def test_what_cannot_be_pickled_says_so() -> None:
    session = npusim.load(programs.mlp(), programs.mlp_weights())
    native = session.weights
    program = _runtime.Program.from_bytes(programs.mlp().to_bytes())
    bare = _runtime.Weights.from_prepared(program, session.device, *native.prepared())
    with pytest.raises(npusim.Error, match="load_weights"):
        pickle.dumps(bare)
    with pytest.raises(npusim.WeightMismatchError, match="another program"):
        _runtime.Weights.from_prepared(program, session.device, b"", [])


def test_reprs_are_short() -> None:
    program = programs.mlp()
    session = npusim.load(program, programs.mlp_weights())
    for value in (program, session, session.executor, session.device):
        assert len(repr(value)) < 300
        assert type(value).__name__ in repr(value)
    for value in (program, session):
        shown = value._repr_html_()
        assert "<table>" in shown and "float32[1, 16]" in shown.replace("</td><td>", "")


def test_language_models_and_their_sessions() -> None:
    model = npusim.LanguageModel.load(toy_language_model.program(), toy_language_model.weights())
    session = model.new_session()
    session.append([1, 2, 3])
    assert copy.deepcopy(model) is model
    for twin in (again(session), copy.copy(session), copy.deepcopy(session)):
        assert twin.tokens == [1, 2, 3]
        np.testing.assert_array_equal(twin.logits, session.logits)
        twin.append([4])
        assert session.tokens == [1, 2, 3]


@pytest.mark.parametrize("side", ["native", "pytorch"])
def test_plans_and_what_runs_them(side: str) -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def forward(self, x):
            return (x @ x).relu() if side == "native" else torch.linalg.det(x)

    graph = npusim.extract_ir(Net().eval(), (torch.eye(3),))
    plan = npusim.partition(graph)
    assert {p.executor for p in plan.partitions} == {side}
    before = pickle.dumps(plan)
    x = torch.full((3, 3), 2.0) + torch.eye(3)
    expected = npusim.DAGExecutor(plan, summary=False)(x)[0]
    for twin in (pickle.loads(before), again(plan), copy.deepcopy(plan)):
        assert torch.equal(npusim.DAGExecutor(twin, summary=False)(x)[0], expected)
    for value in (graph, plan, plan.partitions[0]):
        assert len(repr(value)) < 300
    for value in (graph, plan):
        shown = value._repr_html_()
        assert "<table>" in shown and "data:image/svg+xml" in shown
    module = npusim.Module("m", {"forward": graph})
    assert "<table>" in module._repr_html_() and len(repr(module)) < 300
    assert again(graph) == graph

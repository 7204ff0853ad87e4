"""Sessions on a device as Apple's GPUs are: nothing takes its memory for addresses, or its results
for computed because the host could read them (tests/cpp/unified_device.h)."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import npusim
from npusim import _runtime
from npusim.program.program import BufferKind
from npusim.runtime import DeviceBuffer, Executor, State
from tests.runtime import programs

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "tests/runtime/unified_device.cpp", ROOT / "cpp/runtime/device.cpp")


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    pybind11 = pytest.importorskip("pybind11", reason="building the test device needs pybind11")
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("building the test device needs a C++ compiler")
    library = tmp_path_factory.mktemp("unified") / "unified_device.so"
    folders = [ROOT, pybind11.get_include(), sysconfig.get_path("include")]
    options = ["-std=c++20", "-O0", "-shared", "-fPIC", "-fvisibility=hidden", "-o", library]
    if sysconfig.get_platform().startswith("macosx"):
        options += ["-undefined", "dynamic_lookup"]
    command = [compiler, *options, *(f"-I{folder}" for folder in folders), *SOURCES]
    subprocess.run(list(map(str, command)), check=True)
    spec = importlib.util.spec_from_file_location("unified_device", library)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


Open = Callable[..., _runtime.Device]


@pytest.fixture
def unified(module: ModuleType) -> Open:
    def make(can_fail: bool = False) -> _runtime.Device:
        device: _runtime.Device = module.device(npusim.Device("cpu", threads=2), can_fail)
        return device

    return make


def test_it_says_what_it_is(unified: Open) -> None:
    device = unified()
    assert device.host_visible and not device.synchronous and not device.uses_host_memory
    assert not device.has_streams and device.stream == 0
    assert device.torch_name is None and not device.speaks_cuda and not device.holds(4096)
    device.wait_for(0)
    device.order(0, 0)
    for wrong in (lambda: device.wait_for(5), lambda: device.order(0, 5)):
        with pytest.raises(npusim.DeviceError, match="the device unified has no streams"):
            wrong()
    cpu = npusim.Device("cpu")
    assert cpu.host_visible and cpu.synchronous and cpu.uses_host_memory and cpu.torch_name == "cpu"


def test_arrays_go_there_and_come_back(unified: Open) -> None:
    state = programs.mlp_weights()
    session = npusim.load(programs.mlp(3), state, unified())
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((3, 16)).astype(np.float32)
        expected = programs.mlp_reference(state, x)
        (y,) = session(x)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
        (y,) = session(x=np.asfortranarray(x))
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_padded_results_come_without_their_padding(unified: Open) -> None:
    state = programs.mlp_weights((16, 5))
    session = npusim.load(programs.mlp(3, (16, 5), alloc=(3, 8)), state, unified())
    x = np.ones((3, 16), np.float32)
    np.testing.assert_allclose(session(x)[0], programs.mlp_reference(state, x), rtol=1e-5)


def test_tensors_of_torch_are_copied(unified: Open) -> None:
    torch = pytest.importorskip("torch")
    device = unified()
    session = npusim.load(programs.swap(3), device=device)
    p, q = torch.arange(3.0), torch.full((3,), 9.0)
    first, second = session(p, q)
    assert torch.equal(first, q) and torch.equal(second, p)
    there = DeviceBuffer.from_dlpack(p, device)
    p[:] = -1.0
    assert there.to_numpy().tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(npusim.ShapeError, match="unified cannot use these 12 bytes"):
        DeviceBuffer.from_dlpack(p, device, copy=False)


def test_buffers_are_lent_to_the_host(unified: Open) -> None:
    """What the host sees is the host's for other libraries, when it has been computed."""
    torch = pytest.importorskip("torch")
    device = unified()
    session = npusim.load(programs.swap(3), device=device)
    p = DeviceBuffer.from_numpy(np.arange(3, dtype=np.float32), device)
    first, second = session(p, p)
    assert second.__dlpack_device__() == (1, 0)
    lent = torch.from_dlpack(second)
    assert lent.tolist() == [0.0, 1.0, 2.0] and torch.from_dlpack(first).tolist() == lent.tolist()
    lent[:] = 7.0
    assert second.to_numpy().tolist() == [7.0] * 3
    del first, second, session, p, device
    assert lent.tolist() == [7.0] * 3
    for dtype, shape in (("bfloat16", (2,)), ("bool", ()), ("int64", (0, 4))):
        empty = torch.from_dlpack(DeviceBuffer(unified(), dtype, shape))
        assert empty.dtype is getattr(torch, dtype) and tuple(empty.shape) == shape


def test_buffers_stay_there_and_nobody_waits(unified: Open, module: ModuleType) -> None:
    device = unified()
    session = npusim.load(programs.swap(3), device=device)
    p = DeviceBuffer.from_numpy(np.arange(3, dtype=np.float32), device)
    q = DeviceBuffer.from_numpy(np.full(3, 9, np.float32), device)
    for _ in range(3):
        p, q = session(p, q)
    assert module.waiting(device) >= 3
    assert p.to_numpy().tolist() == [9, 9, 9]
    assert q.to_numpy().tolist() == [0, 1, 2]
    assert module.waiting(device) == 0
    session(p, q)
    device.synchronize()
    assert module.waiting(device) == 0


def test_a_buffer_that_the_host_sees_is_waited_for(unified: Open, module: ModuleType) -> None:
    device = unified()
    executor = Executor(programs.swap(3), device)
    p = DeviceBuffer.from_numpy(np.arange(3, dtype=np.float32), device)
    q = DeviceBuffer.from_numpy(np.full(3, 9, np.float32), device)
    outputs = {spec.name: DeviceBuffer.for_result(device, spec) for spec in executor.outputs()}
    names = [spec.name for spec in executor.inputs()]
    executor.run(dict(zip(names, (p, q), strict=True)), outputs=outputs)
    assert module.waiting(device) > 0
    shown = [np.asarray(buffer) for buffer in outputs.values()]
    assert [s.tolist() for s in shown] == [[9, 9, 9], [0, 1, 2]]
    executor.run(dict(zip(names, (q, p), strict=True)), outputs=outputs)
    assert [s.tolist() for s in shown] == [[0, 1, 2], [9, 9, 9]]


def test_memory_has_no_addresses(unified: Open) -> None:
    device = unified()
    buffer = DeviceBuffer(device, "float32", (4,))
    refused: tuple[Callable[[], object], ...] = (
        lambda: buffer.address,
        lambda: DeviceBuffer(device, "float32", (4,), address=4096, owner=None),
        lambda: _runtime.Executor(
            npusim.runtime.native.native_program(programs.swap(3)), device
        ).run_at(0, [4096, 4096], [4096, 4096], None, 0),
    )
    for action in refused:
        with pytest.raises(npusim.Error, match="memory of the device unified has no addresses"):
            action()
    with pytest.raises(npusim.Error, match="cannot use these 16 bytes"):
        _runtime.DeviceBuffer(device, "float32", (4,), array=np.zeros(4, np.float32), copy=False)
    assert not hasattr(buffer, "__cuda_array_interface__")


def test_states_are_read_when_they_are_there(unified: Open) -> None:
    device = unified()
    program = programs.memory_of_last_call(3)
    executor = Executor(program, device)
    one, other = State(program, device), State(program, device)
    (spec,) = executor.inputs()
    for value, state, before in ((1, one, 0), (2, one, 1), (3, other, 0), (4, one, 2)):
        x = DeviceBuffer.from_numpy(np.full(3, value, np.float32), device)
        (y,) = executor.run({spec.name: x}, state=state).values()
        assert y.to_numpy().tolist() == [before] * 3
    session = npusim.load(program, device=device)
    assert [session(np.full(3, n, np.float32))[0][0] for n in (5, 6, 7)] == [0, 5, 6]


def test_commands_are_observed_and_changed(unified: Open) -> None:
    device = unified()
    program = programs.mlp(1, (16, 16, 16))
    weights = npusim.load_weights(programs.mlp_weights((16, 16, 16)), program, device)
    executor = Executor(program, device)
    (spec,) = executor.inputs()
    x = DeviceBuffer.from_numpy(np.ones((1, 16), np.float32), device)
    hidden = next(i for i, b in enumerate(program.buffers) if b.kind is BufferKind.TEMP)
    seen = []

    def after(command: int) -> None:
        seen.append(executor.read_buffer(hidden, "float32"))
        if command == 0:
            executor.write_buffer(hidden, bytes(64))

    (y,) = executor.observe(after, {spec.name: x}, weights).values()
    assert seen[0] is not None and seen[0].any()
    assert seen[1] is not None and not seen[1].any()
    bias = programs.mlp_weights((16, 16, 16))["b1"]
    np.testing.assert_array_equal(y.to_numpy()[0], bias)  # all that zeros leave
    assert min(executor.time({spec.name: x}, weights)) > 0


def test_failures_are_told(unified: Open) -> None:
    table = {"table": np.ones((10, 4), np.float32)}
    session = npusim.load(programs.lookup(), table, unified(can_fail=True))
    for _ in range(2):
        with pytest.raises(npusim.Error, match="11"):
            session(np.array([1, 11, 2]))
        assert (session(np.array([1, 9, 2]))[0] == 1).all()


def test_sizes_of_calls_are_free(unified: Open) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU()).eval()
    rows = torch.export.Dim("rows", min=1, max=9)
    graph = npusim.extract_ir(model, (torch.zeros(3, 6),), dynamic_shapes=({0: rows},))
    session = npusim.load(npusim.compile(graph), model.state_dict(), unified())
    for count in (1, 9, 4):
        x = torch.randn(count, 6)
        torch.testing.assert_close(session(x)[0], model(x))
        buffer = DeviceBuffer.from_numpy(x.numpy(), session.device)
        torch.testing.assert_close(torch.from_numpy(session(buffer)[0].to_numpy()), model(x))


def test_plans_cross_to_the_host_and_back(unified: Open) -> None:
    torch = pytest.importorskip("torch")
    from tests.partition.models import EAGER_DEVICE

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.first(x).relu()
            spd = y.T @ y + torch.eye(8)
            return self.last(torch.linalg.eigvalsh(spd).unsqueeze(0)), y

    model = Net().eval()
    x = torch.randn(5, 8)
    plan = npusim.partition(npusim.extract_ir(model, (x,)), costs=EAGER_DEVICE)
    assert {p.executor for p in plan.partitions} == {"native", "pytorch"}
    executor = npusim.DAGExecutor(plan, unified(), summary=False)
    executor.load_weights(model.state_dict())
    for given in (x, x * 2):
        for y, expected in zip(executor(given), model(given), strict=True):
            torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
        for y, expected in zip(executor(given.numpy()), model(given), strict=True):
            np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-4, atol=1e-4)


def test_programs_are_verified_on_it(unified: Open) -> None:
    torch = pytest.importorskip("torch")
    from npusim.verify.native_run import NativeRun

    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU()).eval()
    x = torch.randn(3, 6)
    program = npusim.compile(npusim.extract_ir(model, (x,)))
    run = NativeRun(program, unified(), (x,), model.state_dict())
    torch.testing.assert_close(run.run()[0], model(x))

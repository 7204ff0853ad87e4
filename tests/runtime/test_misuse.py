"""None, objects without __init__, two threads, and use after the end: refused, never a crash."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import npusim
from npusim import _runtime
from tests.runtime import programs

CLASSES = [
    value
    for value in vars(_runtime).values()
    if isinstance(value, type) and value.__module__ == "npusim._runtime"
]
PYTHON_CLASSES = [npusim.Device, npusim.DeviceBuffer, npusim.Session, npusim.State]


def members(kind: type) -> list[str]:
    return [name for name in dir(kind) if not hasattr(object, name)]


def test_all_classes_are_here() -> None:
    assert {"Device", "Executor", "Session", "LanguageSession", "Arrival"} <= {
        kind.__name__ for kind in CLASSES
    }


@pytest.mark.parametrize("kind", [*CLASSES, *PYTHON_CLASSES], ids=lambda kind: kind.__qualname__)
def test_objects_without_init_and_none_are_refused_everywhere(kind: type) -> None:
    for name in members(kind):
        if name in ("__copy__", "__deepcopy__", "__setstate__"):
            continue
        member = getattr(kind, name)
        for victim in (kind.__new__(kind), None):
            with pytest.raises((TypeError, AttributeError, BufferError, npusim.Error)):
                if isinstance(member, property):
                    member.fget(victim)
                elif callable(member):
                    member(victim)
                else:
                    raise TypeError


def test_objects_without_init_are_refused_as_arguments() -> None:
    program, device = programs.identity((2,)), npusim.Device(threads=1)
    x = npusim.DeviceBuffer.from_numpy(np.ones(2, np.float32), device)
    executor = npusim.Executor(program, device)
    bare = {kind: kind.__new__(kind) for kind in CLASSES}
    with pytest.raises(TypeError, match="__init__"):
        npusim.Executor(program, bare[_runtime.Device])
    with pytest.raises(TypeError, match="__init__"):
        executor.run({"x": x}, bare[_runtime.Weights])
    with pytest.raises(TypeError, match="__init__"):
        executor.run({"x": x}, state=bare[_runtime.State])
    with pytest.raises((TypeError, npusim.Error)):
        npusim.load(program)(npusim.DeviceBuffer.__new__(npusim.DeviceBuffer))
    with pytest.raises((TypeError, npusim.Error)):
        npusim.load(program)(bare[_runtime.DeviceBuffer])
    with pytest.raises((TypeError, BufferError)):
        memoryview(bare[_runtime.Arrival])


@pytest.mark.parametrize(
    "call",
    [
        lambda program, device: npusim.load(program, device=None),
        lambda program, device: npusim.load_weights({}, program, None),
        lambda program, device: npusim.Executor(program, None),
        lambda program, device: npusim.State(program, None),
        lambda program, device: npusim.LanguageModel.load(program, device=None),
        lambda program, device: npusim.load(None),
        lambda program, device: npusim.load_weights({}, None, device),
        lambda program, device: npusim.load_weights(3, program, device),
        lambda program, device: npusim.Executor(None, device),
        lambda program, device: npusim.load(program, device=7),
    ],
)
def test_none_is_no_device_and_no_program(call) -> None:
    with pytest.raises(npusim.Error, match=r"not a NoneType|not a int"):
        call(programs.identity((2,)), npusim.Device(threads=1))


@pytest.mark.parametrize(
    "make",
    [
        lambda device: npusim.DeviceBuffer(None, "float32", (2,)),
        lambda device: npusim.DeviceBuffer(device, "float32", None),
        lambda device: npusim.DeviceBuffer(device, None, (2,)),
        lambda device: _runtime.LanguageModel(None, device, None),
        lambda device: _runtime.LanguageSession(None),
        lambda device: _runtime.Session(None, None, 0),
        lambda device: _runtime.Weights.from_file(None, device, "x"),
        lambda device: _runtime.Weights.from_memory(None, None, {}),
    ],
)
def test_none_is_no_native_object(make) -> None:
    with pytest.raises(TypeError):
        make(npusim.Device(threads=1))


def test_buffers_of_a_run_are_gone_with_it() -> None:
    builder = programs.Builder()
    x, y = builder.input("x", (64,)), builder.output("y", (64,))
    between = builder.buffer(programs.BufferKind.TEMP, 256)
    builder.copy(x, between, 64)
    builder.copy(between, y, 64)
    device = npusim.Device(threads=1)
    executor = npusim.Executor(builder.build(), device)
    given = npusim.DeviceBuffer.from_numpy(np.ones(64, np.float32), device)
    seen: list[float] = []
    executor.observe(lambda _: seen.append(executor.read_buffer(x, "float32")[0]), {"x": given})
    assert seen == [1, 1]
    executor.run({"x": given})
    del given
    assert executor.read_buffer(x) is None and executor.read_buffer(y) is None
    np.testing.assert_array_equal(executor.read_buffer(between, "float32"), np.ones(64))
    with pytest.raises(npusim.ShapeError, match="no memory of the executor's own"):
        executor.write_buffer(y, bytes(256))


def test_buffers_are_another_threads_while_it_observes() -> None:
    program = programs.identity((64,))
    device = npusim.Device(threads=1)
    executor = npusim.Executor(program, device)
    given = npusim.DeviceBuffer.from_numpy(np.ones(64, np.float32), device)
    caught: list[BaseException] = []

    def peek() -> None:
        try:
            executor.read_buffer(0)
        except npusim.DeviceError as error:
            caught.append(error)

    def after(_: int) -> None:
        thread = threading.Thread(target=peek)
        thread.start()
        thread.join()

    executor.observe(after, {"x": given})
    assert len(caught) == 1


def test_two_threads_with_tensors_of_two_libraries() -> None:
    torch = pytest.importorskip("torch")
    device = npusim.Device(threads=1)
    session = npusim.load(programs.identity((64,)), device=device)
    values = np.arange(64, dtype=np.float32)
    kinds = {
        "torch": torch.from_numpy(values),
        "buffer": npusim.DeviceBuffer.from_numpy(values, device),
        "own": npusim.DeviceBuffer(device, "float32", (64,)),
        "numpy": values,
    }
    kinds["own"].write(values)
    wrong: list[str] = []

    def work(name: str) -> None:
        for _ in range(2000):
            try:
                y = session(kinds[name])[0]
            except npusim.DeviceError:
                continue
            except BaseException as error:
                wrong.append(repr(error))
                return
            if type(y) is not type(kinds[name]) or np.asarray(y)[5] != 5:
                wrong.append(f"{name}: {y!r}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(name,)) for name in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


LIMITED = """
    import resource, npusim._runtime
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), resource.RLIM_INFINITY))
    try: npusim.Device(threads=512)
    except npusim.DeviceError as error: print(error)
    print(npusim.Device(threads=2).description)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_threads_that_the_system_does_not_give() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "of 512 threads" in done.stdout and "2 threads" in done.stdout


@pytest.mark.parametrize("threads", range(1, 34))
def test_thread_counts_compute_the_same_bits(threads: int) -> None:
    sizes = (64, 128, 64)
    x = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    program, state = programs.mlp(32, sizes), programs.mlp_weights(sizes)
    expected = npusim.load(program, state, threads=1)(x)[0]
    np.testing.assert_array_equal(npusim.load(program, state, threads=threads)(x)[0], expected)

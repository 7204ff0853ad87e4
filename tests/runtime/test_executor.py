"""Executors: explicit buffers, observation, and programs that must not load."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

import npusim
from npusim import DeviceBuffer
from npusim.program.program import Access, BufferKind
from tests.runtime import programs


@pytest.fixture
def device() -> npusim.Device:
    return npusim.Device("cpu", threads=2)


def test_the_long_way(device: npusim.Device) -> None:
    program, state = programs.mlp(5), programs.mlp_weights()
    weights = npusim.load_weights(state, program, device)
    executor = npusim.Executor(program, device)
    array = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    x = DeviceBuffer.from_numpy(array, device, spec=program.input_specs[0])
    out = executor.run(inputs={"x": x}, weights=weights)
    y = out["output"].to_numpy(spec=program.output_specs[0])
    np.testing.assert_allclose(y, programs.mlp_reference(state, array), rtol=1e-5, atol=1e-5)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    program, state = programs.mlp(300, (64, 64, 64)), programs.mlp_weights((64, 64, 64))
    x = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    results = [npusim.load(program, state, threads=n)(x)[0] for n in (1, 2, 5)]
    assert all((r == results[0]).all() for r in results)


def test_weights_serve_several_executors(device: npusim.Device) -> None:
    program, state = programs.mlp(), programs.mlp_weights()
    weights = npusim.load_weights(state, program, device)
    x = np.ones((1, 16), np.float32)
    for _ in range(3):
        (y,) = npusim.load(program, weights, device)(x)
        np.testing.assert_allclose(y, programs.mlp_reference(state, x), rtol=1e-5, atol=1e-5)


def test_weights_can_be_exchanged_between_runs(device: npusim.Device) -> None:
    program = programs.mlp()
    executor = npusim.Executor(program, device)
    x = np.ones((1, 16), np.float32)
    buffer = DeviceBuffer.from_numpy(x, device)
    for seed in (0, 1, 0):
        state = programs.mlp_weights(seed=seed)
        weights = npusim.load_weights(state, program, device)
        y = executor.run({"x": buffer}, weights)["output"].to_numpy()
        np.testing.assert_allclose(y, programs.mlp_reference(state, x), rtol=1e-5, atol=1e-5)


def test_an_output_that_is_also_an_input(device: npusim.Device) -> None:
    executor = npusim.Executor(programs.reversal(6), device)
    x = DeviceBuffer.from_numpy(np.arange(6, dtype=np.float32), device)
    out = executor.run({"x": x}, outputs={"output": x})
    assert out["output"] is x
    assert (x.to_numpy() == np.arange(6)[::-1]).all()
    assert (out["same"].to_numpy() == np.arange(6)).all()


def test_an_output_that_overlaps_an_input_in_part(device: npusim.Device) -> None:
    executor = npusim.Executor(programs.reversal(4), device)
    memory = np.arange(6, dtype=np.float32)
    x = DeviceBuffer.from_numpy(memory[:4], device)
    y = DeviceBuffer.from_numpy(memory[2:], device)
    same = executor.run({"x": x}, outputs={"output": y})["same"]
    assert (memory == [0, 1, 3, 2, 1, 0]).all()
    assert (same.to_numpy() == [0, 1, 2, 3]).all()


def test_outputs_that_overlap_are_refused(device: npusim.Device) -> None:
    executor = npusim.Executor(programs.swap(4), device)
    x = DeviceBuffer.from_numpy(np.ones(4, np.float32), device)
    y = DeviceBuffer(device, "float32", (4,))
    with pytest.raises(npusim.ShapeError, match="two outputs"):
        executor.run({"p": x, "q": x}, outputs={"first": y, "second": y})


def test_observation_taps_every_command(device: npusim.Device) -> None:
    program, state = programs.mlp(3), programs.mlp_weights()
    weights = npusim.load_weights(state, program, device)
    executor = npusim.Executor(program, device)
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    inputs = {"x": DeviceBuffer.from_numpy(x, device)}
    plain = executor.run(inputs, weights)["output"].to_numpy()
    written = [command.operands[-1].buffer for command in program.method().commands]
    taps = []

    def tap(index: int) -> None:
        values = executor.read_buffer(written[index], "float32")
        assert values is not None
        taps.append(values)

    observed = executor.observe(tap, inputs, weights)["output"].to_numpy()
    assert (observed == plain).all()
    first = np.maximum(x.astype(np.float64) @ state["w0"].T + state["b0"], 0)
    np.testing.assert_allclose(taps[0].reshape(3, 16), first, rtol=1e-5, atol=1e-5)
    assert (taps[2].reshape(3, 16) == plain).all()


def test_every_command_is_timed(device: npusim.Device) -> None:
    program, state = programs.mlp(3), programs.mlp_weights()
    weights = npusim.load_weights(state, program, device)
    executor = npusim.Executor(program, device)
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    inputs = {"x": DeviceBuffer.from_numpy(x, device)}
    plain = executor.run(inputs, weights)["output"].to_numpy()
    y = DeviceBuffer(device, "float32", (3, 16))
    seconds = executor.time(inputs, weights, outputs={"output": y})
    assert len(seconds) == len(program.method().commands)
    assert all(0 < value < 60 for value in seconds)
    assert (y.to_numpy() == plain).all()


def test_an_exception_in_the_observer_ends_the_run(device: npusim.Device) -> None:
    executor = npusim.Executor(programs.swap(4), device)
    x = DeviceBuffer.from_numpy(np.ones(4, np.float32), device)
    seen = []

    def stop(index: int) -> None:
        seen.append(index)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.observe(stop, {"p": x, "q": x})
    assert seen == [0]
    executor.run({"p": x, "q": x})  # and leaves the executor usable


def test_an_executor_in_use_refuses_a_second_thread(device: npusim.Device) -> None:
    executor = npusim.Executor(programs.swap(4), device)
    x = DeviceBuffer.from_numpy(np.ones(4, np.float32), device)
    errors: list[Exception] = []

    def other() -> None:
        try:
            executor.run({"p": x, "q": x})
        except npusim.DeviceError as error:
            errors.append(error)

    def during(index: int) -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    executor.observe(during, {"p": x, "q": x})
    assert len(errors) == 2 and "another thread" in str(errors[0])


def test_wrong_buffers_are_refused(device: npusim.Device) -> None:
    executor = npusim.Executor(programs.swap(4), device)
    x = DeviceBuffer.from_numpy(np.ones(4, np.float32), device)
    short = DeviceBuffer.from_numpy(np.ones(3, np.float32), device)
    ints = DeviceBuffer.from_numpy(np.ones(4, np.int32), device)
    elsewhere = DeviceBuffer.from_numpy(np.ones(4, np.float32), npusim.Device("cpu", threads=1))
    frozen = np.ones(4, np.float32)
    frozen.flags.writeable = False
    locked = DeviceBuffer.from_numpy(frozen, device)
    for inputs, words in [
        ({"p": x}, "missing input q"),
        ({"p": x, "q": x, "r": x}, "unknown input r"),
        ({"p": x, "q": short}, r"'q' is float32\[3\]"),
        ({"p": ints, "q": x}, r"'p' is int32\[4\]"),
        ({"p": x, "q": elsewhere}, "another device"),
        ({"p": x, "q": np.ones(4)}, "not a DeviceBuffer"),
    ]:
        with pytest.raises(npusim.ShapeError, match=words):
            executor.run(inputs)
    for outputs, words in [({"third": x}, "unknown output"), ({"first": locked}, "read only")]:
        with pytest.raises(npusim.ShapeError, match=words):
            executor.run({"p": x, "q": x}, outputs=outputs)
    with pytest.raises(npusim.ShapeError, match="no method decode; it has: forward"):
        executor.run({"p": x, "q": x}, method="decode")


def test_weights_of_another_program_are_refused(device: npusim.Device) -> None:
    state = programs.mlp_weights()
    x = {"x": DeviceBuffer.from_numpy(np.ones((1, 16), np.float32), device)}
    executor = npusim.Executor(programs.mlp(), device)
    others = npusim.load_weights(state, programs.mlp(), device)
    with pytest.raises(npusim.WeightMismatchError, match="another program or device"):
        executor.run(x, others)
    with pytest.raises(npusim.WeightMismatchError, match="has weights"):
        executor.run(x)


def test_unknown_kernels_are_all_named(device: npusim.Device) -> None:
    program = programs.swap(4)
    names = ("teleport", "vanish")
    kernels = tuple(dataclasses.replace(program.kernels[0], name=name) for name in names)
    commands = tuple(
        dataclasses.replace(c, kernel=i) for i, c in enumerate(program.method().commands)
    )
    method = dataclasses.replace(program.method(), commands=commands)
    changed = dataclasses.replace(program, kernels=kernels, methods=(method,))
    with pytest.raises(npusim.ProgramFormatError, match=r"teleport, vanish.*Compile the model"):
        npusim.Executor(changed, device)


def test_another_schema_is_refused(device: npusim.Device) -> None:
    kernel = dataclasses.replace(programs.swap(4).kernels[0], schema="rank:i64")
    changed = dataclasses.replace(programs.swap(4), kernels=(kernel,))
    with pytest.raises(npusim.ProgramFormatError, match=r"copy \(with other parameters\)"):
        npusim.Executor(changed, device)


def _with_first_command(program: npusim.CompiledProgram, **changes) -> npusim.CompiledProgram:
    commands = list(program.method().commands)
    commands[0] = dataclasses.replace(commands[0], **changes)
    method = dataclasses.replace(program.method(), commands=tuple(commands))
    return dataclasses.replace(program, methods=(method,))


def test_commands_that_reach_outside_their_operands_are_refused(device: npusim.Device) -> None:
    sound = programs.identity((8,))
    command = sound.method().commands[0]
    longer = programs.identity((9,)).method().commands[0].params
    x, y = command.operands
    for changes in [
        {"params": longer},
        {"params": longer[:-8]},
        {"params": b""},
        {"operands": (x,)},
        {"operands": (x, dataclasses.replace(y, offset=4))},
        {"operands": (y, dataclasses.replace(x, access=Access.READ))},
    ]:
        with pytest.raises(npusim.ProgramFormatError, match="copy"):
            npusim.Executor(_with_first_command(sound, **changes), device)


def test_the_null_device_accepts_all_and_computes_nothing() -> None:
    device = npusim.Device("null")
    session = npusim.load(programs.mlp(), programs.mlp_weights(), device)
    (y,) = session(np.ones((1, 16), np.float32))
    assert y.shape == (1, 16)


def test_temporaries_are_not_shared_between_executors(device: npusim.Device) -> None:
    program = programs.mlp()
    assert any(b.kind is BufferKind.TEMP for b in program.buffers)
    state = programs.mlp_weights()
    weights = npusim.load_weights(state, program, device)
    sessions = [npusim.load(program, weights, device) for _ in range(2)]
    xs = [np.full((1, 16), v, np.float32) for v in (1, -2)]
    results = [s(x)[0] for s, x in zip(sessions, xs, strict=True)]
    for x, y in zip(xs, results, strict=True):
        np.testing.assert_allclose(y, programs.mlp_reference(state, x), rtol=1e-5, atol=1e-5)

"""Calls of a program with symbolic sizes: what fits, what is refused, and what a run shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import npusim
from npusim import _runtime
from npusim.profile.inputs import sample
from npusim.runtime import Device, DeviceBuffer, Executor


class Scaled(nn.Module):
    """x[b, 4*s] in rows of four, each times the row of y[b, s]."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, 4) * y.unsqueeze(2) + 1


@pytest.fixture(scope="module")
def program() -> npusim.CompiledProgram:
    batch, seq = Dim("batch", max=4), Dim("seq", min=2, max=6)
    shapes = ({0: batch, 1: 4 * seq}, {0: batch, 1: seq})
    example = (torch.zeros(2, 12), torch.zeros(2, 3))
    return npusim.compile(npusim.extract_ir(Scaled().eval(), example, dynamic_shapes=shapes))


def arrays(batch: int, seq: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(batch * 10 + seq)
    shapes = ((batch, 4 * seq), (batch, seq))
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, y


def expected(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1, 4) * y[..., None] + 1


def test_sizes_come_and_go(program: npusim.CompiledProgram) -> None:
    """More combinations than are kept ready, in changing order."""
    session = npusim.load(program)
    order = [(b, s) for b in range(1, 5) for s in range(2, 7)]
    for batch, seq in order + order[::-1] + order[::3]:
        x, y = arrays(batch, seq)
        (out,) = session(x, y)
        assert out.shape == (batch, seq, 4)
        np.testing.assert_allclose(out, expected(x, y), rtol=1e-6)


def test_arguments_of_any_kind(program: npusim.CompiledProgram) -> None:
    session = npusim.load(program)
    x, y = arrays(3, 5)
    want = expected(x, y)
    for given in (x[::1], np.asfortranarray(x)):
        np.testing.assert_allclose(session(given, y=y)[0], want, rtol=1e-6)
    (got,) = session(torch.from_numpy(x), torch.from_numpy(y))
    assert isinstance(got, torch.Tensor)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ((5, 8), (5, 2), r"input x: dimension 0 is 5; batch is 1 … 4 \(batch 1 … 4\)"),
        ((0, 8), (0, 2), r"input x: dimension 0 is 0; batch is 1 … 4"),
        ((2, 4), (2, 1), r"dimension 1 is 4; 4\*seq is 8 … 24 \(seq 2 … 6\)"),
        ((2, 28), (2, 7), r"dimension 1 is 28; 4\*seq is 8 … 24"),
        ((2, 10), (2, 2), r"dimension 1 is 10, which is not of the form 4\*seq"),
        ((2, 8), (3, 2), r"input y: dimension 0 is 3, expected batch = 2 \(batch = 2, seq = 2\)"),
        ((2, 8), (2, 3), r"input y: dimension 1 is 3, expected seq = 2"),
        ((2, 8), (2, 2, 1), r"input y has the shape \[2, 2, 1\], expected 2 dimensions"),
    ],
)
def test_shapes_that_are_refused(
    program: npusim.CompiledProgram, x: tuple[int, ...], y: tuple[int, ...], words: str
) -> None:
    session = npusim.load(program)
    given = np.zeros(x, np.float32), np.zeros(y, np.float32)
    for kind in (given, tuple(map(torch.from_numpy, given))):
        with pytest.raises(npusim.ShapeError, match=words):
            session(*kind)
    device = session.device
    buffers = dict(zip("xy", (DeviceBuffer.from_numpy(a, device) for a in given), strict=True))
    with pytest.raises(npusim.ShapeError, match=words):
        session.executor.run(buffers)


def test_dtypes_are_checked_as_ever(program: npusim.CompiledProgram) -> None:
    session = npusim.load(program)
    x, y = arrays(2, 2)
    with pytest.raises(npusim.ShapeError, match="float64"):
        session(x.astype(np.float64), y)


def test_executors_show_sizes_and_buffers(program: npusim.CompiledProgram) -> None:
    device = Device("cpu")
    executor = Executor(program, device)
    shapes = [[str(d) for d in spec.shape] for spec in executor.inputs()]
    assert shapes == [["batch", "4*seq"], ["batch", "seq"]]
    assert str(executor.outputs()[0].shape) == "(batch, seq, 4)"
    inputs, outputs = executor.specs_for([(3, 8), (3, 2)])
    assert inputs[0].shape == (3, 8) and outputs[0].shape == outputs[0].alloc_shape == (3, 2, 4)
    x, y = arrays(3, 2)
    given = {
        spec.name: DeviceBuffer.from_numpy(a, device, spec)
        for spec, a in zip(executor.inputs(), (x, y), strict=True)
    }
    out = DeviceBuffer.from_spec(device, outputs[0])
    executor.run(given, outputs={outputs[0].name: out})
    np.testing.assert_allclose(out.to_numpy(), expected(x, y), rtol=1e-6)
    whole = executor.read_buffer(executor.outputs()[0].buffer, "float32")
    assert whole is None, "the memory of a result is the caller's"
    assert len(executor.time(given)) == len(executor.commands())


def test_native_runs_check_their_sizes(program: npusim.CompiledProgram) -> None:
    device = Device("cpu")
    native = Executor(program, device)._native
    given = [DeviceBuffer.from_numpy(a, device) for a in arrays(2, 2)]
    out = [DeviceBuffer(device, "float32", (2, 2, 4))]
    native.run(0, given, out, None, None, [2, 2])
    for sizes, words in (
        ([], "needs 384 bytes, got 64"),  # the greatest
        ([2], r"needs the sizes batch 1 … 4, seq 2 … 6; got 1"),
        ([5, 2], "batch is 5"),
        ([2, 1], "seq is 1"),
        ([4, 6], "needs 384 bytes, got 64"),
    ):
        with pytest.raises(npusim.ShapeError, match=words):
            native.run(0, given, out, None, None, sizes)
    with pytest.raises(npusim.ShapeError, match="addresses do not tell"):
        native.run_at(0, [0, 0], [0], None, 0)


def test_outputs_may_lie_where_inputs_lie() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flip(0) + x

    graph = npusim.extract_ir(
        Twice().eval(), (torch.zeros(3, 4),), dynamic_shapes=({0: Dim("n", max=9)},)
    )
    device = Device("cpu")
    executor = Executor(npusim.compile(graph), device)
    for n in (9, 1, 4):
        x = np.arange(n * 4, dtype=np.float32).reshape(n, 4)
        want = x[::-1] + x
        buffer = DeviceBuffer.from_numpy(x, device)
        name = executor.outputs()[0].name
        executor.run({"x": buffer}, outputs={name: buffer})
        np.testing.assert_array_equal(x, want)


def test_profiles_sample_the_greatest_sizes(program: npusim.CompiledProgram) -> None:
    assert [sample(spec).shape for spec in program.input_specs] == [(4, 24), (4, 6)]


def test_static_methods_have_no_sizes() -> None:
    graph = npusim.extract_ir(Scaled().eval(), (torch.zeros(2, 8), torch.zeros(2, 2)))
    native = _runtime.Program.from_bytes(npusim.compile(graph).to_bytes())
    assert native.symbols(0) == [] and native.bind(0, [(1,), (2,)]) == ()


def test_a_profile_counts_what_its_inputs_need(program: npusim.CompiledProgram) -> None:
    """Without inputs at the greatest sizes, otherwise at theirs."""
    x, y = arrays(2, 3)
    greatest = npusim.profile_program(program, threads=1, repeats=1)
    smaller = npusim.profile_program(program, inputs={"x": x, "y": y}, threads=1, repeats=1)
    assert sum(c.bytes_written for c in greatest.commands) == 4 * (4 * 6 * 4)
    assert sum(c.bytes_written for c in smaller.commands) == 4 * (2 * 3 * 4)

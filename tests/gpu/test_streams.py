"""Calls that nobody waits for: in PyTorch's streams, before and after PyTorch's own work."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import npusim
from tests.gpu.device import require_gpu

require_gpu()

SIZE = 512


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE)).eval()


def loaded(model: nn.Module, rows: int) -> npusim.Session:
    program = npusim.compile((model, (torch.zeros(rows, SIZE),)), "cuda")
    return npusim.load(program, model.state_dict(), device="cuda")


def late(x: Tensor) -> Tensor:
    """Returns x, once the GPU has done some work."""
    busy = torch.randn(4096, 4096, device="cuda")
    for _ in range(4):
        busy = busy @ busy
    return x + (busy[0, 0] * 0).nan_to_num(0)


def close(got: Tensor, want: Tensor) -> bool:
    return bool((got - want).abs().max() <= 1e-3 * want.abs().max())


@torch.no_grad()
def test_a_call_stands_in_the_current_stream() -> None:
    model = network()
    session, there = loaded(model, 8), model.cuda()
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    for turn in range(12):
        with torch.cuda.stream(streams[turn % 3]):
            x = late(torch.full((8, SIZE), turn / 7 - 1, device="cuda"))
            (y,) = session(x)
            assert close(y * 2, there(x) * 2), turn


@torch.no_grad()
def test_calls_of_one_session_follow_each_other_across_streams() -> None:
    """The temporaries are the session's: a call must not start before the one in front is done."""
    model = network()
    session, there = loaded(model, 8), model.cuda()
    streams = [torch.cuda.Stream() for _ in range(4)]
    xs = [torch.randn(8, SIZE, device="cuda") for _ in streams]
    wants = [there(x) for x in xs]
    for _ in range(20):
        torch.cuda.synchronize()
        ys = []
        for stream, x in zip(streams, xs, strict=True):
            with torch.cuda.stream(stream):
                ys.append(session(x)[0])
        torch.cuda.synchronize()
        assert all(close(y, want) for y, want in zip(ys, wants, strict=True))


@torch.no_grad()
def test_arrays_of_cupy_run_in_its_stream() -> None:
    cupy = pytest.importorskip("cupy")
    model = network()
    session = loaded(model, 8)
    for turn in range(6):
        with cupy.cuda.Stream(non_blocking=True) if turn % 2 else cupy.cuda.Stream.null:
            busy = cupy.random.rand(2048, 2048, dtype=cupy.float32)
            for _ in range(4):
                busy = busy @ busy / 1024
            x = cupy.full((8, SIZE), turn / 7 - 1, cupy.float32) + 0 * busy[0, 0]
            (y,) = session(x)
            assert type(y) is cupy.ndarray
            got = torch.from_numpy((y * 2).get())
        assert close(got, model(torch.from_numpy(x.get())) * 2), turn


@torch.no_grad()
def test_a_session_may_go_while_its_work_runs() -> None:
    model = network()
    x, want = torch.randn(8, SIZE, device="cuda"), None
    for _ in range(5):
        session = loaded(model.cpu(), 8)
        (y,) = session(late(x))
        del session
        other = torch.randn(64, 1024, 1024, device="cuda")  # takes what was freed too early
        del other
        want = y.clone() if want is None else want
        assert torch.equal(y, want)


@torch.no_grad()
def test_buffers_of_npusim_are_read_when_they_are_there() -> None:
    model = network()
    session = loaded(model, 8)
    x = torch.randn(8, SIZE)
    want = model(x)
    buffer = npusim.DeviceBuffer.from_numpy(x.numpy(), session.device)
    for _ in range(10):
        (y,) = session(buffer)
        shown = torch.from_dlpack(y)
        assert close(shown.cpu(), want) and close(torch.from_numpy(y.to_numpy()), want)
        assert close(torch.as_tensor(session(buffer)[0], device="cuda").cpu(), want)

"""What the CUDA runtime itself costs: copies, allocations, launches, and exchange with PyTorch.

    PYTHONPATH=python:. python benchmarks/cuda_runtime.py [--gigabytes 4]

Needs a GPU, NVRTC and PyTorch with CUDA. Checks every result; the peers run in the same process:
`torch` copies the same bytes from pageable memory, and replays a graph of as many kernels.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tests.runtime.programs import Builder

import npusim
from npusim import DeviceBuffer
from npusim.codegen import generate
from npusim.program.program import BufferKind, CompiledProgram
from npusim.runtime import Executor
from npusim.targets import TargetConfig

COPIES = 100  # commands of the method whose launches are timed


def seconds(action: Callable[[], object], repeats: int) -> float:
    """Returns the median time of a call, after two that do not count."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def row(what: str, value: str) -> None:
    print(f"{what:58} {value:>24}", flush=True)


def chain(commands: int, count: int = 1024) -> CompiledProgram:
    """y = x by way of copies between two temporaries."""
    b = Builder()
    x, y = b.input("x", (count,)), b.output("y", (count,))
    between = [b.buffer(BufferKind.TEMP, 4 * count) for _ in range(2)]
    for i in range(commands):
        to = y if i == commands - 1 else between[i % 2]
        b.copy(x, to, count)
        x = to
    return generate(b.build(), TargetConfig.named("cuda"))


def for_another_device(program: CompiledProgram) -> CompiledProgram:
    """The program as if its cubins were for a GPU that is not here: sources must be compiled."""

    def foreign(image: bytes) -> bytes:
        size = struct.unpack_from("<I", image, 8)[0]
        header = {**json.loads(image[12 : 12 + size]), "arch": "sm_75"}
        text = json.dumps(header).encode()
        return image[:8] + struct.pack("<I", len(text)) + text + image[12 + size :]

    kernels = tuple(replace(kernel, image=foreign(kernel.image)) for kernel in program.kernels)
    return replace(program, kernels=kernels)


def copies(device: npusim.Device, gigabytes: float) -> None:
    count = int(gigabytes * 1e9 / 4)
    rate = lambda t: f"{count * 4 / t / 1e9:.1f} GB/s"  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "floats"
        np.arange(count, dtype=np.float32).tofile(path)
        mapped = np.memmap(path, np.float32, "r")
        buffer = DeviceBuffer(device, "float32", (count,))
        row("upload, mapped file", rate(seconds(lambda: buffer.write(mapped), 3)))
        host = np.empty(count, np.float32)
        row("download", rate(seconds(lambda: buffer.read_into(host), 3)))
        assert (host == mapped).all()
        fresh = np.memmap(path, np.float32, "r")  # its pages are not in this process's tables yet
        start = time.perf_counter()
        buffer.write(fresh)
        row("upload, file mapped anew", rate(time.perf_counter() - start))
    middle = host[: 27_000_000 // 4]  # a weight of a small language model
    buffer = DeviceBuffer(device, "float32", middle.shape)
    take = seconds(lambda: buffer.write(middle), 20)
    row("upload of 27 MB", f"{middle.nbytes / take / 1e9:.1f} GB/s")
    tensor, there = torch.from_numpy(host), torch.empty(count, device="cuda")

    def upload() -> None:
        there.copy_(tensor)
        torch.cuda.synchronize()

    row("torch upload, pageable", rate(seconds(upload, 3)))
    small = np.zeros(2, np.int64)
    few = DeviceBuffer(device, "int64", (2,))
    row("upload of 16 bytes", f"{seconds(lambda: few.write(small), 300) * 1e6:.1f} us")
    row("download of 16 bytes", f"{seconds(lambda: few.read_into(small), 300) * 1e6:.1f} us")
    for size in (4096, 1 << 28):
        take = seconds(lambda size=size: DeviceBuffer(device, "uint8", (size,)), 50)
        row(f"allocate, clear and free {size} bytes", f"{take * 1e6:.1f} us")


def launches(device: npusim.Device) -> None:
    x = DeviceBuffer.from_numpy(np.arange(1024, dtype=np.float32), device)
    outputs = [DeviceBuffer(device, "float32", (1024,)) for _ in range(2)]
    for commands in (1, 2, COPIES):
        program = chain(commands)
        start = time.perf_counter()
        native = Executor(program, device)._native
        row(f"encode {commands} commands", f"{(time.perf_counter() - start) * 1e3:.2f} ms")

        def run(to: DeviceBuffer, native: npusim._runtime.Executor = native) -> None:
            native.run(0, [x], [to], None)
            device.wait_for(device.stream)

        take = seconds(lambda run=run: run(outputs[0]), 300)
        row(f"run {commands} commands", f"{take * 1e6:.1f} us")
        turns = itertools.cycle(outputs)
        take = seconds(lambda run=run, turns=turns: run(next(turns)), 300)
        row(f"run {commands} commands, output elsewhere each time", f"{take * 1e6:.1f} us")
        assert (outputs[0].to_numpy() == np.arange(1024)).all()
        assert (outputs[1].to_numpy() == np.arange(1024)).all()
    a, b = torch.arange(1024.0, device="cuda"), torch.empty(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(COPIES):
            torch.add(a, 0, out=b)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    row(f"torch graph of {COPIES} kernels", f"{seconds(replay, 300) * 1e6:.1f} us")
    session = npusim.load(chain(COPIES), None, device)
    array = np.ones(1024, np.float32)
    row(
        f"session of {COPIES} commands, NumPy",
        f"{seconds(lambda: session(array), 200) * 1e6:.1f} us",
    )
    tensor = torch.ones(1024, device="cuda")
    take = seconds(lambda: (session(tensor), torch.cuda.synchronize()), 200)
    row(f"session of {COPIES} commands, torch on the GPU", f"{take * 1e6:.1f} us")


def sources(device: npusim.Device) -> None:
    x = DeviceBuffer.from_numpy(np.arange(1024, dtype=np.float32), device)
    for what in ("compile with NVRTC", "take from the cache"):
        start = time.perf_counter()
        executor = Executor(for_another_device(chain(2)), device)
        row(f"encode for another architecture: {what}", f"{time.perf_counter() - start:.3f} s")
        assert (executor.run({"x": x})["y"].to_numpy() == np.arange(1024)).all()


def exchange(device: npusim.Device) -> None:
    session = npusim.load(chain(2), None, device)
    x = torch.arange(1024.0, device="cuda")
    (y,) = session(x)
    assert y.is_cuda and torch.equal(x, y)
    buffer = DeviceBuffer.from_dlpack(x, device)
    assert buffer.address == x.data_ptr()
    assert torch.from_dlpack(buffer).data_ptr() == buffer.address
    assert torch.as_tensor(buffer, device="cuda").data_ptr() == buffer.address
    moved = DeviceBuffer.from_dlpack(torch.arange(1025.0, device="cuda")[1:], device)
    assert moved.address % 16 == 0 and moved.to_numpy()[0] == 1
    large = torch.randn(4096, 4096, device="cuda")
    for _ in range(20):  # work that is still under way when the session is called
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            busy = large
            for _ in range(5):
                busy = busy @ large
            late = (busy[0, :1024] * 0 + 7).nan_to_num(7)
            (y,) = session(late)
        assert torch.equal(y.cpu(), late.cpu())
    half = torch.arange(8.0, device="cuda").bfloat16()
    assert torch.equal(torch.from_dlpack(DeviceBuffer.from_dlpack(half, device)), half)
    row("torch in, torch out, DLPack and array interface", "ok")
    try:
        import cupy
    except ImportError:
        row("CuPy", "not installed")
        return
    x = cupy.arange(1024, dtype=cupy.float32)
    (y,) = session(x)
    assert isinstance(y, (cupy.ndarray, DeviceBuffer))
    assert (cupy.asarray(y) == x).all()
    assert cupy.asarray(DeviceBuffer.from_dlpack(x, device)).data.ptr == x.data.ptr
    assert DeviceBuffer.from_cuda_array(x, device).address == x.data.ptr
    row("CuPy in, out", f"ok, gives {type(y).__name__}")


def failures(device: npusim.Device) -> None:
    from tests.runtime.programs import lookup

    program = generate(lookup(), TargetConfig.named("cuda"))
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    session = npusim.load(program, {"table": table}, device)
    assert (session(np.array([3, 0, 9]))[0] == table[[3, 0, 9]]).all()
    try:
        session(np.array([3, 99, 1]))
        raise AssertionError("an index out of range went unnoticed")
    except npusim.Error as error:
        row("an index out of range", "refused")
        print("   ", error)
    assert (session(np.array([1, 1, 2]))[0] == table[[1, 1, 2]]).all()


def language_models(device: npusim.Device) -> None:
    """States, forks and rewinds on the device: tokens one by one and in chunks, against NumPy."""
    from tests.runtime import toy_language_model as toy

    weights = toy.weights()
    program = generate(toy.program(), TargetConfig.named("cuda"))
    model = npusim.LanguageModel.load(program, weights, device=device)
    session = model.new_session()
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    session.append(tokens)
    close = lambda a, b: np.allclose(a, b, rtol=1e-5, atol=1e-5)  # noqa: E731
    assert close(session.logits, toy.logits(weights["table"], tokens))
    fork = session.fork()
    session.rewind(4)
    session.append([7])
    assert close(session.logits, toy.logits(weights["table"], [*tokens[:4], 7]))
    fork.append([8])
    assert close(fork.logits, toy.logits(weights["table"], [*tokens, 8]))
    take = seconds(lambda: (session.rewind(4), session.append([7]), session.logits), 100)
    row("a token of a toy language model, logits on the host", f"{take * 1e6:.1f} us")


def networks(device: npusim.Device) -> None:
    """A network from PyTorch, compiled for the device and compared with PyTorch there."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.LayerNorm(256), torch.nn.GELU(),
        torch.nn.Linear(256, 10), torch.nn.Softmax(-1),
    ).eval()  # fmt: skip
    x = torch.randn(32, 64)
    program = npusim.compile(npusim.extract_ir(layers, (x,)), target="cuda")
    session = npusim.load(program, layers.state_dict(), device)
    (y,) = session(x.cuda())
    with torch.no_grad():
        reference = layers.cuda()(x.cuda())
    error = (y - reference).abs().max().item()
    assert y.is_cuda and error < 1e-5, error
    on_gpu, there = x.cuda(), torch.cuda.synchronize

    def eager() -> None:
        with torch.no_grad():
            layers(on_gpu)
        there()

    take = seconds(lambda: (session(on_gpu), there()), 200)
    row("network of 5 layers", f"{take * 1e6:.1f} us")
    row("network of 5 layers, torch eager", f"{seconds(eager, 200) * 1e6:.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=4.0, help="how much is copied at once")
    gigabytes = parser.parse_args().gigabytes
    device = npusim.Device("cuda")
    print(device, npusim._runtime.device_parts("cuda", [])[0][1])
    failed = []
    parts = (exchange, failures, sources, language_models, networks, launches)
    for part in (*parts, lambda device: copies(device, gigabytes)):
        try:
            part(device)
        except Exception as error:  # the other parts say something all the same
            import traceback

            traceback.print_exc()
            failed.append(error)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

"""CUDA devices: what is said where there is none, and sessions over a driver without a GPU.

The stub driver (tests/cpp/stub_cuda.cpp) is compiled here; a process has one driver, so everything
runs in processes of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import npusim
from npusim import _runtime

pytestmark = pytest.mark.skipif(
    "cuda" not in _runtime.device_names(), reason="CUDA devices are built on Linux alone"
)

ROOT = Path(__file__).parents[2]

# y = x + b, and z = y after a copy, in the stub's kernels.
PRELUDE = """
from dataclasses import replace
import numpy as np
import npusim
from npusim import DeviceBuffer
from npusim.program.program import Access, BufferKind, Operand
from tests.runtime.programs import Builder, stub_image

def program(count=6, alloc=None):
    width = (alloc or (count,))[0]
    b = Builder()
    x, y = b.input("x", (count,), alloc=alloc), b.output("y", (count,), alloc=alloc)
    bias, t = b.weight("bias", (width,)), b.buffer(BufferKind.TEMP, 4 * width)
    b.copy(x, t, count)
    b.copy(t, y, count)
    built = b.build()
    first, second = built.methods[0].commands
    add = replace(first, kernel=1, operands=(Operand(x, 0, Access.READ),
                                             Operand(bias, 0, Access.READ), first.operands[1]))
    (copy,) = built.kernels
    kernels = tuple(replace(copy, image=stub_image(entry, width)) for entry in ("copy", "add"))
    method = replace(built.methods[0], commands=(add, second))
    return replace(built, kernels=kernels, methods=(method,), target="cuda:sm_90")

device = npusim.Device("cuda")
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("building the stub driver needs a C++ compiler")
    library = tmp_path_factory.mktemp("stub") / "libstub_cuda.so"
    source = ROOT / "tests" / "cpp" / "stub_cuda.cpp"
    options = ["-std=c++20", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run([compiler, *options], check=True)
    return library


def run(code: str, driver: Path | str, **environment: str) -> str:
    variables = {
        **os.environ,
        "NPUSIM_CUDA_DRIVER": str(driver),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        **environment,
    }
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=variables, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


OPEN = """
import npusim
try:
    print(npusim.Device("cuda"))
except npusim.DeviceError as error:
    print(error)
"""


def test_without_a_driver_one_sentence_says_so() -> None:
    assert run(OPEN, "libcuda_absent.so").strip() == (
        "there is no CUDA driver on this machine (libcuda_absent.so cannot be loaded). "
        "Install NVIDIA's driver, or choose another device."
    )


def test_the_doctor_names_the_parts_of_cuda(stub: Path) -> None:
    code = "from npusim.cli import main; main(['doctor'])"
    absent = run(code, "libcuda_absent.so")
    assert "there is no CUDA driver" in absent and "Programs run on this machine." in absent
    found = " ".join(run(code, stub, COLUMNS="300").split())
    assert "Stub GPU, sm_90" in found and "13.0 in " in found
    assert "compiles for sm_90a" in absent and "compiles for sm_90a" in found
    older = " ".join(run(code, stub, COLUMNS="300", STUB_CUDA_ARCH="80").split())
    assert "compiles for sm_80" in older


def test_the_doctor_names_the_libraries(stub: Path, tmp_path: Path) -> None:
    code = "from npusim.cli import main; main(['doctor'])"
    for name, source in (("cublasLt.so.13", "cublaslt"), ("cudnn.so.9", "cudnn")):
        file = tmp_path / f"lib{name}"
        options = ["-std=c++20", "-shared", "-fPIC", f"-Wl,-soname,{file.name}", f"-I{ROOT}"]
        sources = str(ROOT / "tests" / "cpp" / f"stub_{source}.cpp")
        subprocess.run(["c++", *options, "-o", str(file), sources], check=True)
    environment = {"NPUSIM_CUDA_PATH": str(tmp_path), "COLUMNS": "300"}
    found = " ".join(run(code, stub, **environment).split())
    assert f"cuBLASLt 13.1.0 in {tmp_path}/libcublasLt.so.13" in found
    assert f"cuDNN 9.19.0 in {tmp_path}/libcudnn.so.9" in found
    old = " ".join(run(code, stub, **environment, STUB_CUDNN_VERSION="80900").split())
    assert "is cuDNN 8.9.0" in old and "npusim uses versions 9" in old


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"STUB_CUDA_DEVICES": "0"}, "finds no device"),
        ({"STUB_CUDA_VERSION": "11080"}, "CUDA 11.8, npusim needs 12.0"),
        ({}, "Device('cuda': Stub GPU, sm_90, 1024 MiB"),
    ],
)
def test_opening_a_device(stub: Path, environment: dict[str, str], words: str) -> None:
    assert words in run(OPEN, stub, **environment)


@pytest.mark.parametrize(
    ("environment", "arch"),
    [
        ({"STUB_CUDA_ARCH": "80"}, "sm_80"),
        ({"STUB_CUDA_ARCH": "90"}, "sm_90a"),
        ({"STUB_CUDA_ARCH": "103"}, "sm_103"),
        ({"STUB_CUDA_ARCH": "75"}, "sm_90a"),  # which no kernel runs on
        ({"STUB_CUDA_fail cuInit": "999"}, "sm_90a"),
        ({"NPUSIM_CUDA_DRIVER": "libcuda_absent.so"}, "sm_90a"),
    ],
)
def test_the_target_is_this_machines_device(
    stub: Path, environment: dict[str, str], arch: str
) -> None:
    code = """
    from npusim.targets import TargetConfig
    print(TargetConfig.named("cuda").arch, TargetConfig.named("cuda:sm_86").arch)
    """
    given = {"NPUSIM_CUDA_DRIVER": str(stub), **environment}
    assert run(code, given.pop("NPUSIM_CUDA_DRIVER"), **given).split() == [arch, "sm_86"]


def test_arrays_of_the_host_go_there_and_back(stub: Path) -> None:
    code = """
    bias = np.arange(6, dtype=np.float32)
    session = npusim.load(program(), {"bias": bias}, device)
    x = np.full(12, 10, np.float32)[::2]
    (y,) = session(x)
    assert type(y) is np.ndarray and (y == bias + 10).all()
    (again,) = session(x=np.zeros(6, np.float32))
    assert (again == bias).all() and (y == bias + 10).all()
    import torch
    (t,) = session(torch.ones(6))
    assert t.device.type == "cpu" and (t.numpy() == bias + 1).all()
    try:
        session(np.zeros(5, np.float32))
    except npusim.ShapeError as error:
        print(error)
    """
    assert "shape [5], expected [6]" in run(PRELUDE + textwrap.dedent(code), stub)


def test_buffers_are_padded_and_read_back(stub: Path) -> None:
    code = """
    session = npusim.load(program(6, alloc=(8,)), {"bias": np.ones(8, np.float32)}, device)
    (y,) = session(np.arange(6, dtype=np.float32))
    assert y.shape == (6,) and (y == np.arange(1, 7)).all()
    buffer = DeviceBuffer.from_numpy(y, device)
    assert (buffer.to_numpy() == y).all() and not np.shares_memory(buffer.to_numpy(), y)
    twin = DeviceBuffer(device, "float32", (6,))
    assert (twin.to_numpy() == 0).all()
    twin.copy_from(buffer)
    assert (twin.to_numpy() == y).all()
    half = DeviceBuffer.from_numpy(np.array([1.5, -2], np.float32), device,
                                   npusim.TensorSpec("h", 0, "bfloat16", (2,), (2,)))
    assert half.nbytes == 4 and (half.to_numpy() == [1.5, -2]).all()
    try:
        memoryview(buffer)
    except BufferError:
        print("no host memory")
    """
    assert "no host memory" in run(PRELUDE + textwrap.dedent(code), stub)


def test_an_output_may_lie_where_an_input_lies(stub: Path) -> None:
    code = """
    from npusim.runtime import Executor, load_weights
    native = program()
    weights = load_weights({"bias": np.ones(6, np.float32)}, native, device)
    x = DeviceBuffer.from_numpy(np.arange(6, dtype=np.float32), device)
    Executor(native, device).run({"x": x}, weights, outputs={"y": x})
    assert (x.to_numpy() == np.arange(1, 7)).all()
    """
    run(PRELUDE + textwrap.dedent(code), stub)


def test_a_session_keeps_its_buffers(stub: Path) -> None:
    code = """
    import ctypes, os
    allocated = ctypes.CDLL(os.environ["NPUSIM_CUDA_DRIVER"]).stub_calls
    session = npusim.load(program(), {"bias": np.ones(6, np.float32)}, device)
    x = np.zeros(6, np.float32)
    results = [session(x + i)[0] for i in range(2)]
    before = allocated(b"cuMemAllocFromPoolAsync")
    results += [session(x + i)[0] for i in range(2, 5)]
    assert allocated(b"cuMemAllocFromPoolAsync") == before
    assert [y[0] for y in results] == [1, 2, 3, 4, 5]
    """
    run(PRELUDE + textwrap.dedent(code), stub)


def test_commands_are_observed_on_the_device(stub: Path) -> None:
    code = """
    from npusim.runtime import Executor, load_weights
    native = program()
    executor = Executor(native, device)
    weights = load_weights({"bias": np.ones(6, np.float32)}, native, device)
    x = DeviceBuffer.from_numpy(np.zeros(6, np.float32), device)
    seen = []
    executor.observe(lambda i: seen.append(executor.read_buffer(3, "float32")), {"x": x}, weights)
    assert all((value == 1).all() for value in seen) and len(seen) == 2
    """
    run(PRELUDE + textwrap.dedent(code), stub)


def test_tensors_are_exchanged_without_copies(stub: Path) -> None:
    code = """
    class Array:
        def __init__(self, buffer, **more):
            self.owner = buffer
            self.__cuda_array_interface__ = {**buffer.__cuda_array_interface__, **more}
    buffer = DeviceBuffer.from_numpy(np.arange(8, dtype=np.float32), device)
    assert buffer.__dlpack_device__() == device.dlpack_device == (2, 0)
    shown = buffer.__cuda_array_interface__
    assert shown["data"] == (buffer.address, False) and shown["typestr"] == "<f4"
    assert shown["shape"] == (8,) and shown["strides"] == (4,) and shown["version"] == 3
    same = DeviceBuffer.from_dlpack(buffer, device)
    assert same.address == buffer.address
    twin = DeviceBuffer.from_cuda_array(Array(buffer, stream=1), device)
    assert twin.address == buffer.address and twin.dtype == "float32"
    shifted = (buffer.address + 4, False)
    moved = DeviceBuffer.from_cuda_array(Array(buffer, shape=(7,), data=shifted), device)
    assert moved.address % 16 == 0 and (moved.to_numpy() == np.arange(1, 8)).all()
    del buffer, same
    assert (twin.to_numpy() == np.arange(8)).all()
    for more in ({"strides": (8,)}, {"typestr": "<c8", "strides": None}):
        try:
            DeviceBuffer.from_cuda_array(Array(twin, **more), device)
        except npusim.ShapeError as error:
            print(error)
    host = npusim.Device("cpu")
    assert not hasattr(DeviceBuffer(host, "float32", (1,)), "__cuda_array_interface__")
    assert not hasattr(DeviceBuffer(device, "bfloat16", (1,)), "__cuda_array_interface__")
    try:
        DeviceBuffer.from_dlpack(np.zeros(3, np.float32), device)
    except npusim.ShapeError as error:
        print(error)
    session = npusim.load(program(8), {"bias": np.ones(8, np.float32)}, device)
    (y,) = session(Array(twin))
    assert isinstance(y, DeviceBuffer) and (y.to_numpy() == np.arange(1, 9)).all()
    """
    out = run(PRELUDE + textwrap.dedent(code), stub)
    assert "not contiguous" in out and "complex64" in out and "not on cuda:0" in out


def test_foreign_arrays_run_in_the_stream_they_name(stub: Path) -> None:
    code = """
    import ctypes, os, sys, types
    calls = ctypes.CDLL(os.environ["NPUSIM_CUDA_DRIVER"]).stub_calls
    counts = lambda: (calls(b"cuStreamSynchronize"), calls(b"cuStreamWaitEvent"))
    class Array:
        def __init__(self, values, **more):
            self.buffer = DeviceBuffer.from_numpy(np.asarray(values, np.float32), device)
            self.__cuda_array_interface__ = {**self.buffer.__cuda_array_interface__, **more}
    session = npusim.load(program(), {"bias": np.ones(6, np.float32)}, device)
    for stream in (1, 4096):
        x = Array(np.arange(6), stream=stream)
        session(x)
        hosts, streams = counts()
        (y,) = session(x)
        assert counts()[0] == hosts, "the host does not wait"
        assert counts()[1] >= streams + 2, "the streams of memory and work do, for each other"
        assert type(y) is DeviceBuffer and (y.to_numpy() == np.arange(1, 7)).all()
    odd = Array(np.arange(8))
    shifted = (odd.buffer.address + 4, False)
    for other in (Array(np.arange(6)), Array(np.arange(6), stream=None),
                  Array(odd.buffer.to_numpy(), stream=1, shape=(6,), data=shifted)):
        before = counts()[0]
        (y,) = session(other)
        assert counts()[0] > before, "waited"
        y.to_numpy()
    try:
        session(Array(np.arange(5), stream=1))
    except npusim.ShapeError as error:
        print(error)

    class Ndarray(Array):  # what CuPy's arrays have of it
        data = property(lambda self: types.SimpleNamespace(ptr=self.buffer.address))
    class Here:
        def __init__(self, ordinal): assert ordinal == 0
        def __enter__(self): pass
        def __exit__(self, *_): pass
    cupy = types.ModuleType("cupy")
    cupy.ndarray, cupy.cuda = Ndarray, types.SimpleNamespace(Device=Here)
    cupy.empty = lambda shape, dtype: Ndarray(np.empty(shape, dtype), stream=4096)
    sys.modules["cupy"] = cupy
    x = Ndarray(np.arange(6), stream=4096)
    (y,) = session(x)
    assert type(y) is Ndarray and (y.buffer.to_numpy() == np.arange(1, 7)).all()
    """
    assert "expected float32[6]" in run(PRELUDE + textwrap.dedent(code), stub)


# A library of tensors on the GPU with DLPack's C interface, its current stream being STREAM.
LIBRARY = """
import ctypes, os
STREAM = [0]

class DlTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2),
                ("ndim", ctypes.c_int32), ("dtype", ctypes.c_uint8 * 2),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64)]

@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlTensor))
def read(tensor, out):
    tensor.shape = (ctypes.c_int64 * 1)(*tensor.buffer.shape)
    out[0] = DlTensor(tensor.buffer.address, (2, 0), 1, (2, 32), 1,
                      ctypes.addressof(tensor.shape), None, tensor.offset)
    return tensor.fails

@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def current(kind, index, out):
    out[0] = STREAM[0]
    return 0

class Table(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("others", ctypes.c_void_p * 4),
                ("read", type(read)), ("current", type(current))]

table = Table((1, 3), (None,) * 4, read, current)
capsule = ctypes.pythonapi.PyCapsule_New
capsule.restype = ctypes.py_object
capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

class Tensor:
    __dlpack_c_exchange_api__ = capsule(ctypes.addressof(table), b"dlpack_exchange_api", None)
    offset, fails = 0, 0
    def __init__(self, values):
        self.buffer = DeviceBuffer.from_numpy(np.asarray(values, np.float32), device)

calls = ctypes.CDLL(os.environ["NPUSIM_CUDA_DRIVER"]).stub_calls
session = npusim.load(program(), {"bias": np.ones(6, np.float32)}, device)
session._tensor_makers = lambda kind, sizes: [lambda: Tensor(np.zeros(6))]
"""


def test_tensors_of_a_library_run_in_its_stream(stub: Path) -> None:
    code = """
    for stream in (0, 4096):
        STREAM[0] = stream
        (y,) = session(Tensor(np.arange(6)))
        waited = calls(b"cuStreamSynchronize")
        (y,) = session(Tensor(np.arange(6)))
        assert calls(b"cuStreamSynchronize") == waited, "the host does not wait"
        assert type(y) is Tensor and (y.buffer.to_numpy() == np.arange(1, 7)).all()
    print("ok")
    """
    assert "ok" in run(PRELUDE + LIBRARY + textwrap.dedent(code), stub)


def test_what_does_not_fit_as_it_is_takes_the_long_way(stub: Path) -> None:
    code = """
    shifted, unreadable = Tensor(np.zeros(6)), Tensor(np.zeros(6))
    shifted.offset, unreadable.fails = 4, -1
    class Parameter(Tensor):
        pass
    for given in (Tensor(np.zeros(5)), shifted, unreadable, Parameter(np.zeros(6))):
        try:
            session(given)
        except npusim.ShapeError as error:
            print(error)
    session._tensor_makers = lambda kind, sizes: [lambda: Tensor(np.zeros(7))]
    again = npusim.Session(session.executor, session.weights)
    again._tensor_makers = session._tensor_makers
    try:
        again(Tensor(np.zeros(6)))
    except npusim.ShapeError as error:
        print(error)
    """
    out = run(PRELUDE + LIBRARY + textwrap.dedent(code), stub)
    assert out.count("Pass a NumPy array, a torch tensor") == 4
    assert "has no memory to write to" in out


def test_consumers_wait_for_what_the_device_computes(stub: Path) -> None:
    code = """
    import ctypes, os
    calls = ctypes.CDLL(os.environ["NPUSIM_CUDA_DRIVER"]).stub_calls
    from npusim.runtime import Executor, load_weights
    native = program()
    executor = Executor(native, device)
    weights = load_weights({"bias": np.ones(6, np.float32)}, native, device)
    x = DeviceBuffer.from_numpy(np.zeros(6, np.float32), device)
    counts = lambda: (calls(b"cuStreamSynchronize"), calls(b"cuStreamWaitEvent"))
    executor.run({"x": x}, weights)
    hosts, streams = counts()
    y = executor.run({"x": x}, weights)["y"]
    assert counts() == (hosts, streams), "queued"
    y.__dlpack__(stream=device.stream), y.__dlpack__(stream=-1)
    assert counts() == (hosts, streams), "nothing to order"
    y.__dlpack__(stream=1), y.__dlpack__(stream=4096)
    assert counts() == (hosts, streams + 2), "one stream after the other"
    y.__dlpack__()
    y.__cuda_array_interface__
    assert counts() == (hosts + 2, streams + 2), "the host waits for who names no stream"
    lent = DeviceBuffer.from_dlpack(y, device)
    executor.run({"x": lent}, weights)
    assert counts()[0] == hosts + 3, "memory of others is not left in use"
    session = npusim.load(native, weights, device)
    before = counts()
    (z,) = session(x)
    assert type(z) is DeviceBuffer and counts() == before, "queued too"
    assert (z.to_numpy() == 1).all()
    before = counts()
    (z,) = session(lent)
    assert (z.to_numpy() == 2).all() and counts()[0] > before[0]
    for wrong in (DeviceBuffer(device, "float32", (5,)), DeviceBuffer(device, "int32", (6,)),
                  DeviceBuffer(npusim.Device("cuda"), "float32", (6,))):
        try:
            session(wrong)
            raise AssertionError(wrong)
        except npusim.ShapeError as error:
            print(error)
    print("ok")
    """
    assert "ok" in run(PRELUDE + textwrap.dedent(code), stub)


def test_a_program_for_the_cpu_is_refused(stub: Path) -> None:
    code = """
    from tests.runtime.programs import identity
    try:
        npusim.load(identity((4,)), None, device)
    except npusim.ProgramFormatError as error:
        print(error)
    """
    out = run(PRELUDE + textwrap.dedent(code), stub)
    assert "compiled for target cpu" in out and "target='cuda'" in out


def test_folders_of_wheels_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from npusim.runtime.libraries import library_folders

    (tmp_path / "b" / "nvidia" / "cuda_nvrtc" / "lib").mkdir(parents=True)
    (tmp_path / "a" / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b")])
    assert library_folders() == [
        str(tmp_path / "a" / "nvidia" / "cu13" / "lib"),
        str(tmp_path / "b" / "nvidia" / "cuda_nvrtc" / "lib"),
    ]
    assert npusim.Device("cpu").ordinal == 0

"""Symbolic sizes over the stub driver: which device code a call finds, has made, or lacks."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from npusim import _runtime
from tests.runtime.test_cuda import LIBRARY, run, stub

__all__ = ["stub"]

pytestmark = pytest.mark.skipif(
    "cuda" not in _runtime.device_names(), reason="CUDA devices are built on Linux alone"
)

# x[n] -> y[n] by two copies, n from 1 to 16, prepared for 16 and 3; `made` lists what is asked for.
PRELUDE = """
from dataclasses import replace
import numpy as np
import npusim
from npusim import DeviceBuffer
from npusim.codegen import made_kernels
from npusim.ir.symbolic import symbol
from npusim.abi.kernels import KERNELS
from npusim.program.program import BufferKind, Patch, PatchKind, Specialized
from npusim.program.sized_command import params_at
from tests.runtime.programs import Builder, stub_image

N = symbol("n", 1, 16)
made = []

def program(entry="copy", prepared=(16, 3), metadata=True):
    b = Builder()
    x, y = b.input("x", (16,)), b.output("y", (16,))
    t = b.buffer(BufferKind.TEMP, 64)
    b.copy(x, t, 16)
    b.copy(t, y, 16)
    built = b.build()
    at = next(at for _, at, _ in KERNELS["copy"].symbolic_fields(fields(N)))
    method = built.methods[0]
    patches = (Patch(PatchKind.I64, at, N),)
    commands = tuple(replace(c, patches=patches) for c in method.commands)
    specs = [(replace(s, shape=(N,)),) for s in (*method.inputs, *method.outputs)]
    codes = tuple(Specialized(params_at(commands[0], {"n": n}), stub_image(entry, n))
                  for n in prepared)
    method = replace(method, commands=commands, inputs=specs[0], outputs=specs[1])
    rows = {"forward": [{"n": n} for n in prepared]}
    return replace(built, kernels=(replace(built.kernels[0], specialized=codes),),
                   methods=(method,), target="cuda:sm_90",
                   metadata={"prepared_sizes": rows} if metadata else {})

def fields(n):
    params = KERNELS["copy"].unpack(bytes(KERNELS["copy"].params_size))
    return {**params, "shape": (n, *params["shape"][1:])}

def make(kernels):
    for stem, schema, params, like in kernels:
        assert (stem, schema) == ("copy", KERNELS["copy"].schema)
        assert like == stub_image("copy", 16)
    made.append([KERNELS["copy"].unpack(params)["shape"][0] for _, _, params, _ in kernels])
    return [stub_image("copy", n) for n in made[-1]]

made_kernels.make_images = make
device = npusim.Device("cuda")

def check(session, n):
    x = np.arange(n, dtype=np.float32)
    (y,) = session(x)
    assert y.shape == (n,) and (y == x).all(), (n, y)
"""


def test_code_is_made_once_for_sizes_that_are_new(stub: Path) -> None:
    code = """
    session = npusim.load(program(), None, device)
    for n in (16, 3, 16, 3):
        check(session, n)
    assert made == [], made
    for n in (5, 16, 5, 7, 5, 3):
        check(session, n)
    assert made == [[5], [7]], made
    for n in (*range(1, 17), *range(1, 17)):  # more than are kept ready; their code is kept
        check(session, n)
    assert sorted(n for (n,) in made) == [n for n in range(1, 17) if n not in (3, 16)]
    again = npusim.load(program(), None, device)
    check(again, 9)
    assert len(made) == 14, "code belongs to the device"
    """
    run(PRELUDE + textwrap.dedent(code), stub)


def test_modules_are_loaded_once_for_all_sizes(stub: Path) -> None:
    code = """
    import ctypes, os
    loaded = ctypes.CDLL(os.environ["NPUSIM_CUDA_DRIVER"]).stub_calls
    session = npusim.load(program(), None, device)
    check(session, 5)
    before = loaded(b"cuModuleLoadData")
    other = npusim.load(session.executor._program, None, device)
    check(other, 5), check(other, 16)
    assert loaded(b"cuModuleLoadData") == before
    """
    run(PRELUDE + textwrap.dedent(code), stub)


def test_where_no_code_can_be_made_the_sizes_there_are_are_named(stub: Path) -> None:
    code = """
    made_kernels.make_images = lambda kernels: "Install a compiler."
    session = npusim.load(program(), None, device)
    for call in (lambda: session(np.zeros(5, np.float32)),
                 lambda: session(DeviceBuffer.from_numpy(np.zeros(5, np.float32), device)),
                 lambda: session(x=np.zeros(5, np.float32))):
        try:
            call()
        except npusim.DeviceError as error:
            print(error)
    check(session, 3)
    bare = npusim.load(program(metadata=False), None, device)
    from npusim import _runtime
    alone = _runtime.Device("cuda")
    for held, what in ((device, bare), (alone, None)):
        try:
            (what or npusim.load(program(), None, alone))(np.zeros(6, np.float32))
        except npusim.DeviceError as error:
            print(error)
    """
    lines = run(PRELUDE + textwrap.dedent(code), stub).splitlines()
    found = "at n = 5: the program has no device code for these sizes, but for n = 16; n = 3; "
    assert lines[:3] == [found + "Install a compiler."] * 3
    assert (
        lines[3] == "at n = 6: the program has no device code for these sizes; Install a compiler."
    )
    assert "but for n = 16; n = 3; compile it with these sizes" in lines[4]


def test_errors_of_the_compiler_reach_the_caller(stub: Path) -> None:
    code = """
    def fail(kernels):
        raise npusim.Error("the disk is full")
    made_kernels.make_images = fail
    session = npusim.load(program(), None, device)
    for given in (np.zeros(5, np.float32), DeviceBuffer(device, "float32", (5,))):
        try:
            session(given)
        except npusim.Error as error:
            print(error)
    made_kernels.make_images = make
    check(session, 5)
    made_kernels.make_images = lambda kernels: [b"no image"]
    try:
        session(np.zeros(6, np.float32))
    except npusim.ProgramFormatError as error:
        print(error)
    """
    lines = run(PRELUDE + textwrap.dedent(code), stub).splitlines()
    assert lines[:2] == ["the disk is full"] * 2
    assert "at n = 6: kernel 0 (copy): its image is not one for CUDA" in lines[2]


def test_sizes_beyond_the_bounds_are_refused(stub: Path) -> None:
    code = """
    session = npusim.load(program(), None, device)
    for given in (np.zeros(17, np.float32), np.zeros(0, np.float32),
                  DeviceBuffer(device, "float32", (17,))):
        try:
            session(given)
        except npusim.ShapeError as error:
            print(error)
    assert made == []
    """
    out = run(PRELUDE + textwrap.dedent(code), stub)
    assert out.count("; n is 1 … 16 (n 1 … 16)") == 3


def test_parameters_are_proved_before_code_is_made(stub: Path) -> None:
    code = """
    hostile = program()
    (method,) = hostile.methods
    first = method.commands[0]
    longer = replace(first, patches=(replace(first.patches[0], size=18 - N),))
    codes = (*hostile.kernels[0].specialized,
             Specialized(params_at(longer, {"n": 16}), stub_image("copy", 2)))
    hostile = replace(hostile, methods=(replace(method, commands=(longer, method.commands[1])),),
                      kernels=(replace(hostile.kernels[0], specialized=codes),))
    session = npusim.load(hostile, None, device)
    try:
        session(np.zeros(5, np.float32))
    except npusim.ProgramFormatError as error:
        print(error)
    assert made == []
    """
    out = run(PRELUDE + textwrap.dedent(code), stub)
    assert "at n = 5: command 0" in out and "kernel copy refuses it" in out


def test_tensors_of_a_library_have_the_sizes_of_the_call(stub: Path) -> None:
    code = LIBRARY[: LIBRARY.index("calls =")] + textwrap.dedent("""
    session = npusim.load(program(), None, device)
    asked = []
    def makers(kind, sizes):
        asked.append(sizes)
        return [lambda: Tensor(np.zeros(sizes[0]))]
    session._tensor_makers = makers
    for n in (5, 3, 5, 16, 3):
        (y,) = session(Tensor(np.arange(n)))
        assert type(y) is Tensor and (y.buffer.to_numpy() == np.arange(n)).all()
    assert asked == [[5], [3], [16]] and made == [[5]]
    """)
    run(PRELUDE + code, stub)

"""What goes wrong on Metal: one sentence each, nothing lost, and the next run works."""

from __future__ import annotations

import functools
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import npusim
from npusim import DeviceBuffer
from npusim.errors import DeviceError, Error, ProgramFormatError, UnsupportedOpError
from npusim.frontends.torch_export import extract_ir
from npusim.ir.graph import Graph
from npusim.targets import TargetConfig, target_names
from tests.metal.programs import (
    LOOKUP,
    OPENING,
    UNARY,
    MetalBuilder,
    diamonds,
    image,
    lookup,
    one_command,
    unary,
)
from tests.softmetal import metal

X = np.arange(8, dtype=np.float32)


def test_an_index_out_of_range_names_its_node(device: npusim.Device) -> None:
    table = np.arange(10, dtype=np.float32)
    session = npusim.load(lookup(10, 4), weights={"table": table}, device=device)
    good = np.array([0, 9, 3, 3])
    for bad in (10, -1, 2**40):
        for ids in ([0, bad, 1, 2], [bad] * 4):
            message = rf"command 0 \(code_1, net\.py:7\): a value is out of range: {bad}, limit 10"
            with pytest.raises(Error, match=message):
                session(np.array(ids))
            np.testing.assert_array_equal(session(good)[0], table[good])


@functools.cache
def doubled_sigmoid() -> Graph:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * torch.sigmoid(x)

    return extract_ir(Doubled().eval(), (torch.ones(16),))


def test_a_division_by_zero_is_called_that(device: npusim.Device) -> None:
    source = LOOKUP.replace("code = 1", "code = 2").replace("ROWS", "10")
    b = MetalBuilder()
    ids, y, table = b.input("ids", (4,), "int64"), b.output("y", (4,)), b.weight("table", (10,))
    b.launch(image(source, threads=4, failure=True), [ids, table], [y])
    weights = {"table": np.zeros(10, np.float32)}
    session = npusim.load(b.finish(), weights=weights, device=device)
    with pytest.raises(Error, match=r"net\.py:7\): an integer is divided by zero: 77$"):
        session(np.array([0, 77, 1, 2]))


def test_text_that_the_compiler_refuses_is_kept(device: npusim.Device, tmp_path: Path) -> None:
    bad = OPENING + "kernel void run(device float* y [[buffer(0)]]) { y[0] = nothing; }\n"
    with pytest.raises(DeviceError) as caught:
        npusim.load(one_command(image(bad)), device=device)
    message = str(caught.value)
    assert re.match(
        r"command 0 \(code_1, net\.py:7\), kernel code_1: Metal's compiler refuses its text: .*"
        r"nothing",
        message,
        re.DOTALL,
    )
    (kept,) = (tmp_path / "cache" / "metal").iterdir()
    assert f"(the text is in {kept})" in message
    assert kept.read_text() == bad
    assert npusim.load(one_command(unary("x[i]", 8)), device=device)(X)[0][3] == 3


def test_the_first_of_several_refused_texts_is_told(device: npusim.Device) -> None:
    b = MetalBuilder()
    x, y = b.input("x", (8,)), b.output("y", (8,))
    for name in ("first", "second", "third"):
        b.launch(image(UNARY.format(expression=name)), [x], [y])
    with pytest.raises(DeviceError, match=r"command 0 .*first"):
        npusim.load(b.finish(), device=device)


def test_a_folder_that_cannot_be_written_loses_the_text_alone(
    device: npusim.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(DeviceError, match=r"(?s)refuses its text: .*the text could not be kept: "):
        npusim.load(one_command(image(UNARY.format(expression="nothing"))), device=device)


def test_an_entry_that_is_not_there(device: npusim.Device) -> None:
    code = image(UNARY.format(expression="x[i]"), entries=("walk",))
    with pytest.raises(ProgramFormatError, match="kernel code_1: its code has no walk"):
        npusim.load(one_command(code), device=device)


def test_an_entry_that_takes_what_its_command_has_not(device: npusim.Device) -> None:
    source = UNARY.replace("buffer(1)", "buffer(2)").format(expression="x[i]")
    message = r"command 0 .*kernel code_1: run takes 3 buffers, its command has 2"
    with pytest.raises(ProgramFormatError, match=message):
        npusim.load(one_command(image(source, threads=8)), device=device)
    launch = {"entry": "run", "grid": [1, 1, 1], "block": [8, 1, 1]}
    for index, more in ((0, "its launch gives none"), (1, "no threadgroup memory at 0")):
        source = UNARY.replace(
            "uint i", f"threadgroup float* s [[threadgroup({index})]], uint i"
        ).format(expression="x[i]")
        with pytest.raises(ProgramFormatError, match=rf"kernel code_1: run takes .*{more}"):
            npusim.load(one_command(image(source, launches=[launch])), device=device)


def test_an_older_family(device: npusim.Device) -> None:
    code = image(UNARY.format(expression="x[i]"), arch="apple9", threads=8)
    assert npusim.load(one_command(code), device=device)(X)[0][7] == 7
    metal.set_option("FAMILY", 8)
    message = "it was compiled for apple9; this device is apple8. Compile the model again"
    with pytest.raises(Error, match=message):
        npusim.load(one_command(code), device=npusim.Device("metal"))


@pytest.mark.parametrize(
    "arch", ["sm_90", "apple", "apple0", "apple-7", "apple7a", "apple99999999999"]
)
def test_architectures_that_are_none(device: npusim.Device, arch: str) -> None:
    with pytest.raises(Error, match=f"it was compiled for {arch}; this device is apple9"):
        npusim.load(one_command(image("", arch=arch)), device=device)


def test_out_of_memory_leaves_the_device_usable(device: npusim.Device) -> None:
    session = npusim.load(diamonds(16, 2), device=device)
    metal.set_option("MAX_MEMORY", 1 << 20)
    with pytest.raises(DeviceError, match=r"has no 4194304 bytes to give: \d+ of \d+ are in use"):
        DeviceBuffer(device, "uint8", (1 << 22,))
    with pytest.raises(DeviceError, match=r"a buffer has at most 4294967296"):
        DeviceBuffer(device, "uint8", (1 << 33,))
    b = MetalBuilder()
    x, y = b.input("x", (8,)), b.output("y", (8,))
    b.launch(image(UNARY.format(expression="x[i]"), threads=8, scratch=1 << 22), [x], [y])
    with pytest.raises(DeviceError, match="has no 4194304 bytes to give"):
        npusim.load(b.finish(), device=device)
    assert session(np.ones(16, np.float32))[0].shape == (16,)


def test_what_the_device_has_not_enough_of(device: npusim.Device) -> None:
    shared = [{"entry": "run", "grid": [1, 1, 1], "block": [8, 1, 1], "shared": 32769}]
    code = image(UNARY.format(expression="x[i]"), launches=shared)
    with pytest.raises(Error, match=r"needs 32769 bytes of threadgroup memory, .* has 32768"):
        npusim.load(one_command(code), device=device)
    metal.set_option("MAX_THREADS", 512)
    try:
        code = image(UNARY.format(expression="x[i] + 0.5f"), threads=513)
        with pytest.raises(Error, match="needs 513 threads a threadgroup, this device has 512"):
            npusim.load(one_command(code, 513), device=device)
    finally:
        metal.set_option("MAX_THREADS", 1024)


def test_a_fault_on_the_device_fails_the_run_alone(device: npusim.Device) -> None:
    # A read in the guard behind the buffer, where a flag in the input asks for it.
    text = UNARY.format(expression="x[0] > 0.0f ? x[i + 1024u] : x[i]")
    program = one_command(image(text, threads=8))
    session = npusim.load(program, device=device)
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"Metal device .* could not finish the work: .*run"):
            session(X + 1)
        np.testing.assert_array_equal(session(-X)[0], -X)
    for read in (DeviceBuffer.to_numpy, np.asarray):
        (bad,) = session(DeviceBuffer.from_numpy(X + 1, device))  # nobody waits
        with pytest.raises(DeviceError, match="could not finish the work"):
            read(bad)
        (good,) = session(DeviceBuffer.from_numpy(-X, device))
        np.testing.assert_array_equal(read(good), -X)


def test_more_buffers_than_metal_binds(device: npusim.Device) -> None:
    for count, fits in ((31, True), (32, False)):
        b = MetalBuilder()
        x, y = b.input("x", (8,)), b.output("y", (8,))
        outputs = ", ".join(f"device float* o{i} [[buffer({i})]]" for i in range(1, 31))
        text = OPENING + (
            f"kernel void run(device const float* x [[buffer(0)]], {outputs},"
            " uint i [[thread_position_in_grid]]) { o30[i] = x[i]; }\n"
        )
        b.launch(image(text, threads=8), [x] * (count - 1), [y])
        if fits:
            assert npusim.load(b.finish(), device=device)(X)[0][5] == 5
        else:
            with pytest.raises(ProgramFormatError, match="takes 32 buffers, at most 31"):
                npusim.load(b.finish(), device=device)


def test_a_program_for_another_device_is_refused(device: npusim.Device) -> None:
    from tests.runtime.programs import mlp, mlp_weights

    with pytest.raises(Error, match=r"has no Metal code for: .*target='metal'"):
        npusim.load(mlp(), weights=mlp_weights(), device=device)


@pytest.mark.parametrize("target", target_names())
def test_programs_of_every_target_run_here_or_are_refused(
    device: npusim.Device, target: str
) -> None:
    x = np.linspace(-2, 2, 16, dtype=np.float32)
    try:
        program = npusim.compile(doubled_sigmoid(), target)
    except UnsupportedOpError:
        pytest.skip(f"{target} computes no float32")
    if TargetConfig.named(target).device == "metal":
        (result,) = npusim.load(program, device=device)(x)
        np.testing.assert_allclose(result, 2 / (1 + np.exp(-x)), rtol=1e-6)
        return
    message = (
        rf"^the program was compiled for target {program.target} and has no Metal code for: "
        r".*\. Compile the model with target='metal'\.$"
    )
    with pytest.raises(Error, match=message):
        npusim.load(program, device=device)


def test_a_forked_child_is_told(device: npusim.Device) -> None:
    """What executes the work is the parent's; a child that waited for it would wait for ever."""
    metal.set_option("DELAY_US", 20000)
    session = npusim.load(diamonds(16, 1), device=device)
    given = DeviceBuffer.from_numpy(np.ones(16, np.float32), device)
    (before,) = session(given)  # under way when the process forks
    child = os.fork()
    if child == 0:
        try:
            device.synchronize()
            session(np.ones(16, np.float32))
        except DeviceError as error:
            os._exit(7 if "before this process forked" in str(error) else 8)
        os._exit(9)
    for _ in range(600):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 7
    np.testing.assert_array_equal(before.to_numpy(), np.full(16, 0.75, np.float32))

"""Checkpoints that are changed while their weights are used where the files are mapped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.program.program import BufferKind
from tests.runtime import programs
from tests.runtime.test_weights import write_safetensors

COUNT = 1 << 18  # floats: pages enough that a file can lose some
VALUES = np.arange(COUNT, dtype=np.float32)


def reads_in_place() -> npusim.CompiledProgram:
    """A program whose method reads a weight, and adds nothing to it."""
    builder = programs.Builder()
    weight = builder.weight("w", (COUNT,))
    builder.copy(weight, builder.output("y", (COUNT,)), COUNT)
    return builder.build()


def torch_file(path: Path) -> Path:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.from_numpy(VALUES.copy())}, path)
    return path


def numpy_file(path: Path) -> dict[str, np.ndarray]:
    VALUES.tofile(path)
    return {"w": np.memmap(path, np.float32, "r")}


FORMS = {
    "w.safetensors": lambda path: write_safetensors(path, {"w": VALUES}),
    "w.pt": torch_file,
    "w.raw": numpy_file,
}


@pytest.fixture(params=FORMS)
def path(request, tmp_path: Path) -> Path:
    return tmp_path / request.param


def source_of(path: Path):
    return FORMS[path.name](path)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 4096)
    os.utime(path)  # on file systems with coarse clocks, too


def test_a_file_cut_short_is_an_error_that_names_it(path: Path) -> None:
    session = npusim.load(reads_in_place(), source_of(path), threads=2)
    other = npusim.load(programs.identity((3,)))
    np.testing.assert_array_equal(session()[0], VALUES)
    os.truncate(path, 4096)
    for _ in range(2):
        with pytest.raises(npusim.Error, match="cut short") as caught:
            session()
        assert path.name in str(caught.value) and "copy=True" in str(caught.value)
    np.testing.assert_array_equal(other(np.ones(3, np.float32))[0], np.ones(3))
    with pytest.raises(npusim.Error, match="cut short"):
        npusim.load(reads_in_place(), session.weights, session.device)


def test_a_file_written_to_is_noticed(path: Path) -> None:
    program, device = reads_in_place(), npusim.Device(threads=1)
    weights = npusim.load_weights(source_of(path), program, device)
    session = npusim.load(program, weights, device)
    np.testing.assert_array_equal(session()[0], VALUES)
    overwrite(path)
    with pytest.raises(npusim.Error, match="written to"):
        npusim.load(program, weights, device)
    time.sleep(1.1)
    with pytest.raises(npusim.Error, match="written to") as caught:
        session()
    assert path.name in str(caught.value)


@pytest.mark.parametrize("change", [overwrite, lambda path: os.truncate(path, 0)])
def test_copied_weights_are_independent_of_the_file(path: Path, change) -> None:
    source = source_of(path)
    session = npusim.load(reads_in_place(), source, copy=True)
    assert not session.weights.in_place
    change(path)
    np.testing.assert_array_equal(session()[0], VALUES)
    npusim.Session(session.executor, session.weights)


def test_copied_weights_are_independent_of_the_tensors() -> None:
    mine = VALUES.copy()
    lent = npusim.load(reads_in_place(), {"w": mine})
    own = npusim.load(reads_in_place(), {"w": mine}, copy=True)
    assert lent.weights.in_place
    mine[:] = -1
    assert lent()[0][1] == -1 and own()[0][1] == 1
    with pytest.raises(npusim.Error, match="loaded already"):
        npusim.load(reads_in_place(), lent.weights, lent.device, copy=True)


def test_a_file_replaced_by_renaming_stays_what_it_was(path: Path) -> None:
    session = npusim.load(reads_in_place(), source_of(path))
    other = path.with_name("other")
    other.write_bytes(b"something else")
    other.replace(path)
    np.testing.assert_array_equal(session()[0], VALUES)
    npusim.Session(session.executor, session.weights)


def test_prepared_weights_do_not_depend_on_the_file(tmp_path: Path) -> None:
    builder = programs.Builder()
    weight, kept = builder.weight("w", (COUNT,)), builder.buffer(BufferKind.PERSISTENT, 4 * COUNT)
    builder.copy(weight, kept, COUNT, init=True)
    builder.copy(kept, builder.output("y", (COUNT,)), COUNT)
    path = write_safetensors(tmp_path / "w.safetensors", {"w": VALUES})
    session = npusim.load(builder.build(), path)
    assert not session.weights.in_place
    os.truncate(path, 0)
    np.testing.assert_array_equal(session()[0], VALUES)
    npusim.Session(session.executor, session.weights)


@pytest.mark.parametrize("left", [0, 100, 5000])
def test_a_program_is_independent_of_its_file(tmp_path: Path, left: int) -> None:
    path = tmp_path / "p.npubin"
    programs.reversal(1000).save(path)
    session = npusim.load(path)
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    os.truncate(path, left)
    x = np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(session(x)[0], x[::-1])


FAULT = """
    import ctypes, faulthandler, mmap, os, sys
    import numpy as np, npusim
    from tests.runtime.test_files_in_use import VALUES, reads_in_place
    from tests.runtime.test_weights import write_safetensors
    from pathlib import Path
    if sys.argv[2] == "before": faulthandler.enable()
    path = write_safetensors(Path(sys.argv[1]) / "w.safetensors", {"w": VALUES})
    session = npusim.load(reads_in_place(), path)
    if sys.argv[2] == "after": faulthandler.enable()
    session()
    other = os.path.join(sys.argv[1], "other")
    with open(other, "wb") as file: file.truncate(8192)
    with open(other, "r+b") as file: mine = mmap.mmap(file.fileno(), 0)
    if sys.argv[2] != "after":
        os.truncate(path, 0)
        try: session()
        except npusim.Error: print("noticed", flush=True)
    os.truncate(other, 0)
    mine[5000]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="signals as Linux has them")
@pytest.mark.parametrize("handler", ["none", "before", "after"])
def test_faults_of_others_stay_what_they_were(tmp_path: Path, handler: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FAULT), str(tmp_path), handler],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGBUS, done.stderr
    assert (done.stdout == "noticed\n") == (handler != "after")
    assert ("Bus error" in done.stderr) == (handler != "none")


@pytest.mark.parametrize("copy", [False, True])
def test_what_pytorch_reads_of_a_plan_is_watched_as_well(path: Path, copy: bool) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors")

    class Next(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.from_numpy(VALUES.copy()))

        def forward(self, x):
            return torch.nextafter(self.w, x)

    x = torch.from_numpy(VALUES.copy())  # the next one is itself
    plan = npusim.partition(npusim.extract_ir(Next().eval(), (x,)))
    assert [p.executor for p in plan.partitions] == ["pytorch"]
    executor = npusim.DAGExecutor(plan, summary=False).load_weights(source_of(path), copy=copy)
    assert torch.equal(executor(x)[0], x)
    os.truncate(path, 0)
    if copy or path.suffix == ".raw":  # PyTorch gets copies of arrays
        assert torch.equal(executor(x)[0], x)
        return
    with pytest.raises(npusim.Error, match="cut short") as caught:
        executor(x)
    assert path.name in str(caught.value)

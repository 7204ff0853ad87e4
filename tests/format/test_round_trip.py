"""What is written is read back, exactly, by both readers; equal programs give equal bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

import npusim
from npusim import _runtime
from npusim.errors import Error, ProgramFormatError
from npusim.program.format import load_program, read_program, save_program, write_program
from npusim.program.program import CompiledProgram
from tests.format.golden.make_golden import PATH, golden_program
from tests.format.programs import programs


@settings(max_examples=200, deadline=None)
@given(programs())
def test_program_survives(program: CompiledProgram) -> None:
    image = write_program(program)
    again = read_program(image)
    assert again == program
    assert write_program(again) == image


@settings(max_examples=200, deadline=None)
@given(programs())
def test_native_reader_sees_the_same(program: CompiledProgram) -> None:
    native = _runtime.Program.from_bytes(write_program(program))
    assert native.target == program.target
    assert native.buffers == [(b.kind, b.bytes, b.offset, b.name) for b in program.buffers]
    assert native.weights == [(w.keys, w.dtype, w.shape) for w in program.weights]
    assert native.methods == [m.name for m in program.methods]
    assert native.persistent_bytes == program.persistent_bytes
    assert native.state_bytes == program.state_bytes
    for index, method in enumerate(program.methods):
        for rows, specs in (
            (native.inputs(index), method.inputs),
            (native.outputs(index), method.outputs),
        ):
            wanted = [(s.name, s.buffer, s.dtype, s.shape, s.alloc_shape) for s in specs]
            assert rows == wanted
        assert native.arena_bytes(index) == method.arena_bytes
        nodes = [program.nodes[c.node] for c in method.commands]
        names = [program.kernels[c.kernel].name for c in method.commands]
        wanted = [(k, n.name, n.source) for k, n in zip(names, nodes, strict=True)]
        assert native.commands(index) == wanted


def test_golden_file_is_read_forever() -> None:
    assert load_program(PATH) == golden_program()
    native = _runtime.Program.open(PATH)
    assert native.methods == ["forward", "decode"]
    assert PATH.stat().st_size < 10_000


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "model.npubin"
    golden_program().save(path)
    save_program(golden_program(), str(path))  # over itself
    assert CompiledProgram.load(path) == golden_program()
    assert [p.name for p in tmp_path.iterdir()] == ["model.npubin"]


def test_load_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"Cannot read .*missing\.npubin: no such file"):
        load_program(tmp_path / "missing.npubin")
    for content, words in (
        (b"", "it is empty"),
        (b'{"nodes": []}', "looks like JSON"),
        (b"PK\x03\x04" + bytes(60), "zip archive"),
    ):
        path = tmp_path / "other.npubin"
        path.write_bytes(content)
        with pytest.raises(ProgramFormatError, match=rf"other\.npubin: .*{words}"):
            load_program(path)


def test_public_names() -> None:
    assert npusim.CompiledProgram is CompiledProgram

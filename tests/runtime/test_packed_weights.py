"""Packed weights: mapped where they fit, else prepared anew with a sentence, never used wrongly."""

from __future__ import annotations

import json
import logging
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import npusim
from npusim import _runtime
from npusim.program.program import CompiledProgram
from tests.runtime import programs, toy_language_model
from tests.runtime.test_weights import write_safetensors

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16)


class Net(nn.Module):
    """Weights of every fate: packed, folded, used where they lie, and read by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 24, 3, padding=1)
        self.norm = nn.BatchNorm2d(24)
        self.linear = nn.Linear(24, 10, dtype=torch.bfloat16)
        self.scale = nn.Parameter(torch.full((10,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [batch, 10]."""
        y = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.linear(y.bfloat16()).float() * self.scale


def packed(
    program: CompiledProgram, source: Path, path: Path, *, isa: str | None = None, **options: bool
) -> Path:
    device = npusim.Device("cpu", threads=1, isa=isa)
    npusim.pack_weights(npusim.load_weights(source, program, device, **options), path)
    return path


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    """Returns the packed weights of `programs.mlp`, whose checkpoint lies beside them."""
    path = write_safetensors(tmp_path / "w.safetensors", programs.mlp_weights())
    return packed(programs.mlp(), path, tmp_path / "w.npuw")


def rewritten(path: Path, **metadata: str) -> None:
    """Changes what a safetensors file says of itself."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"].update(metadata)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_every_kind_of_weight_comes_back_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net().eval()
    x = torch.randn(2, 3, 9, 7)
    program = npusim.compile(npusim.extract_ir(net, (x,)))
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    path = packed(program, tmp_path / "net.safetensors", tmp_path / "net.npuw")
    (tmp_path / "net.safetensors").unlink()  # a packed file is whole
    weights = npusim.load_weights(path, program, npusim.Device("cpu"))
    assert weights.in_place and not weights.note and not weights.extra
    fresh = npusim.load(program, dict(net.state_dict()))
    want = fresh(x.numpy())[0]
    for copy in (False, True):
        device = npusim.Device("cpu")
        loaded = npusim.load_weights(path, program, device, copy=copy)
        assert loaded.in_place is not copy
        assert loaded.prepared() == fresh.weights.prepared()
        np.testing.assert_array_equal(npusim.load(program, loaded, device)(x.numpy())[0], want)


def test_quantized_weights_and_language_models(tmp_path: Path) -> None:
    program = toy_language_model.program()
    checkpoint = write_safetensors(tmp_path / "w.safetensors", toy_language_model.weights())
    path = packed(program, checkpoint, tmp_path / "w.npuw")
    made = [
        list(npusim.LanguageModel.load(program, source).generate_tokens([1, 2], max_new_tokens=4))
        for source in (checkpoint, path)
    ]
    assert made[0] == made[1]
    net = nn.Sequential(nn.Linear(256, 128)).eval()
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    x = torch.linspace(-1, 1, 256).reshape(1, 256)
    for quantize in ("int8", "int4-g32", "int4-g64-asymmetric"):
        ir = npusim.extract_ir(net, (x,))
        program = npusim.compile(ir, quantize=quantize)
        path = packed(program, tmp_path / "net.safetensors", tmp_path / "net.npuw")
        want = npusim.load(program, tmp_path / "net.safetensors")(x.numpy())[0]
        np.testing.assert_array_equal(npusim.load(program, path)(x.numpy())[0], want)


def test_a_program_without_preparation_and_one_without_weights(tmp_path: Path) -> None:
    program = programs.memory_of_last_call(2)
    npusim.pack_weights(
        npusim.load_weights(None, program, npusim.Device("cpu")), tmp_path / "none.npuw"
    )
    session = npusim.load(program, tmp_path / "none.npuw")
    session(np.array([1, 2], np.float32))
    np.testing.assert_array_equal(session(np.zeros(2, np.float32))[0], [1, 2])


def test_another_instruction_set_prepares_them_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = _runtime.isa_names()
    if len(kinds) < 2:
        pytest.skip("this processor has one instruction set")
    checkpoint = write_safetensors(tmp_path / "w.safetensors", programs.mlp_weights())
    program = programs.mlp()
    path = packed(program, checkpoint, tmp_path / "w.npuw", isa=kinds[0])
    device = npusim.Device("cpu", isa=kinds[1])
    with caplog.at_level(logging.WARNING):
        weights = npusim.load_weights(path, program, device)
    assert weights.note in caplog.text
    for part in (kinds[0], kinds[1], "w.npuw", "w.safetensors", "npusim pack-weights"):
        assert part in weights.note
    want = npusim.load(program, checkpoint, device)(X)[0]
    np.testing.assert_array_equal(npusim.load(program, weights, device)(X)[0], want)


def test_another_build_or_program_prepares_them_anew(mlp: Path) -> None:
    want = npusim.load(programs.mlp(), mlp)(X)[0]
    rewritten(mlp, kernels="0" * 64)
    session = npusim.load(programs.mlp(), mlp)
    assert "another version of npusim" in session.weights.note
    np.testing.assert_array_equal(session(X)[0], want)


def test_the_recipe_counts_not_the_names(tmp_path: Path) -> None:
    """Two programs over one checkpoint, of which one packs a matrix and the other its transpose."""

    class Times(nn.Module):
        def __init__(self, turned: bool) -> None:
            super().__init__()
            self.w, self.turned = nn.Parameter(torch.randn(64, 64)), turned

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.w.T if self.turned else self.w)

    torch.manual_seed(1)
    x = torch.randn(40, 64)
    plain, turned = (
        npusim.compile(npusim.extract_ir(Times(t).eval(), (x,))) for t in (False, True)
    )
    save_file({"w": torch.randn(64, 64)}, tmp_path / "w.safetensors")
    path = packed(plain, tmp_path / "w.safetensors", tmp_path / "w.npuw")
    session = npusim.load(turned, path)
    assert "in another way" in session.weights.note
    want = npusim.load(turned, tmp_path / "w.safetensors")(x.numpy())[0]
    np.testing.assert_array_equal(session(x.numpy())[0], want)


def test_what_was_not_looked_at_for_nan_is_not_taken_for_that(tmp_path: Path) -> None:
    state = programs.mlp_weights()
    state["w0"][0, 0] = np.nan
    checkpoint = write_safetensors(tmp_path / "w.safetensors", state)
    path = packed(programs.mlp(), checkpoint, tmp_path / "w.npuw")
    device = npusim.Device("cpu")
    with pytest.raises(npusim.WeightMismatchError, match=r"(?s)w\.npuw.*w\.safetensors.*NaN"):
        npusim.load_weights(path, programs.mlp(), device, check_nan=True)
    good = write_safetensors(tmp_path / "good.safetensors", programs.mlp_weights())
    path = packed(programs.mlp(), good, tmp_path / "good.npuw", check_nan=True)
    assert not npusim.load_weights(path, programs.mlp(), device, check_nan=True).note


def test_files_that_move_together_find_each_other(mlp: Path, tmp_path: Path) -> None:
    rewritten(mlp, kernels="")
    folder = tmp_path / "moved"
    folder.mkdir()
    for name in ("w.npuw", "w.safetensors"):
        shutil.move(tmp_path / name, folder / name)
    assert npusim.load(programs.mlp(), folder / "w.npuw").weights.note
    (folder / "w.safetensors").unlink()
    with pytest.raises(npusim.Error, match=r"(?s)w\.npuw: .*another version.*w\.safetensors"):
        npusim.load(programs.mlp(), folder / "w.npuw")


def test_weights_of_no_file_cannot_be_prepared_anew(tmp_path: Path) -> None:
    weights = npusim.load_weights(programs.mlp_weights(), programs.mlp(), npusim.Device("cpu"))
    npusim.pack_weights(weights, tmp_path / "w.npuw")
    assert npusim.load(programs.mlp(), tmp_path / "w.npuw")(X)
    rewritten(tmp_path / "w.npuw", kernels="")
    with pytest.raises(npusim.WeightMismatchError, match="do not say of which checkpoint"):
        npusim.load(programs.mlp(), tmp_path / "w.npuw")


def test_renamed_tensors_keep_their_names(tmp_path: Path) -> None:
    state = {f"module.{key}": value for key, value in programs.mlp_weights().items()}
    path = write_safetensors(tmp_path / "w.safetensors", state)
    source = npusim.Checkpoint(path, {"": "module."})
    device = npusim.Device("cpu")
    npusim.pack_weights(npusim.load_weights(source, programs.mlp(), device), tmp_path / "w.npuw")
    want = npusim.load(programs.mlp(), tmp_path / "w.npuw")(X)[0]
    rewritten(tmp_path / "w.npuw", kernels="")
    np.testing.assert_array_equal(npusim.load(programs.mlp(), tmp_path / "w.npuw")(X)[0], want)


def test_packed_weights_of_packed_weights_end_there(mlp: Path, tmp_path: Path) -> None:
    again = packed(programs.mlp(), mlp, tmp_path / "again.npuw")
    assert not npusim.load(programs.mlp(), again).weights.note
    rewritten(again, checkpoint="again.npuw", kernels="")
    with pytest.raises(npusim.WeightMismatchError, match="packed weights itself"):
        npusim.load(programs.mlp(), again)


def test_changes_in_place_are_noticed(mlp: Path) -> None:
    session = npusim.load(programs.mlp(), mlp)
    with mlp.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\0")
    with pytest.raises(npusim.Error, match=r"w\.npuw"):
        session.weights.check()


@pytest.mark.parametrize("key", ["device", "kernels", "checked_nan", "checkpoint", "renamings"])
def test_files_that_say_too_little_are_refused(mlp: Path, key: str) -> None:
    data = mlp.read_bytes()
    mlp.write_bytes(data.replace(f'"{key}":'.encode(), f'"{key[::-1]}":'.encode(), 1))
    with pytest.raises(npusim.ProgramFormatError, match=f"'{key}'"):
        npusim.load(programs.mlp(), mlp)


def test_damaged_files_are_refused(mlp: Path) -> None:
    data = mlp.read_bytes()
    rewritten(mlp, format="npusim packed weights 2")
    with pytest.raises(npusim.ProgramFormatError, match="'npusim packed weights 1'"):
        npusim.load(programs.mlp(), mlp)
    mlp.write_bytes(data.replace(b'"persistent"', b'"persistenz"', 1))
    with pytest.raises(npusim.ProgramFormatError, match="persistent"):
        npusim.load(programs.mlp(), mlp)
    for size in (0, 7, 100, 4096, len(data) - 1):
        mlp.write_bytes(data[:size])
        with pytest.raises(npusim.ProgramFormatError):
            npusim.load(programs.mlp(), mlp)
    mlp.write_bytes(data)
    assert npusim.load(programs.mlp(), mlp)(X)


def test_an_arena_of_another_size_is_refused(mlp: Path) -> None:
    """The recipe is right, and what it says was made is not there."""
    data = mlp.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    start, end = header["persistent"]["data_offsets"]
    assert end - start > 64
    size = end - start
    for name, tensor in header.items():
        if name == "persistent":
            tensor["shape"], tensor["data_offsets"] = [64], [0, 64]
        elif name != "__metadata__":
            tensor["data_offsets"] = [offset - size + 64 for offset in tensor["data_offsets"]]
    text = json.dumps(header).encode()
    body = data[8 + length :]
    mlp.write_bytes(struct.pack("<Q", len(text)) + text + body[:64] + body[end:])
    with pytest.raises(npusim.WeightMismatchError, match="another program"):
        npusim.load(programs.mlp(), mlp)


def test_a_path_that_cannot_be_written(mlp: Path, tmp_path: Path) -> None:
    weights = npusim.load(programs.mlp(), mlp).weights
    for path in (tmp_path, tmp_path / "nowhere" / "w.npuw"):
        with pytest.raises(npusim.Error, match="Cannot write"):
            npusim.pack_weights(weights, path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w.npuw", "w.safetensors"]

"""What verbs leave behind: all of their files or none, and nobody else's overwritten."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from npusim.cli import main
from npusim.errors import Error
from npusim.files import make_folder, reads, transaction, write_atomic

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x).relu()

def net():
    return Net(), (torch.zeros(2, 4),)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(MODEL)
    assert main(["extract", "m.py:net", "-o", "g.json", "--weights", "w.safetensors"]) == 0
    return tmp_path


def names(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


@pytest.mark.parametrize(
    "command",
    [
        "extract m.py:net -o new.json --weights .",
        "extract m.py:net -o g.json --weights missing/w.safetensors",
        "extract m.py:net -o m.py",
        "extract m.py:net -o w.safetensors",
        "extract m.py:net -o g.json --weights g.json",
        "compile g.json -o g.json",
        "compile g.json -o g.json --force",
        "compile g.json -o m.py",
        "compile g.json --dump-passes passes -o missing/p.npubin",
        "compile g.json --dump-passes passes/deep -o w.safetensors",
        "partition g.json -o g.json --force",
        "export-onnx g.json -w w.safetensors -o w.safetensors --force",
        "export-onnx g.json -w w.safetensors -o g.json",
        "view g.json -o missing/g.svg",
        "info g.json --report g.json",
        "info g.json --report w.safetensors",
    ],
)
def test_a_verb_that_fails_leaves_everything_as_it_was(folder, command, capsys):
    before = names(folder)
    assert main(command.split()) == 2
    assert names(folder) == before
    assert [p.name for p in folder.iterdir() if p.is_dir() and p.name != "__pycache__"] == []
    assert "defect" not in capsys.readouterr().err


def test_a_default_output_replaces_only_what_npusim_wrote(folder, capsys):
    (folder / "g.onnx").write_bytes(b"\x08\x07\x12\x07pytorch")
    assert main(["export-onnx", "g.json", "--graph-only"]) == 2
    assert "npusim did not write it" in capsys.readouterr().err
    assert (folder / "g.onnx").read_bytes() == b"\x08\x07\x12\x07pytorch"
    assert main(["export-onnx", "g.json", "--graph-only", "-o", "g.onnx"]) == 0
    assert main(["export-onnx", "g.json", "--graph-only"]) == 0
    assert main(["compile", "g.json"]) == main(["compile", "g.json"]) == 0
    (folder / "g.npubin").write_text("notes")
    assert main(["compile", "g.json"]) == 2


def test_force_replaces_another_kind_and_never_an_input(folder):
    (folder / "notes.txt").write_text("mine")
    assert main(["compile", "g.json", "-o", "notes.txt"]) == 2
    assert (folder / "notes.txt").read_text() == "mine"
    assert main(["compile", "g.json", "-o", "notes.txt", "--force"]) == 0
    assert (folder / "notes.txt").read_bytes().startswith(b"\x89NPUB")
    os.link(folder / "g.json", folder / "other.json")
    assert main(["compile", "g.json", "-o", "other.json", "--force"]) == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_transaction_takes_everything_back(tmp_path, error):
    (tmp_path / "old").write_text("old")
    (tmp_path / "old").chmod(0o640)
    with pytest.raises(error), transaction():
        write_atomic(tmp_path / "old", b"text")
        write_atomic(tmp_path / "old", b"text again")
        write_atomic(make_folder(tmp_path / "a" / "b") / "new", b"x")
        raise error
    assert [p.name for p in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o640


def test_a_transaction_that_ends_well_leaves_no_temporary_names(tmp_path):
    (tmp_path / "old").write_text("old")
    with transaction():
        write_atomic(tmp_path / "old", b"new")
        write_atomic(tmp_path / "other", b"x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old", "other"]
    assert (tmp_path / "old").read_text() == "new"


def test_what_is_read_is_not_written(tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "link").symlink_to("a")
    with transaction(force=True), pytest.raises(Error, match="is read by this command"):
        reads(tmp_path / "link")
        write_atomic(tmp_path / "a", b"b")
    assert (tmp_path / "a").read_text() == "a"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_leaves_nothing_behind(folder, name):
    """It comes while the factory runs, a sure point in the middle of the work."""
    (folder / "slow.py").write_text(
        MODEL + "\nimport pathlib, time\n\ndef slow():\n"
        "    pathlib.Path('started').touch()\n    time.sleep(60)\n"
    )
    before = names(folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "npusim.cli", "extract", "slow.py:slow", "-o", "s.json"],
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while not (folder / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=60)
    expected = 130 if name == "SIGINT" else 128 + getattr(signal, name)
    assert process.returncode == expected, said
    assert set(names(folder)) == {*before, "started"}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
@pytest.mark.parametrize("file", [1, 2])
def test_a_signal_while_a_verb_writes(folder, monkeypatch, name, file):
    """It comes when a file's bytes are written and not yet in place: the first file's, which is
    new, and the second's, which replaces one; the first is taken back then."""
    number = getattr(signal, name)
    before = names(folder)
    synced = []

    def sync(descriptor):
        synced.append(descriptor)
        if len(synced) == place:
            signal.raise_signal(number)

    # After each file comes its folder.
    place = 2 * file - 1
    monkeypatch.setattr(os, "fsync", sync)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = main(["extract", "m.py:net", "-o", "new.json", "--weights", "w.safetensors"])
    finally:
        signal.signal(signal.SIGINT, previous)
    assert code == 128 + number
    assert len(synced) >= place
    assert names(folder) == before


def test_devices_are_no_files(folder, capsys):
    for verb in ("compile", "info", "partition"):
        assert main([verb, "/dev/zero"]) == 2
        assert "device" in capsys.readouterr().err


def test_a_checkpoint_with_code_is_refused_without_advice_to_run_it(folder, capsys):
    import torch

    torch.save({"fc.weight": object()}, folder / "evil.pt")
    assert main(["verify", "m.py:net", "--weights", "evil.pt"]) == 2
    said = capsys.readouterr().err
    assert "weights_only" not in said and "code" in said


def test_json_stays_json(folder, capsys):
    assert main(["compile", "g.json", "-o", "g.json", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["ok"] is False

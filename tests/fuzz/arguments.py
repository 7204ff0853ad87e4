"""Command lines at random: whatever the arguments, a verb ends with 0, 1 or 2 and a sentence."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import click
import numpy as np

import npusim
from npusim.cli import main

_MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x, flag=True):
        return {"y": self.fc(x).relu()}

def net():
    return Net(), (torch.zeros(2, 4),)

def broken():
    raise ValueError("no model")

def leaves():
    raise SystemExit(7)

number = 3
"""

# Verbs that take long, ask for a GPU's time, or read from the terminal.
_LEFT_OUT = ("demo", "doctor", "generate")
_STRANGE = (
    *("", ".", "..", "/", "-", "--", "~", "missing", "missing/x.json", "a b", "é", "\udcff\udcfe"),
    *(
        "/dev/null",
        "/dev/zero",
        "folder",
        "folder/",
        "x" * 300,
        "*.json",
        "g.json/x",
        "none.npubin",
    ),
)
_FILES = (
    *("g.json", "p.npubin", "p.npuplan", "m.onnx", "w.safetensors", "x.npy", "m.py", "empty"),
    *("text.txt", "broken.json", "evil.pt", "x.npz", "target.json", "link.json"),
)
_FACTORIES = (
    *("m.py:net", "m.py:broken", "m.py:leaves", "m.py:number", "m.py:none", "m:net", ":net", "m:"),
    *("../m:net", "os:getcwd", "m.py", "missing.py:net", "text.txt:net", "m.py:net:net"),
)
_TEXTS = (
    *("x=x.npy", "x.npy", "=x.npy", "x=", "y=x.npy", "x=missing", "x:0=b:4", "x:0=b:1", "x:9=b:4"),
    *("x:0=b:5:2", "x:0=b:99999999999999999999", "flag:0=b:4", "fc=pytorch", "fc=", "=native"),
    *("batch=1,8", "b=0", "b=x", "x=1x3", "x=0x0", "x=-1", "int8", "int4-g32", "int4-g7", "cpu"),
    *("cuda", "cuda:sm_90", "null", "cpu:x", "output", "forward", "init", "1", "0", "-1", "1e9"),
    *("99999999999999999999", "nan", "0.5", "true", "float32"),
)
_RIGHT: dict[str | None, tuple[str, ...]] = {  # what arguments of these names are for
    "graph": ("g.json",),
    "file": ("g.json", "p.npubin", "p.npuplan"),
    "program": ("p.npubin", "p.npuplan"),
    "model": ("m.onnx", "g.json"),
    "factory": ("m.py:net",),
    "target": ("cpu",),
    "device": ("cpu",),
    "inputs": ("x=x.npy", "x.npy"),
    "weights": ("w.safetensors",),
    "threads": ("1",),
}
_OUTPUTS = ("o.json", "o.npubin", "o.npuplan", "o.onnx", "o.svg", "o.html", "o.md", "out", "new/o")


@cache
def _folder() -> Path:
    """Returns a folder with a file of every kind."""
    from npusim.exporters.onnx import export_onnx
    from tests.fuzz.seeds import Mixed

    folder = Path(mkdtemp(prefix="npusim-fuzz-"))
    (folder / "m.py").write_text(_MODEL)
    (folder / "folder").mkdir()
    with _inside(folder), _silent():
        main(["extract", "m.py:net", "-o", "g.json", "--weights", "w.safetensors"])
        main(["compile", "g.json", "-o", "p.npubin"])
        import torch

        npusim.partition(npusim.extract_ir(Mixed().eval(), (torch.zeros(2, 3),))).save("p.npuplan")
        export_onnx(npusim.IR.load("g.json"), "m.onnx", "w.safetensors")
        torch.save({"fc.weight": object()}, "evil.pt")
    np.save(folder / "x.npy", np.zeros((2, 4), np.float32))
    np.savez(folder / "x.npz", x=np.zeros((2, 4), np.float32))
    (folder / "empty").touch()
    (folder / "text.txt").write_text("some text\n")
    (folder / "target.json").write_text('{"name": "mine"}')
    (folder / "broken.json").write_bytes((folder / "g.json").read_bytes()[:-40])
    (folder / "link.json").symlink_to("g.json")
    return folder


def arguments(chance: Random) -> bytes:
    """Returns a command line as JSON: a verb, some of its options, values of all kinds."""
    from npusim.cli.app import npusim as group

    names = [name for name in group.commands if name not in _LEFT_OUT]
    verb = group.commands[chance.choice(names)]
    line = [verb.name or ""]
    for parameter in verb.params:
        if isinstance(parameter, click.Argument):
            for _ in range(chance.choice((*(1,) * 18, 0, 2))):
                line.append(_positional(chance, parameter))
        elif (
            parameter.required or chance.random() < 0.15 or parameter.name in ("inputs", "weights")
        ):
            for _ in range(chance.choice((1, 1, 1, 2)) if parameter.multiple else 1):  # type: ignore[attr-defined]
                line += _option(chance, parameter)
    if chance.random() < 0.05:
        line.insert(chance.randrange(len(line) + 1), chance.choice(("--what", "-x", "--json=1")))
    return json.dumps(line).encode()


def _positional(chance: Random, parameter: click.Parameter) -> str:
    if parameter.name in _RIGHT and chance.random() < 0.6:
        return chance.choice(_RIGHT[parameter.name])
    wants_factory = "FACTORY" in str(parameter.metavar) or parameter.name == "factory"
    if wants_factory and chance.random() < 0.7:
        return chance.choice(("m.py:net", *_FACTORIES))
    return chance.choice(_FILES if chance.random() < 0.75 else _STRANGE)


def _option(chance: Random, parameter: click.Parameter) -> list[str]:
    name = chance.choice(parameter.opts)
    if getattr(parameter, "is_flag", False):
        return [] if name == "--debug" else [name]  # which asks for stack traces
    if parameter.name in _RIGHT and chance.random() < 0.6:
        return [name, chance.choice(_RIGHT[parameter.name])]
    if parameter.name in ("output", "report", "save", "dump_passes", "trace"):
        pool = _OUTPUTS if chance.random() < 0.6 else (*_FILES, *_STRANGE)
    elif isinstance(parameter.type, click.Path):
        pool = _FILES if chance.random() < 0.8 else _STRANGE
    elif isinstance(parameter.type, click.Choice):
        pool = (*map(str, parameter.type.choices), "x")
    else:
        pool = _TEXTS if chance.random() < 0.9 else _STRANGE
    return [name, chance.choice(pool)]


def run_arguments(path: Path) -> str:
    """Runs the command line of a file, in a folder of its own."""
    line = json.loads(path.read_bytes())
    folder = path.parent / "work"
    shutil.copytree(_folder(), folder, symlinks=True)
    with _inside(folder), _silent() as said:
        try:
            code = main(line)
        except SystemExit as error:
            raise AssertionError(f"{line}: exits with {error.code}") from error
    if code not in (0, 1, 2) or "Traceback" in said.getvalue():
        raise AssertionError(f"{line}: {code}, {said.getvalue()[-300:]}")
    left = [str(p) for p in folder.rglob("*.tmp")]
    if left:
        raise AssertionError(f"{line}: leaves {left}")
    return "ran" if code in (0, 1) else "refused"


@contextlib.contextmanager
def _inside(folder: Path):  # type: ignore[no-untyped-def]
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _silent():  # type: ignore[no-untyped-def]
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield text

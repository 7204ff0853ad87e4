"""Command lines at random: whatever the arguments, a verb ends with 0, 1 or 2 and a sentence, and
one that refuses them leaves every file as it was."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import shutil
import sys
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

_RARE = ("demo", "doctor", "selftest", "metal-selftest")  # they take long, and have few options
# The proof of a device takes minutes; what it refuses it refuses for a few cases, too.
_SHORTENED = {"selftest": ("--only", "conformance", "--match", "aten.relu.default", "--quick")}
# Numbers of these are seconds or repeats: a large one is not odd, and takes as long as it says.
_LASTS = ("seconds", "runs", "warmup", "repeats", "max_new_tokens", "contexts")
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
        "\N{GRINNING FACE}.json",
        "a\u202eb",
        "line\nbreak",
        "-o",
        "--help",
        "file://g.json",
        "/proc/self/mem",
        "/dev/full",
    ),
)
_FILES = (
    *("g.json", "p.npubin", "p.npuplan", "m.onnx", "w.safetensors", "x.npy", "m.py", "empty"),
    *("text.txt", "broken.json", "evil.pt", "x.npz", "target.toml", "link.json", "toy.npubin"),
    *("toy", "toy/model.safetensors", "dangling"),
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
    *("99999999999999999999", "nan", "0.5", "true", "float32", "0,1", "h", "9" * 5000, "-0"),
)
_NUMBERS = (
    *("0", "-1", "1", "2", "3", "0.5", "-0.0", "1e400", "-inf", "nan", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775809", "18446744073709551616", "4294967296"),
    *("2147483648", "1_000", " 1", "+1", "0x10", "\u0661", "\uff11", "1.", "1e3", "1,2", "512M"),
    *("-1G", "9" * 400, "", "one"),
)
_RIGHT: dict[str | None, tuple[str, ...]] = {  # what arguments of these names are for
    "graph": ("g.json",),
    "file": ("g.json", "p.npubin", "p.npuplan"),
    "program": ("p.npubin", "p.npuplan"),
    "model": ("m.onnx", "g.json"),
    "factory": ("m.py:net",),
    "target": ("cpu",),
    "device": ("cpu", "null"),
    "prompt": ("h",),
    "token_ids": ("0,1",),
    "tokenizer": ("toy",),
    "inputs": ("x=x.npy", "x.npy"),
    "weights": ("w.safetensors",),
    "threads": ("1",),
    "max_new_tokens": ("2",),
    "seconds": ("0.01",),
}
_RIGHT_FOR_GENERATE: dict[str | None, tuple[str, ...]] = {
    "model": ("toy.npubin",),
    "weights": ("toy", "toy/model.safetensors"),
}
_RIGHT_OUTPUT = {
    "extract": "o.json",
    "import": "o.json",
    "profile": "o.json",
    "export-onnx": "o.onnx",
    "compile": "o.npubin",
    "tune": "o.npubin",
    "partition": "o.npuplan",
    "view": "o.svg",
}
_OUTPUTS = ("o.json", "o.npubin", "o.npuplan", "o.onnx", "o.svg", "o.html", "o.md", "out", "new/o")
_WRITES = ("output", "report", "save", "dump_passes", "trace", "weights_out", "out", "plot")
_OUTSIDE = ("/", "..", "~")  # folders that are not the trial's own


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
    (folder / "target.toml").write_text('name = "mine"')
    (folder / "broken.json").write_bytes((folder / "g.json").read_bytes()[:-40])
    (folder / "link.json").symlink_to("g.json")
    (folder / "dangling").symlink_to("nowhere/at/all")
    _speaker(folder)
    return folder


def _speaker(folder: Path) -> None:
    """Writes a language model that says a fixed text, with its tokenizer."""
    from safetensors.numpy import save_file

    from npusim.language_model.tokenizer import Tokenizer
    from tests.runtime import toy_language_model as toy
    from tests.runtime.test_text import SPOKEN, save_tokenizer, table_of

    home = folder / "toy"
    home.mkdir()
    tokens = [*Tokenizer(save_tokenizer(home)).encode(SPOKEN), toy.EOS]
    save_file({"table": table_of(dict(itertools.pairwise(tokens)))}, home / "model.safetensors")
    toy.program().save(folder / "toy.npubin")


def arguments(chance: Random) -> bytes:
    """Returns a command line as JSON: a verb, some of its options, values of all kinds."""
    from npusim.cli.app import npusim as group

    rare = chance.random() < 0.01
    names = [name for name in group.commands if (name in _RARE) == rare]
    verb = group.commands[chance.choice(names)]
    # Half of the lines are right but for one parameter, and get farther than the others.
    odd = chance.choice(verb.params) if verb.params and chance.random() < 0.5 else None
    line = [verb.name or ""]
    for parameter in verb.params:
        if isinstance(parameter, click.Argument):
            for _ in range(1 if odd else chance.choice((*(1,) * 18, 0, 2))):
                line.append(_positional(chance, verb, parameter, odd))
        elif parameter is odd or (
            parameter.required
            or parameter.name in ("inputs", "weights", "token_ids", "tokenizer", "seconds")
            or (odd is None and chance.random() < 0.15)
        ):
            repeats = (1, 1, 1, 2) if getattr(parameter, "multiple", False) else (*(1,) * 18, 2)
            for _ in range(chance.choice(repeats)):
                line += _option(chance, verb, parameter, odd)
    line += _SHORTENED.get(verb.name or "", ())
    if odd is not None:
        return json.dumps(line).encode()
    if chance.random() < 0.05:
        line.insert(chance.randrange(len(line) + 1), chance.choice(("--what", "-x", "--json=1")))
    if chance.random() < 0.08:  # what belongs to another verb
        other = group.commands[chance.choice(list(group.commands))]
        options = [p for p in other.params if isinstance(p, click.Option)]
        line += _option(chance, other, chance.choice(options))
    if chance.random() < 0.02:
        line = ["--import", chance.choice(("m.py", "m", *_STRANGE)), *line]
    return json.dumps(line).encode()


def _right(verb: click.Command, parameter: click.Parameter) -> tuple[str, ...]:
    """Returns what a parameter of this name is for."""
    if parameter.name == "output":
        return (_RIGHT_OUTPUT.get(verb.name or "", "out"),)
    own = _RIGHT_FOR_GENERATE if verb.name == "generate" else _RIGHT
    return own.get(parameter.name) or _RIGHT.get(parameter.name, ())


def _is_right(chance: Random, parameter: click.Parameter, odd: click.Parameter | None) -> bool:
    return chance.random() < 0.6 if odd is None else parameter is not odd


def _positional(
    chance: Random, verb: click.Command, parameter: click.Parameter, odd: click.Parameter | None
) -> str:
    right = _right(verb, parameter)
    if right and _is_right(chance, parameter, odd):
        return chance.choice(right)
    wants_factory = "FACTORY" in str(parameter.metavar) or parameter.name == "factory"
    if wants_factory and chance.random() < 0.7:
        return chance.choice(("m.py:net", *_FACTORIES))
    return chance.choice(_FILES if chance.random() < 0.75 else _STRANGE)


def _option(
    chance: Random,
    verb: click.Command,
    parameter: click.Parameter,
    odd: click.Parameter | None = None,
) -> list[str]:
    name = chance.choice(parameter.opts)
    if getattr(parameter, "is_flag", False) or getattr(parameter, "count", False):
        return [] if name == "--debug" else [name]  # which asks for stack traces
    right = _right(verb, parameter)
    if right and _is_right(chance, parameter, odd):
        return [name, chance.choice(right)]
    if parameter.name in _WRITES:
        pool = _OUTPUTS if chance.random() < 0.6 else (*_FILES, *_STRANGE)
        pool = tuple(path for path in pool if path not in _OUTSIDE)
    elif isinstance(parameter.type, click.Path):
        pool = _FILES if chance.random() < 0.8 else _STRANGE
    elif isinstance(parameter.type, click.Choice):
        pool = (*map(str, parameter.type.choices), "x")
    elif not isinstance(parameter.type, click.types.StringParamType):
        pool = _NUMBERS if chance.random() < 0.9 else _STRANGE
        if parameter.name in _LASTS:
            pool = tuple(text for text in pool if not _is_large(text))
    else:
        pool = _TEXTS if chance.random() < 0.9 else _STRANGE
    value = chance.choice(pool)
    return [f"{name}={value}"] if name.startswith("--") and chance.random() < 0.2 else [name, value]


def _is_large(text: str) -> bool:
    try:
        return float(text) > 3
    except ValueError:
        return False


def run_arguments(path: Path) -> str:
    """Runs the command line of a file, in a folder of its own."""
    line = json.loads(path.read_bytes())
    folder = path.parent / "work"
    shutil.copytree(_folder(), folder, symlinks=True)
    before = _content(folder)
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
    if code == 2 and (after := _content(folder)) != before:
        changed = sorted(name for name, _ in before.items() ^ after.items())
        raise AssertionError(f"{line}: refused, and yet it changed {changed}")
    return "ran" if code in (0, 1) else "refused"


def _content(folder: Path) -> dict[str, str]:
    """Returns what stands in a folder: the digest of each file, where each link leads."""
    found = {}
    for path in folder.rglob("*"):
        if "__pycache__" in path.parts:  # Python's own, of the module that holds the model
            continue
        if path.is_symlink():
            text = f"-> {path.readlink()}"
        else:
            text = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        found[str(path.relative_to(folder))] = text
    return found


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
    text, stdin = io.StringIO(), sys.stdin
    sys.stdin = io.StringIO("h\n")
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            yield text
    finally:
        sys.stdin = stdin

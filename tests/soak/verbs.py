"""Every verb of the command line, stopped at random moments and without what it needs.

Whatever happens, a verb ends by itself, with one of the codes that it documents or by the signal it
was sent, says something when it failed, and leaves whole files or none.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

import npusim
from npusim.codegen.choice import Choice
from npusim.codegen.tuning import Tuning, key_of
from tests.runtime import toy_language_model
from tests.runtime.test_weights import write_safetensors

DEADLINE = 120  # seconds until a verb counts as hanging
MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.line(x).relu()

def make():
    return Net().eval(), (torch.ones(2, 8),)

def failing():
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.Softmax(-1), torch.nn.Linear(16, 4)
    return torch.nn.Sequential(*layers).eval(), (torch.randn(2, 8),)
"""


@dataclass(frozen=True)
class Trial:
    """A verb with its arguments, what it writes, and the seconds within which it is stopped."""

    verb: str
    args: Sequence[str]
    writes: Sequence[str] = ()
    within: float = 6


def prepare(folder: Path) -> None:
    """Writes the files that the verbs read."""
    import torch

    (folder / "net.py").write_text(MODEL, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        import net
    finally:
        sys.path.remove(str(folder))
    torch.manual_seed(0)
    model, inputs = net.make()
    graph = npusim.extract_ir(model, inputs)
    graph.save(folder / "net.json")
    npusim.compile(graph).save(folder / "net.npubin")
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    write_safetensors(folder / "net.safetensors", state)
    np.save(folder / "x.npy", np.ones((2, 8), np.float32))
    npusim.export_onnx(graph, folder / "net.onnx", weights=state)
    toy_language_model.program().save(folder / "words.npubin")
    write_safetensors(folder / "words.safetensors", toy_language_model.weights())
    _write_tuning(npusim.compile(graph, target="cuda"), folder)


def _write_tuning(program: npusim.CompiledProgram, folder: Path) -> None:
    """Writes a program for GPUs, and choices as measuring on one finds them."""
    program.save(folder / "gpu.npubin")
    keys = {
        key_of(program.kernels[command.kernel].name, command.params): command
        for command in program.methods[0].commands
    }
    choices = {key: Choice("cublaslt", 1, 130100) for key in keys}
    stems = {key: program.kernels[command.kernel].name for key, command in keys.items()}
    Tuning("a GPU", choices, stems).save(folder / "tuning.json")


def trials() -> list[Trial]:
    """Returns a use of every verb that works on these files, with outputs below `out/`."""
    weights = ["--weights", "net.safetensors"]
    return [
        Trial("check", ["net.json"]),
        Trial("compile", ["net.json", "-o", "out/n.npubin"], ["n.npubin"]),
        Trial("export-onnx", ["net.json", *weights, "-o", "out/n.onnx"], ["n.onnx"]),
        Trial("extract", ["net.py:make", "-o", "out/n.json"], ["n.json"]),
        Trial("import", ["net.onnx", "-o", "out/i.json"], ["i.json"]),
        Trial("info", ["net.npubin", "--json"]),
        Trial("partition", ["net.json", "-o", "out/n.plan"], ["n.plan"]),
        Trial("run", ["net.npubin", *weights, "--input", "x.npy", "-o", "out/results"]),
        Trial("profile", ["net.npubin", *weights]),
        Trial("bench", ["net.npubin", *weights]),
        Trial("verify", ["net.py:make"]),
        Trial("view", ["net.json", "-o", "out/n.svg"], ["n.svg"]),
        Trial("doctor", []),
        Trial(
            "generate",
            ["words.npubin", "--weights", "words.safetensors", "--token-ids", "1,2,3"],
        ),
        Trial(
            "tune",
            ["gpu.npubin", "--from", "tuning.json", "-o", "out/t.npubin", "--save", "out/t.json"],
            ["t.npubin", "t.json"],
        ),
        Trial(
            "reduce",
            ["net.py:failing", "--tolerance", "1e-12", "-o", "out/small"],
            ["small/graph.json", "small/repro.json", "small/command.txt"],
            within=12,
        ),
    ]


@dataclass(frozen=True)
class Outcome:
    """How a verb ended: its code (negative: the signal), and what was wrong with that."""

    code: int
    problem: str


def attempt(
    trial: Trial,
    folder: Path,
    *,
    limit: Callable[[], object] | None = None,
    stop: tuple[int, float] | None = None,
    out: Path | None = None,
) -> Outcome:
    """Runs a verb in a fresh `out/`.

    Args:
        limit: called in the child before the verb.
        stop: a signal, and after how many seconds it is sent.
        out: where `out` leads instead.
    """
    target = folder / "out"
    shutil.rmtree(target, ignore_errors=True)
    if out is None:
        target.mkdir()
    else:
        target.symlink_to(out)
    process = subprocess.Popen(
        [sys.executable, "-m", "npusim.cli", trial.verb, *trial.args],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=limit,
        text=True,
    )
    if stop is not None:
        time.sleep(stop[1])
        process.send_signal(stop[0])
    try:
        _, said = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Outcome(0, "it does not end")
    finally:
        if out is not None:
            target.unlink()
    sent = () if stop is None else (-stop[0], 128 + stop[0])
    code = process.returncode
    fair = stop is None and limit is None and out is None
    if code not in ((0,) if fair else (0, 1, 2, *sent)):
        return Outcome(code, f"it ended with {code}: {said[-300:]}")
    if code not in (0, *sent) and not said.strip():
        return Outcome(code, f"it ended with {code} and no word")
    return Outcome(code, "" if out is not None else _leftovers(target, trial, code))


def _leftovers(target: Path, trial: Trial, code: int) -> str:
    found = [path for path in target.rglob("*") if path.is_file()]
    for path in found:
        if path.name.endswith(".tmp") or path.name.startswith("."):
            return f"it left {path.name}"
        if not _is_whole(path):
            return f"{path.name} is not whole"
    missing = [name for name in trial.writes if not (target / name).exists()]
    some = 0 < len(missing) < len(trial.writes)  # all files of a verb or none
    return f"it wrote no {missing[0]}" if missing and (code == 0 or some) else ""


def _is_whole(path: Path) -> bool:
    readers: dict[str, Callable[[Path], object]] = {
        ".npubin": npusim.CompiledProgram.load,
        ".plan": npusim.PartitionPlan.load,
        ".json": lambda p: json.loads(p.read_bytes()),
        ".onnx": lambda p: import_module("onnx").load(p),
        ".npy": np.load,
        ".txt": lambda p: p.read_text(encoding="utf-8").endswith("\n") or 1 / 0,
        ".svg": lambda p: p.read_text(encoding="utf-8").rstrip().endswith("</svg>") or 1 / 0,
    }
    try:
        readers[path.suffix](path)
    except Exception:
        return False
    return True


def _file_size(most: int) -> Callable[[], object]:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as a full disk: an error, no signal
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    return limit


def _memory(most: int) -> Callable[[], object]:
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most))


def run(scale: float, wanted: str, folder: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Yields a condition, how many verbs ran under it, and what was wrong with which."""
    prepare(folder)
    random.seed(0)
    rounds = max(1, round(20 * scale))

    def every(count: int, options: Callable[[Trial], dict[str, object]]) -> tuple[int, list[str]]:
        problems, done = [], 0
        for trial in [t for t in trials() if scale >= 0.05 or t.verb in ("compile", "run")]:
            for _ in range(count):
                outcome = attempt(trial, folder, **options(trial))
                done += 1
                if outcome.problem:
                    problems.append(f"{trial.verb}: {outcome.problem}")
        return done, problems

    sealed = Path("/sys") if os.geteuid() == 0 else folder / "sealed"  # root writes anywhere else
    if sealed.parent == folder:
        sealed.mkdir(exist_ok=True)
        sealed.chmod(0o555)
    conditions: dict[str, tuple[int, Callable[[Trial], dict[str, object]]]] = {
        "as it should be": (1, lambda _: {}),
        "Ctrl-C": (rounds, lambda t: {"stop": (signal.SIGINT, random.uniform(0, t.within))}),
        "SIGTERM": (rounds, lambda t: {"stop": (signal.SIGTERM, random.uniform(0, t.within))}),
        "no room for a file": (1, lambda _: {"limit": _file_size(64)}),
        "little memory": (
            max(1, rounds // 2),
            lambda _: {"limit": _memory(random.randrange(64 << 20, 4 << 30))},
        ),
        "a read-only folder": (1, lambda _: {"out": sealed}),
    }
    for name, (count, options) in conditions.items():
        if wanted in name:
            done, problems = every(count, options)
            yield name, done, problems

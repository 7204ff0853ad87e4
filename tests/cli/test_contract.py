"""What all verbs share: usage errors, --json, --debug, interruption, missing dependencies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Cli, Compiled

VERBS = (
    *("extract", "compile", "info", "view", "run", "generate", "verify", "bench", "doctor"),
    *("profile", "demo", "check", "import", "export-onnx", "targets", "upgrade", "pack-weights"),
    "quantize",
    *("simulate", "simulate-llm", "explain", "sweep", "compare"),
)


def test_help_names_every_verb(cli: Cli) -> None:
    outcome = cli("--help")
    assert outcome.code == 0
    for verb in VERBS:
        assert verb in outcome.out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_json_and_debug(cli: Cli, verb: str) -> None:
    outcome = cli(verb, "--help")
    assert outcome.code == 0
    assert "--json" in outcome.out
    assert "--debug" in outcome.out


def test_version(cli: Cli) -> None:
    import npusim

    assert npusim.__version__ in cli("--version").out


def test_usage_errors_are_one_sentence(cli: Cli) -> None:
    cli("levitate").refused("levitate")
    cli("compile").refused("GRAPH", "npusim compile --help")
    cli("info", "x", "--sideways").refused("--sideways")


def test_an_error_under_json_is_one_object(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("info", tmp_path / "none", "--json")
    assert outcome.code == 2
    assert outcome.json["ok"] is False
    assert outcome.json["error"]["type"] == "Error"
    assert "none" in outcome.json["error"]["message"]
    usage = cli("info", "--json")
    assert usage.code == 2
    assert usage.json["ok"] is False


def test_debug_shows_the_trace(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("info", tmp_path / "none", "--debug")
    assert outcome.code == 2
    assert "Traceback" in outcome.err


def test_a_library_that_cannot_be_mapped_is_no_defect(
    cli: Cli, mlp: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As happens to PyTorch's when there is little memory."""

    def fail(path: Path) -> None:
        raise ImportError("libx.so: failed to map segment from shared object")

    monkeypatch.setattr("npusim.cli.info.open_artifact", fail)
    cli("info", mlp.graph).refused("A library cannot be loaded: libx.so: failed to map segment")


def test_a_defect_is_said_to_be_one(
    cli: Cli, mlp: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("a slip")

    monkeypatch.setattr("npusim.cli.info.open_artifact", fail)
    outcome = cli("info", mlp.graph)
    assert outcome.code == 3
    assert "ZeroDivisionError: a slip" in outcome.err
    assert "Traceback" not in outcome.err


def _without(package: str) -> str:
    """Code that runs the command line as if `package` were not installed."""
    return (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from npusim.cli import main; sys.exit(main(['doctor']))"
    )


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_its_dependencies_the_command_says_what_to_install(package: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _without(package)], capture_output=True, text=True
    )
    assert result.returncode == 2
    assert "pip install 'npusim[cli]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    """Ctrl-C while the factory runs, a sure point in the middle of the work."""
    started = tmp_path / "started"
    source = tmp_path / "slow.py"
    source.write_text(
        f"import pathlib, time\n\ndef model():\n"
        f"    pathlib.Path({str(started)!r}).touch()\n    time.sleep(60)\n"
    )
    out = tmp_path / "out"
    out.mkdir()
    code, err = _interrupt(
        ["extract", f"{source}:model", "-o", str(out / "g.json")], when=started.exists
    )
    assert code == 130
    assert err.strip() == "Interrupted."
    assert list(out.iterdir()) == []


def test_an_interrupt_while_writing_keeps_the_old_file(
    mlp: Compiled, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "model.npubin"
    output.write_bytes(b"old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    outcome = cli("compile", mlp.graph, "-o", output, "--force")
    assert outcome.code == 130
    assert output.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [output]


def _interrupt(arguments: list[str], when: Callable[[], bool]) -> tuple[int, str]:
    """Runs the command line, presses Ctrl-C as soon as `when` holds; returns code and stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "npusim.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not when() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, err


def test_a_reader_that_goes_away_is_no_defect(mlp: Compiled) -> None:
    """Whether Python writes each line or keeps them until the end."""
    command = f"{sys.executable} -m npusim.cli info {mlp.graph} | true"
    for unbuffered in ("", "1"):
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        result = subprocess.run(command, shell=True, capture_output=True, text=True, env=env)
        assert result.stderr == ""

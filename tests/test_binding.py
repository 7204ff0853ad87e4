"""A native module built from another version than the Python files is refused at its first use."""

from __future__ import annotations

import importlib.machinery
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import npusim
from npusim import _runtime, binding

# Python files and their declarations in a folder of their own, beside a module that says it was
# built from something else, or, as modules before this check, says nothing.
_OLD = """
import sys, types
old = types.ModuleType("npusim._runtime")
old.__file__, old.__version__ = "there/_runtime.so", "0.1.0"
{stamp}
sys.modules[old.__name__] = old
"""


def _after_a_pull(code: str, stamp: str = "") -> subprocess.CompletedProcess[str]:
    text = _OLD.format(stamp=stamp) + code
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("stamp", ["", "old.__interface__ = 'f' * 128"])
def test_an_older_module_is_one_error_that_says_how_to_build(stamp: str) -> None:
    outcome = _after_a_pull(
        "import npusim\n"
        "for name in ('load', 'Device', 'LanguageModel', 'load'):\n"
        "    try: getattr(npusim, name)\n"
        "    except npusim.Error as error: print(error)\n"
        "    else: print(name, 'was not refused')\n",
        stamp,
    )
    lines = outcome.stdout.splitlines()
    assert len(lines) == 4, outcome.stderr
    for line in lines:
        assert re.search("there/_runtime.so was built from another version of npusim than", line)
        assert "pip install" in line


@pytest.mark.parametrize("verb", ["profile", "bench", "info"])
def test_verbs_that_need_it_are_refused(verb: str, tmp_path: Path) -> None:
    program = str(tmp_path / "p.npubin")
    npusim.compile(npusim.extract_ir(torch.nn.ReLU().eval(), (torch.zeros(2),))).save(program)
    outcome = _after_a_pull(f"from npusim.cli import main; sys.exit(main([{verb!r}, {program!r}]))")
    assert outcome.returncode == 2, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert "another version of npusim" in outcome.stderr


def test_the_doctor_says_so() -> None:
    outcome = _after_a_pull("from npusim.cli import main; sys.exit(main(['doctor']))")
    assert outcome.returncode == 1, outcome.stderr
    assert "another version" in outcome.stdout and "pip install" in outcome.stdout


def test_importing_the_package_does_not_need_the_module() -> None:
    outcome = _after_a_pull("import npusim; npusim.compile; npusim.IR; print('compiles')")
    assert outcome.stdout == "compiles\n", outcome.stderr


def test_the_module_that_was_built_is_of_this_version() -> None:
    assert _runtime.__interface__ == binding.interface()
    assert npusim._runtime is _runtime


@pytest.mark.parametrize("changed", ["_runtime.pyi", "kernels/shared/abi.h"])
def test_either_file_changes_what_is_compared(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "npusim"
    (package / "kernels" / "shared").mkdir(parents=True)
    shutil.copy(Path(npusim.__file__).with_name("_runtime.pyi"), package)
    shutil.copy(binding.kernel_root() / "shared" / "abi.h", package / "kernels" / "shared")
    monkeypatch.setattr(binding, "_PACKAGE", package)
    assert binding.interface() == _runtime.__interface__
    with (package / changed).open("a") as file:
        file.write("\n")
    assert binding.interface() != _runtime.__interface__
    with pytest.raises(npusim.Error, match="--force-reinstall"):
        binding.native_module()
    monkeypatch.undo()
    from npusim import _runtime as again

    assert again is _runtime


def test_the_package_for_native_programs_is_found_or_missed_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "_runtime.so"
    spec = importlib.machinery.ModuleSpec("npusim._runtime", None, origin=str(module))
    monkeypatch.setattr(binding.importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(npusim.Error, match="brings no libnpusim"):
        binding.cmake_dir()
    package = tmp_path / "lib" / "cmake" / "npusim"
    package.mkdir(parents=True)
    (package / "npusimConfig.cmake").touch()
    assert binding.cmake_dir() == package


def test_the_module_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "npusim", "--version"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0 and npusim.__version__ in outcome.stdout, outcome.stderr


@pytest.mark.parametrize(
    "version", ["3.13.0 experimental free-threading build", "3.14.1 free-threading"]
)
def test_a_free_threaded_python_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(sys, "version", version)
    with pytest.raises(npusim.Error, match="free-threaded Python") as refused:
        binding.native_module()
    assert "python3.13" in str(refused.value)


def test_an_ordinary_python_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version", "3.14.0 (main, Oct  7 2025)")
    assert binding.native_module() is _runtime

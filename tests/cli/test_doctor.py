"""npusim doctor: a diagnosis that holds on a working machine and names what is missing."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from .conftest import Cli, Compiled


def test_a_working_machine_is_told_so(cli: Cli) -> None:
    outcome = cli("doctor", "--json")
    assert outcome.code == 0
    checks = {check["what"]: check for check in outcome.json["checks"]}
    assert checks["device cpu"]["state"] == "ok"
    assert "right result" in checks["small program"]["found"]
    assert checks["target cuda"]["found"].startswith("compiles for sm_")
    assert checks["target cuda"]["found"].endswith("such as cuda:sm_80")
    assert "target cpu" not in checks  # it has kernels of its own
    assert "Programs run on this machine." in cli("doctor").out


def test_a_missing_package_comes_with_the_way_out(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    outcome = cli("doctor")
    assert outcome.code == 0  # optional: programs still run
    assert "pip install 'npusim[torch]'" in outcome.out


def test_a_missing_runtime_is_a_no(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "npusim._runtime", None)
    monkeypatch.delattr("npusim._runtime", raising=False)
    outcome = cli("doctor")
    assert outcome.code == 1
    assert "Programs cannot run on this machine." in outcome.out


def test_without_the_runtime_other_verbs_point_to_the_doctor(mlp: Compiled) -> None:
    code = (
        "import sys; sys.modules['npusim._runtime'] = None\n"
        f"from npusim.cli import main; sys.exit(main(['bench', {str(mlp.program)!r}]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert "npusim doctor" in result.stderr
    assert "Traceback" not in result.stderr

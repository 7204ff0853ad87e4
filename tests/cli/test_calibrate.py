"""`npusim calibrate`: the fitted target, the errors it tells, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import npusim
from npusim.profile.profile import Profile
from npusim.profile.saved import profile_facts
from npusim.simulate.machine import machine_of
from tests.simulate.test_roofline import DEVICE, profiled

from .conftest import Cli, Compiled

pytest.importorskip("scipy")


def written(profile: Profile, file: Path) -> Path:
    """Returns the file that a profile was written to."""
    file.write_text(json.dumps(profile_facts(profile)))
    return file


def test_a_target_is_fitted_to_profiles(cli: Cli, tmp_path: Path) -> None:
    truth = replace(DEVICE, call_us=0.0)
    layers = written(profiled(truth, 60, 1), tmp_path / "layers.json")
    model = written(profiled(truth, 30, 2), tmp_path / "model.json")
    output = tmp_path / "mine.toml"
    outcome = cli("calibrate", layers, "--target", "cpu", "--check", model, "-o", output)
    assert outcome.code == 0, outcome.err
    for said in ("class", "held out", "95th percentile", "model.json", "cpu as measured on device"):
        assert said in outcome.out
    fitted = npusim.TargetConfig.named(str(output))
    assert fitted.name == "mine" and fitted.device == "cpu" and fitted.hardware is not None
    assert fitted.hardware.calibration.source == "device"
    assert fitted.hardware.calibration.held_out.startswith("linear_loose ")
    assert fitted.hardware.roofline != npusim.TargetConfig.named("cpu").hardware.roofline


def test_the_answer_as_json(cli: Cli, tmp_path: Path) -> None:
    layers = written(profiled(DEVICE, 60, 1), tmp_path / "layers.json")
    facts = cli("calibrate", layers, "-o", tmp_path / "mine.toml", "--json").json
    assert facts["ok"] and facts["device"] == "device"
    linear = {one["name"]: one for one in facts["classes"]}["linear_loose"]
    assert linear["fitted"] > 0 and linear["held_out"] > 0 and 0 <= linear["mean"] < 0.5
    (run,) = facts["runs"]
    assert run["error"] == pytest.approx(run["predicted"] / run["measured"] - 1)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes this machine another one; returns its description."""
    told = "A processor, avx2, 4 threads"
    rates = {"read": 40e9, "float32": 0.5e12}
    machine = machine_of(told, rates, [(2, 512, 1), (3, 8192, 8)])
    monkeypatch.setattr("npusim.cli.calibrate.this_machine", lambda threads: machine)
    return told


def test_a_machine_without_profiles_is_described(cli: Cli, tmp_path: Path, here: str) -> None:
    output = tmp_path / "mine.toml"
    outcome = cli("calibrate", "--here", "-o", output)
    assert outcome.code == 0, outcome.err
    assert f"cpu as measured on {here}" in outcome.out and "held out" not in outcome.out
    hardware = npusim.TargetConfig.named(str(output)).hardware
    assert hardware is not None and hardware.roofline is not None
    assert hardware.calibration.source == here
    found = hardware.roofline
    assert (found.cores, found.lanes, found.memory[0].kib) == (4, 8, 2048)
    assert found.peak("float32").product_tera_ops_per_second == pytest.approx(0.5)


def test_profiles_of_the_machine_are_fitted_to_as_well(cli: Cli, tmp_path: Path, here: str) -> None:
    layers = written(replace(profiled(DEVICE, 60, 1), device=here), tmp_path / "layers.json")
    facts = cli("calibrate", layers, "--here", "-o", tmp_path / "mine.toml", "--json").json
    assert facts["device"] == here
    assert {one["name"]: one["fitted"] for one in facts["classes"]}["linear_loose"] > 0
    other = written(profiled(DEVICE, 60, 1), tmp_path / "other.json")
    refused = cli("calibrate", other, "--here", "-o", tmp_path / "mine.toml")
    refused.refused("of 'device'", f"this machine is '{here}'", "on the machine that was profiled")


def test_what_says_nothing_of_a_machine_is_refused(cli: Cli, tmp_path: Path) -> None:
    output, layers = tmp_path / "mine.toml", tmp_path / "layers.json"
    cli("calibrate", "-o", output).refused("Give profiles, or --here")
    cli("calibrate", layers, "--threads", 2, "-o", output).refused("--threads goes with --here")
    cli("calibrate", "--here", "--check", layers, "-o", output).refused(
        "--check goes with profiles"
    )
    cli("calibrate", "--here", "--target", "h200", "-o", output).refused("--here describes a CPU")


def test_what_cannot_be_fitted_is_refused(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    layers = written(profiled(DEVICE, 60, 1), tmp_path / "layers.json")
    few = written(profiled(DEVICE, 3, 1), tmp_path / "few.json")
    output = tmp_path / "mine.toml"
    cli("calibrate", layers, "--target", "null", "-o", output).refused("has no roofline")
    cli("calibrate", layers, "--target", "magic", "-o", output).refused("Unknown target 'magic'")
    cli("calibrate", few, "-o", output).refused("6 are the fewest")
    cli("calibrate", mlp.graph, "-o", output).refused("is no profile", "npusim profile")
    cli("calibrate", tmp_path / "none.json", "-o", output).refused("none.json")
    other = written(replace(profiled(DEVICE, 60, 1), device="other"), tmp_path / "other.json")
    cli("calibrate", layers, other, "-o", output).refused("several devices")
    base = profiled(DEVICE, 60, 1)
    for seconds, said in ((1e-15, "with the target's peaks it takes"), (1e6, "took 1e+06 s")):
        commands = (replace(base.commands[0], seconds=seconds), *base.commands[1:])
        absurd = written(replace(base, commands=commands), tmp_path / "absurd.json")
        cli("calibrate", absurd, "-o", output).refused("Command 0 of 'drawn' (linear)", said)
    for target in ("cuda", "npu-edge-32x32"):
        other = written(replace(base, target=target), tmp_path / "another.json")
        cli("calibrate", other, "-o", output).refused(f"compiled for '{target}'", "device 'cpu'")
    for key, value in (("seconds", "NaN"), ("seconds", "-1"), ("run_s", "Infinity")):
        text = re.sub(rf'"{key}": ?[^,}}]+', f'"{key}": {value}', layers.read_text(), count=1)
        bad = tmp_path / "bad.json"
        bad.write_text(text)
        cli("calibrate", bad, "-o", output).refused(f"'{key}' of", "is no time in seconds")
    empty = tmp_path / "empty.json"
    for text, said in (("", "is not JSON"), ("{}", "no list of commands"), ("[]", "is no object")):
        empty.write_text(text)
        cli("calibrate", empty, "-o", output).refused(said)
    assert not output.exists()

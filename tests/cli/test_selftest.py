"""npusim selftest: a device that computes right is told so, and one that does not is found out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import npusim
from npusim.selftest import conformance, models
from npusim.selftest.supervise import Wanted, supervised
from npusim.selftest.timings import WORK

from .conftest import Cli


def test_the_cpu_agrees_with_pytorch(cli: Cli, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    outcome = cli(
        *("selftest", "--match", "aten.a*", "--quick", "-o", str(report)),
        *("--only", "conformance", "--only", "models", "--only", "decoders"),
    )
    assert outcome.code == 0, outcome.out
    facts = json.loads(report.read_text("utf-8"))
    assert facts["failures"] == 0
    assert facts["conformance"]["passed"] > 50
    assert not facts["conformance"]["refused"]
    assert len(facts["models"]) == sum(len(e.dtypes) for e in models.EXAMPLES.values())
    assert facts["decoders"] == {"a decoder, float32": {"tokens": 32}}
    assert "Nothing differs." in outcome.out


def test_wrong_results_are_told_by_op_and_model(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = conformance.reference
    monkeypatch.setattr(conformance, "reference", lambda g, t: [r + 1 for r in right(g, t)])
    # float32 cannot be this exact
    monkeypatch.setattr(models, "BOUNDS", dict.fromkeys(models.BOUNDS, 1e-12))
    report = tmp_path / "report.json"
    outcome = cli(
        *("selftest", "--match", "aten.cos.default", "--only", "conformance", "--only", "models"),
        *("-o", str(report)),
    )
    assert outcome.code == 1
    assert "aten.cos.default" in outcome.out
    facts = json.loads(report.read_text("utf-8"))
    cases = facts["conformance"]
    assert len(cases["failures"]) > 5
    assert cases["passed"] == 4  # a tensor without elements, in each dtype
    assert "from PyTorch's" in facts["models"]["residual, float32"]["failure"]
    assert facts["failures"] == len(facts["conformance"]["failures"]) + sum(
        "failure" in row for row in facts["models"].values()
    )


def test_a_device_that_is_not_there_is_refused(cli: Cli, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    outcome = cli("selftest", "--device", "abacus", "-o", str(report))
    assert outcome.code == 2
    assert "abacus" in outcome.err
    assert not report.exists()


# What a process does that a step of it ends: it speaks the protocol of npusim.selftest.worker.
WORKER = """
import json, os, signal, sys, time
def say(**line): print(json.dumps(line), flush=True)
say(device="fake", description="a process")
for number in range(json.loads(sys.argv[1])["first"], 6):
    say(begin=number)
    if number == 1: os.kill(os.getpid(), signal.SIGSEGV)
    if number == 2: time.sleep(1000)
    if number == 4: sys.exit(3)
    say(end=number, outcome={"number": number})
"""
WANTED = Wanted("cpu", ("conformance",), "*", quick=True)


def test_a_step_that_crashes_or_hangs_is_told_and_the_rest_goes_on() -> None:
    outcomes = list(supervised(WANTED, 6, 0.5, (sys.executable, "-c", WORKER)))
    assert outcomes[0] == (-1, {"device": "fake", "description": "a process"})
    assert [number for number, _ in outcomes[1:]] == [0, 1, 2, 3, 4, 5]
    found = dict(outcomes[1:])
    assert found[0] == {"number": 0} and found[3] == {"number": 3} and found[5] == {"number": 5}
    assert found[1] == {"failure": "the process was ended by SIGSEGV"}
    assert found[2] == {"failure": "it took more than 0.5 s and was stopped"}
    assert found[4] == {"failure": "the process ended with status 3"}


@pytest.mark.parametrize("program", ["import sys; sys.exit(7)", 'print(\'{"device": "x"}\')'])
def test_a_process_that_never_begins_is_an_error(program: str) -> None:
    with pytest.raises(npusim.Error, match="cannot begin"):
        list(supervised(WANTED, 6, 5, (sys.executable, "-c", program)))


def test_a_proof_in_a_process_of_its_own(cli: Cli, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ("selftest", "--match", "aten.abs.default", "--only", "conformance")
    here = cli(*arguments, "--json").json
    there = cli(*arguments, "--time-limit", "100", "-o", str(report), "--json").json
    assert there["conformance"] == here["conformance"] and there["conformance"]["passed"] > 0
    assert there["device"] == here["device"] == "cpu"
    assert json.loads(report.read_text("utf-8"))["conformance"] == here["conformance"]


def test_a_process_without_the_device_is_refused(cli: Cli, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    outcome = cli("selftest", "--device", "cuda", "--time-limit", "100", "-o", str(report))
    assert outcome.code == 2 and not report.exists()


def test_work_is_counted_by_hand() -> None:
    row = WORK["linear: 1 row, 4096 to 4096"]
    assert (row.bytes, row.operations) == (2 * (4096 + 4096**2 + 4096), 2 * 4096**2)
    convolution = WORK["convolution: 8 images of 56, 3 by 3, 64 channels"]
    (image,) = convolution.inputs()
    with torch.no_grad():
        result = convolution.model()(image)
    assert convolution.operations == 2 * result.numel() * 64 * 9
    assert convolution.bytes == 2 * (image.numel() + result.numel() + 64 * 64 * 9)

"""npusim selftest: a device that computes right is told so, and one that does not is found out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from npusim.selftest import conformance, models
from npusim.selftest.timings import WORK

from .conftest import Cli


def test_the_cpu_agrees_with_pytorch(cli: Cli, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    outcome = cli(
        *("selftest", "--match", "aten.a*", "--quick", "-o", str(report)),
        *("--only", "conformance", "--only", "models", "--only", "decoder"),
    )
    assert outcome.code == 0, outcome.out
    facts = json.loads(report.read_text("utf-8"))
    assert facts["failures"] == 0
    assert facts["conformance"]["passed"] > 50
    assert not facts["conformance"]["refused"]
    assert len(facts["models"]) == sum(len(e.dtypes) for e in models.EXAMPLES.values())
    assert facts["decoder"] == {"tokens": 32}
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


def test_work_is_counted_by_hand() -> None:
    row = WORK["linear: 1 row, 4096 to 4096"]
    assert (row.bytes, row.operations) == (2 * (4096 + 4096**2 + 4096), 2 * 4096**2)
    convolution = WORK["convolution: 8 images of 56, 3 by 3, 64 channels"]
    (image,) = convolution.inputs()
    with torch.no_grad():
        result = convolution.model()(image)
    assert convolution.operations == 2 * result.numel() * 64 * 9
    assert convolution.bytes == 2 * (image.numel() + result.numel() + 64 * 64 * 9)

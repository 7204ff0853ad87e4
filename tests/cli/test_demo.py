"""npusim demo: the whole path on real data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npusim

from .conftest import Cli


def test_npusim_and_pytorch_agree_on_every_digit(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("demo", "--out", tmp_path / "demo", "--json")
    assert outcome.code == 0, outcome.err
    facts = outcome.json
    assert facts["disagreements"] == 0
    assert facts["accuracy"]["npusim"] == facts["accuracy"]["torch"] > 0.95
    assert facts["max_abs_difference"] <= 1e-4 * facts["max_logit"]
    files = facts["files"]
    session = npusim.load(files["program"], weights=files["weights"])
    (logits,) = session(np.load(files["input"]))
    assert logits.shape == (1, 10)


def test_a_disagreement_is_a_no(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = npusim.load

    def perturbed(*args: object, **kwargs: object):
        session = load(*args, **kwargs)
        return lambda image: tuple(-logits for logits in session(image))

    monkeypatch.setattr(npusim, "load", perturbed)
    outcome = cli("demo", "--out", tmp_path, "--json")
    assert outcome.code == 1
    assert outcome.json["ok"] is False
    assert outcome.json["disagreements"] > 0


def test_an_unusable_folder_is_refused(cli: Cli, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    cli("demo", "--out", taken).refused("taken")
    assert taken.read_text() == "mine"

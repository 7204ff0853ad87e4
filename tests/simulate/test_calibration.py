"""The presets that were fitted to measured devices: their errors are the documented ones."""

from __future__ import annotations

import pytest
from benchmarks.calibration import DEVICES, HELD_OUT, profiles, roofline, tables

from npusim.simulate.calibrate import held_out
from tests.simulate.documented import documented


def test_the_tables_are_documented(request: pytest.FixtureRequest) -> None:
    documented("calibration", tables(), request.config.getoption("--update-golden"))


@pytest.mark.parametrize("device", sorted(DEVICES))
def test_profiles_are_of_one_device_and_of_all_models(device: str) -> None:
    found = profiles(device)
    assert set(HELD_OUT) < set(found) and len({p.device for p in found.values()}) == 1
    assert all(c.seconds > 0 for p in found.values() for c in p.commands)


def test_products_of_the_gpu_are_within_their_goal() -> None:
    found = profiles("h200")
    learnt = [profile for name, profile in found.items() if name not in HELD_OUT]
    classes, runs = held_out(learnt, roofline("h200"), [found["resnet50"], found["bert_base"]])
    products = {one.name: one.mean for one in classes if one.name in ("vector", "few", "linear")}
    assert len(products) == 3 and max(products.values()) <= 0.1
    assert all(abs(run.error) <= 0.15 for run in runs)


def test_models_of_the_cpu_are_within_their_goal_but_for_decoding() -> None:
    found = profiles("cpu")
    checked = [found[name] for name in HELD_OUT if name != "decode"]
    _, runs = held_out(list(found.values()), roofline("cpu"), checked)
    assert all(abs(run.error) <= 0.15 for run in runs)

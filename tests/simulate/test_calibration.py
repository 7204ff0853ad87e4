"""The presets that were fitted to measured devices: their errors are the documented ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.calibration import (
    COMPARED,
    DEVICES,
    DRAWN,
    GPU_UNSEEN,
    HELD_OUT,
    OTHERS,
    UNSEEN,
    halves,
    profiles,
    roofline,
    tables,
    unseen,
    unseen_models,
)
from benchmarks.device_profiles import write_weights
from safetensors.torch import load_file

import npusim
from npusim.runtime import Device, load_weights
from npusim.simulate.calibrate import RunError, held_out
from tests.simulate.documented import documented

CPU_PRODUCTS = (
    *("vector_halves", "few", "linear_halves", "linear"),
    *("matmul_dots", "matmul_twice", "matmul"),
)
PRODUCTS = (
    *("vector", "few_floats", "few", "linear_library", "linear_unaligned", "linear_floats"),
    *("block", "linear", "matmul_library", "matmul_floats", "matmul_loose", "matmul_unaligned"),
    "matmul",
)
FEW = {  # of a few commands in each half
    "linear_library": 0.18,
    "matmul_library": 0.18,
    "linear_unaligned": 0.165,
    "matmul_unaligned": 0.14,
    "few": 0.145,
    "few_floats": 0.125,
    "conv_patches": 0.105,
    "conv_loose": 0.17,
    "attention_floats": 0.37,
    "group_norm": 0.115,
    "reduce": 0.215,
    "softmax": 0.155,
    "softmax_across": 0.145,
    "attention_cache": 0.135,
}


def test_the_tables_are_documented(request: pytest.FixtureRequest) -> None:
    documented("calibration", tables(), request.config.getoption("--update-golden"))


@pytest.mark.parametrize("device", sorted(DEVICES))
def test_profiles_are_of_one_device_and_of_all_models(device: str) -> None:
    found = profiles(device)
    assert set(HELD_OUT) < set(found) and len({p.device for p in found.values()}) == 1
    assert all(c.seconds > 0 for p in found.values() for c in p.commands)


def test_commands_of_the_gpu_are_within_their_goals() -> None:
    learnt, kept = halves("h200")
    classes, _ = held_out(learnt, roofline("h200"), list(kept.values()))
    products = [one for one in classes if one.name in PRODUCTS]
    count = sum(one.held_out for one in products)
    assert len(products) == len(PRODUCTS) and count > 700
    assert sum(one.mean * one.held_out for one in products) / count <= 0.095
    errors = {one.name: one.mean for one in classes}
    assert all(errors.pop(name) <= most for name, most in FEW.items())
    assert errors["linear"] <= 0.09 and errors["conv"] <= 0.09 and errors["attention"] <= 0.08
    assert errors["linear_floats"] <= 0.08 and max(errors.values()) <= 0.125


def test_models_on_the_gpu_are_within_their_goal() -> None:
    learnt, kept = halves("h200")
    assert set(kept) == {*HELD_OUT, *OTHERS}
    _, runs = held_out(learnt, roofline("h200"), list(kept.values()))
    errors = sorted(abs(run.error) for run in runs)
    assert sum(errors) / len(errors) <= 0.105 and errors[-5] <= 0.15 and errors[-1] <= 0.4


def test_models_that_nothing_was_chosen_by_are_predicted_as_documented() -> None:
    found = unseen_models(GPU_UNSEEN, "h200_unseen")
    _, runs = held_out([], roofline("h200"), list(found.values()))
    errors = sorted(abs(run.error) for run in runs)
    assert len(errors) == len(GPU_UNSEEN)
    assert sum(errors) / len(errors) <= 0.07 and errors[-2] <= 0.15
    drawn = unseen_models(DRAWN)
    _, runs = held_out([], roofline("cpu"), list(drawn.values()))
    errors = sorted(abs(run.error) for run in runs)
    assert len(errors) == len(DRAWN)
    assert sum(errors) / len(errors) <= 0.09 and errors[-3] <= 0.15


def test_models_of_the_cpu_are_within_their_goal() -> None:
    _, kept = halves("cpu")
    assert set(kept) == {n for n in (*HELD_OUT, *OTHERS) if not n.endswith("_float32")}
    _, runs = held_out([], roofline("cpu"), list(kept.values()))
    assert max(abs(run.error) for run in runs) <= 0.1


def test_the_cpu_is_predicted_no_worse_than_it_was() -> None:
    learnt, kept = halves("cpu")
    classes, _ = held_out(learnt, roofline("cpu"), list(kept.values()))
    errors = {one.name: one.mean for one in classes}
    assert errors["linear"] <= 0.075 and errors["conv"] <= 0.105 and errors["attention"] <= 0.1
    assert errors["linear_halves"] <= 0.09 and errors["few"] <= 0.135
    assert errors["matmul_dots"] <= 0.17 and errors["matmul"] <= 0.16
    assert errors["winograd"] <= 0.085
    assert max(errors["index"], errors["index_scattered"], errors["pointwise"]) <= 0.41
    products = [one for one in classes if one.name in CPU_PRODUCTS]
    count = sum(one.held_out for one in products)
    assert len(products) == len(CPU_PRODUCTS)
    assert sum(one.mean * one.held_out for one in products) / count <= 0.14


def test_what_no_fit_has_seen_is_predicted_as_documented() -> None:
    classes, runs = unseen()
    products = [one for one in classes if one.name in CPU_PRODUCTS]
    count = sum(one.held_out for one in products)
    assert count >= 180
    assert sum(one.mean * one.held_out for one in products) / count <= 0.15
    errors = {one.name: one.mean for one in classes}
    assert errors["winograd"] <= 0.09 and errors["conv"] <= 0.085
    assert len(runs) == len(UNSEEN) and max(abs(run.error) for run in runs) <= 0.13


def test_models_that_were_compared_before_are_predicted_as_documented() -> None:
    compared = unseen_models(COMPARED)
    _, runs = held_out([], roofline("cpu"), list(compared.values()))
    errors = {name: abs(run.error) for name, run in zip(compared, runs, strict=True)}
    assert len(errors) == len(COMPARED)
    assert errors["rt_detr"] <= 0.03
    assert errors.pop("unet_256") <= 0.19 and max(errors.values()) <= 0.125


def test_what_ran_beside_a_run_is_no_error_of_it() -> None:
    def of(predicted: float, measured: float, commands: float) -> float:
        return RunError("run", predicted, measured, commands).beyond

    assert of(1.1, 1.2, 1.0) == of(1.0, 1.2, 1.0) == of(1.2, 1.2, 1.0) == 0
    assert of(0.9, 1.2, 1.0) == pytest.approx(-0.1)
    assert of(1.5, 1.2, 1.0) == pytest.approx(0.25)
    for predicted in (0.8, 1.1):  # launches that wait in a queue: the run says how long it takes
        assert of(predicted, 1.0, 1.4) == pytest.approx(predicted - 1)


def test_each_weight_of_a_profile_has_its_own_bytes(tmp_path: Path) -> None:
    """In a checkpoint that other tools read: what a CPU uses in place shares no cache."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))
    model = layers.to(torch.bfloat16).eval()
    program = npusim.compile((model, (torch.zeros(1, 24, dtype=torch.bfloat16),)), "cpu")
    path = tmp_path / "weights.safetensors"
    write_weights(program, path)
    found = load_file(path)
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {
        k: (v.shape, v.dtype) for k, v in model.state_dict().items()
    }
    assert all((v > 0).all() for v in found.values())
    data = path.stat().st_size - 8 - int.from_bytes(path.read_bytes()[:8], "little")
    assert data == sum(v.nbytes for v in found.values())
    assert load_weights(str(path), program, Device("cpu", threads=1)) is not None

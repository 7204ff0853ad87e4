"""Whole models: extracted, compiled, saved, loaded and run natively, against PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model

import npusim
from tests.models import MODELS, build

# The largest difference, relative to the largest output, that float32 may show.
TOLERANCE = 1e-4
# What is at full size as others are: all of them are run small.
LONG = {"resnet34", "resnet101", "vgg11_bn"}
FLOATS_16_BIT = {"float16": (torch.float16, 2e-2), "bfloat16": (torch.bfloat16, 1e-1)}


def tensors(outputs: Any) -> list[torch.Tensor]:
    """Flattens what a model returns, in order."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    if isinstance(outputs, Mapping):
        outputs = outputs.values()
    assert isinstance(outputs, Iterable)
    return [t for part in outputs for t in tensors(part)]


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Returns max |got - want| / max |want|."""
    return float((got.double() - want.double()).abs().max() / want.double().abs().max())


def native(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path) -> Any:
    """Goes the whole way through files and returns a session."""
    npusim.extract_ir(model, inputs).save(folder / "model.json")
    npusim.compile(folder / "model.json").save(folder / "model.npubin")
    save_model(model, str(folder / "model.safetensors"))
    return npusim.load(folder / "model.npubin", weights=folder / "model.safetensors", threads=2)


@pytest.mark.parametrize("name", list(MODELS))
def test_small_model(name: str, tmp_path: Path) -> None:
    model, inputs = build(name, small=True)
    session = native(model, inputs, tmp_path)
    with torch.no_grad():
        expected = tensors(model(*inputs))
    results = session(*inputs)
    assert len(results) == len(expected)
    for got, want in zip(results, expected, strict=True):
        assert got.shape == want.shape
        assert relative_error(got, want) <= TOLERANCE


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in MODELS]
)
def test_model_at_full_size(name: str, tmp_path: Path) -> None:
    model, inputs = build(name)
    session = native(model, inputs, tmp_path)
    with torch.no_grad():
        expected = tensors(model(*inputs))
    for got, want in zip(session(*inputs), expected, strict=True):
        assert relative_error(got, want) <= TOLERANCE
        if want.shape[-1] == 1000:  # ImageNet's classes
            assert torch.equal(got.topk(5).indices, want.topk(5).indices)


@pytest.mark.parametrize("dtype", list(FLOATS_16_BIT))
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "convnext_tiny", "bert_base"])
def test_half_storage(name: str, dtype: str, tmp_path: Path) -> None:
    """16-bit floats are stored, float32 accumulates: no worse than PyTorch's own by much.

    Means over several inputs, because small networks of random weights enlarge what is rounded:
    for a single input either side may be several times nearer.
    """
    kind, bound = FLOATS_16_BIT[dtype]
    model, _ = build(name, small=True)
    batches = [
        MODELS[name].small_inputs(1, torch.Generator().manual_seed(seed)) for seed in range(12)
    ]
    with torch.no_grad():
        exact = [tensors(model(*batch))[0] for batch in batches]
        model = model.to(kind)
        batches = [
            tuple(x.to(kind) if x.is_floating_point() else x for x in batch) for batch in batches
        ]
        halves = [tensors(model(*batch))[0] for batch in batches]
    session = native(model, batches[0], tmp_path)
    ours = [session(*batch)[0] for batch in batches]
    assert all(got.dtype == kind for got in ours)
    errors, theirs = (
        sum(map(relative_error, found, exact)) / len(exact) for found in (ours, halves)
    )
    assert errors <= max(bound, 1.25 * theirs)


def test_one_session_many_calls(tmp_path: Path) -> None:
    """Nothing of a call is left behind for the next one."""
    model, (first,) = build("resnet18", small=True)
    session = native(model, (first,), tmp_path)
    second = torch.randn_like(first)
    with torch.no_grad():
        expected = [model(first), model(second), model(first)]
    for x, want in zip((first, second, first), expected, strict=True):
        assert relative_error(session(x)[0], want) <= TOLERANCE


def test_thread_counts_agree_bit_for_bit(tmp_path: Path) -> None:
    """How work is split must not change what comes out."""
    model, inputs = build("efficientnet_b0", small=True)
    native(model, inputs, tmp_path)
    outputs = [
        npusim.load(
            tmp_path / "model.npubin", weights=tmp_path / "model.safetensors", threads=threads
        )(*inputs)[0]
        for threads in (1, 2, 3)
    ]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])

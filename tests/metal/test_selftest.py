"""The selftest's models and decoder on the Metal backend, and ResNet-18 at a reduced size."""

from __future__ import annotations

import pytest
import torch

import npusim
from npusim.selftest.decoder import DECODERS, run_decoder
from npusim.selftest.models import EXAMPLES, run_model
from npusim.targets import TargetConfig
from tests.models import build


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, e in EXAMPLES.items() for d in e.dtypes])
@pytest.mark.usefixtures("device")
def test_small_models_agree_with_pytorch(name: str, dtype: torch.dtype) -> None:
    device = npusim.Device("metal")  # keeps what was made for sizes as long as it lives
    found = run_model(EXAMPLES[name], dtype, TargetConfig.named("metal"), device)
    assert "failure" not in found, found


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_says_what_it_says_on_the_cpu(device: npusim.Device, name: str) -> None:
    found = run_decoder(TargetConfig.named("metal"), device, DECODERS[name])
    assert found == {"tokens": 32}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_resnet18_orders_classes_as_pytorch_does(device: npusim.Device, dtype: torch.dtype) -> None:
    model, (image,) = build("resnet18", small=True)
    with torch.no_grad():
        want = model.eval()(image)
    program = npusim.compile((model.to(dtype), (image.to(dtype),)), "metal")
    (got,) = npusim.load(program, model.state_dict(), device)(image.to(dtype))
    assert torch.equal(got.float().topk(5).indices, want.topk(5).indices)

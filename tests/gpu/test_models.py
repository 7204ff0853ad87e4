"""Image models in float16 on a GPU, against PyTorch in float32 on the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import npusim
from tests.end_to_end.test_models import relative_error
from tests.gpu.device import require_gpu
from tests.models import build

require_gpu()

TOLERANCE = 1e-2  # of the largest output
IMAGES = 8


def clearest_image(model: nn.Module, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Returns a seeded image and the model's answer: the one whose best classes lie furthest apart.

    Classes of a model that nobody trained lie close together; 16-bit floats cannot tell them all.
    """
    images = torch.randn(IMAGES, *shape[1:], generator=torch.Generator().manual_seed(1)).half()
    with torch.no_grad():
        answers = model(images.float())
    best = answers.topk(6).values
    chosen = int((best[:, :-1] - best[:, 1:]).amin(1).argmax())
    return images[chosen : chosen + 1], answers[chosen : chosen + 1]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_images_are_classified_as_by_pytorch(name: str) -> None:
    model, (example,) = build(name)
    model.half().float()  # the weights that both have
    x, want = clearest_image(model, tuple(example.shape))
    model.half()
    session = npusim.load(npusim.compile((model, (x,)), "cuda"), model.state_dict(), device="cuda")
    results = [session(x)[0], torch.as_tensor(session(x.cuda())[0]).cpu()]
    for got in results:
        assert got.dtype == torch.float16
        assert relative_error(got, want) <= TOLERANCE
        assert torch.equal(got.topk(5).indices, want.topk(5).indices)
    assert torch.equal(*results)


def test_sessions_of_one_device_do_not_disturb_each_other() -> None:
    device = npusim.Device("cuda")
    sessions, inputs, wants = [], [], []
    for name in ("resnet18", "mobilenet_v2"):
        model, (x,) = build(name, small=True)
        program = npusim.compile((model, (x,)), "cuda")
        sessions.append(npusim.load(program, model.state_dict(), device=device))
        inputs.append(x)
        with torch.no_grad():
            wants.append(model(x))
    for _ in range(3):
        for session, x, want in zip(sessions, inputs, wants, strict=True):
            assert relative_error(session(x)[0], want) <= 1e-3


def test_a_profile_times_every_command() -> None:
    model, (x,) = build("resnet18", small=True)
    program = npusim.compile((model.half(), (x.half(),)), "cuda")
    profile = npusim.profile_program(program, model.state_dict(), repeats=5)
    seconds = np.array([command.seconds for command in profile.commands])
    assert (seconds >= 0).all() and 0 < profile.commands_seconds < 1
    assert profile.device.startswith("NVIDIA") and profile.run_seconds > 0

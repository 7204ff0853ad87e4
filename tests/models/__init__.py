"""Standard models for tests and benchmarks, written from their papers.

`build(name)` gives a model with seeded weights, in evaluation mode, and example inputs.
`small=True` gives the same architecture reduced in width, depth and resolution, for fast tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.models.bert import Bert
from tests.models.convnext import ConvNeXt
from tests.models.densenet import DenseNet
from tests.models.efficientnet import EfficientNet
from tests.models.mlp import MLP
from tests.models.mobilenet import MobileNetV2, MobileNetV3Large
from tests.models.resnet import BasicBlock, Bottleneck, ResNet
from tests.models.seq2seq import Seq2Seq
from tests.models.vgg import VGG, VGG11, VGG16
from tests.models.vit import VisionTransformer
from tests.models.weights import calibrate, randomize

Inputs = Callable[[int, torch.Generator], "tuple[Tensor, ...]"]


@dataclass(frozen=True)
class ModelSpec:
    """How to make a model and its inputs; `inputs` takes a batch size and a generator."""

    full: Callable[[], nn.Module]
    full_inputs: Inputs
    small: Callable[[], nn.Module]
    small_inputs: Inputs


def _images(size: int) -> Inputs:
    return lambda batch, generator: (torch.randn(batch, 3, size, size, generator=generator),)


def _vectors(size: int) -> Inputs:
    return lambda batch, generator: (torch.randn(batch, size, generator=generator),)


def _sentences(words: int, length: int) -> Inputs:
    """Token ids, a mask that hides a quarter of the positions, and segments."""

    def inputs(batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        ids = torch.randint(1, words, (batch, length), generator=generator)
        mask = (torch.arange(length) < length - length // 4).long().expand(batch, -1)
        segments = (torch.arange(length) >= length // 2).long().expand(batch, -1)
        return ids * mask, mask.contiguous(), segments.contiguous()

    return inputs


def _translation(words: int, source: int, target: int) -> Inputs:
    return lambda batch, generator: (
        torch.randint(0, words, (batch, source), generator=generator),
        torch.randint(0, words, (batch, target), generator=generator),
    )


def _image_model(full: Callable[[], nn.Module], small: Callable[[], nn.Module]) -> ModelSpec:
    return ModelSpec(full, _images(224), small, _images(64))


MODELS: dict[str, ModelSpec] = {
    "resnet18": _image_model(
        lambda: ResNet(BasicBlock, (2, 2, 2, 2)), lambda: ResNet(BasicBlock, (1, 1, 1, 1), 8, 10)
    ),
    "resnet34": _image_model(
        lambda: ResNet(BasicBlock, (3, 4, 6, 3)), lambda: ResNet(BasicBlock, (2, 1, 2, 1), 8, 10)
    ),
    "resnet50": _image_model(
        lambda: ResNet(Bottleneck, (3, 4, 6, 3)), lambda: ResNet(Bottleneck, (2, 1, 1, 1), 8, 10)
    ),
    "resnet101": _image_model(
        lambda: ResNet(Bottleneck, (3, 4, 23, 3)), lambda: ResNet(Bottleneck, (1, 1, 3, 1), 8, 10)
    ),
    "mobilenet_v2": _image_model(MobileNetV2, lambda: MobileNetV2(0.25, 10)),
    "mobilenet_v3_large": _image_model(MobileNetV3Large, lambda: MobileNetV3Large(0.25, 10)),
    "efficientnet_b0": _image_model(EfficientNet, lambda: EfficientNet(0.25, 10)),
    "vgg11_bn": _image_model(
        lambda: VGG(VGG11, norm=True), lambda: VGG(VGG11, norm=True, width=8, hidden=32, classes=10)
    ),
    "vgg16": _image_model(
        lambda: VGG(VGG16, norm=False),
        lambda: VGG(VGG16, norm=False, width=8, hidden=32, classes=10),
    ),
    "densenet121": _image_model(DenseNet, lambda: DenseNet((2, 2, 3, 2), 8, 16, 10)),
    "convnext_tiny": _image_model(
        ConvNeXt, lambda: ConvNeXt((1, 1, 2, 1), (16, 32, 48, 64), classes=10)
    ),
    "vit_b_16": _image_model(
        VisionTransformer, lambda: VisionTransformer(64, 16, 2, 32, 4, classes=10)
    ),
    "bert_base": ModelSpec(
        Bert, _sentences(30522, 128), lambda: Bert(100, 32, 2, 32, 4), _sentences(100, 16)
    ),
    "seq2seq": ModelSpec(
        Seq2Seq,
        _translation(1000, 32, 24),
        lambda: Seq2Seq(50, 16, 2, 32, 4),
        _translation(50, 9, 7),
    ),
    "mlp": ModelSpec(MLP, _vectors(16), MLP, _vectors(16)),
}


def build(
    name: str, seed: int = 0, *, small: bool = False, batch: int = 1
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a model in evaluation mode and example inputs; equal seeds give equal numbers.

    Args:
        name: a key of `MODELS`.
        seed: of the weights and inputs.
        small: the reduced variant.
        batch: leading dimension of the inputs.
    """
    spec = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    model = (spec.small if small else spec.full)().eval()
    randomize(model, generator)
    if any(key.endswith("running_mean") for key in model.state_dict()):
        calibrate(model, [_images(64)(8, generator) for _ in range(2)])
    inputs = spec.small_inputs if small else spec.full_inputs
    return model, inputs(batch, generator)


def build_meta(name: str, *, small: bool = False) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns the model and its inputs on the meta device: shapes without data."""
    spec = MODELS[name]
    with torch.device("meta"):
        model = (spec.small if small else spec.full)().eval()
    inputs = spec.small_inputs if small else spec.full_inputs
    return model, tuple(t.to("meta") for t in inputs(1, torch.Generator()))

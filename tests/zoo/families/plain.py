"""Models of vision on plain PyTorch: those of tests/models, and more written for the zoo."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.models import MODELS, build
from tests.zoo.entry import Build, Entry, entries
from tests.zoo.plain import (
    attention,
    classics,
    compact,
    dense,
    detectors,
    geometry,
    mixers,
    residual,
    restoration,
)

_NAMES = ("x", "y", "z")


def _named(tensors: tuple[Tensor, ...], names: tuple[str, ...] = _NAMES) -> dict[str, Tensor]:
    return dict(zip(names, tensors, strict=False))


def _kept(name: str) -> Build:
    """Returns how the small variant of a model of tests/models is made; it draws its weights."""

    def make() -> tuple[nn.Module, dict[str, Tensor]]:
        model, inputs = build(name, small=True)
        return model, _named(inputs, _ARGUMENTS.get(name, ("x",)))

    return make


_ARGUMENTS = {
    "bert_base": ("input_ids", "attention_mask", "token_type_ids"),
    "seq2seq": ("source", "target"),
}


def _picture(model: Callable[[], nn.Module], size: int = 64, channels: int = 3) -> Build:
    def make() -> tuple[nn.Module, dict[str, Tensor]]:
        made = model()
        name = "input" if isinstance(made, nn.Sequential) else "x"
        return made, {name: torch.randn(2, channels, size, size)}

    return make


PLAIN: dict[str, Entry] = {
    **entries("Plain PyTorch", {name: _kept(name) for name in MODELS}, drawn=False),
    **entries(
        "Plain PyTorch",
        {
            "lenet": _picture(classics.lenet, 32, 1),
            "alexnet": _picture(classics.alexnet),
            "network_in_network": _picture(classics.network_in_network, 32),
            "squeezenet": _picture(classics.squeezenet),
            "googlenet": _picture(classics.googlenet),
            "resnext": _picture(residual.resnext, 32),
            "wide_resnet": _picture(residual.wide_resnet, 32),
            "preact_resnet": _picture(residual.preact_resnet, 32),
            "regnet_y": _picture(residual.regnet_y, 32),
            "se_resnet": _picture(residual.se_resnet, 32),
            "eca_resnet": _picture(residual.eca_resnet, 32),
            "cbam_resnet": _picture(residual.cbam_resnet, 32),
            "shufflenet_v2": _picture(compact.shufflenet_v2),
            "ghostnet": _picture(compact.ghostnet),
            "mnasnet": _picture(compact.mnasnet),
            "repvgg": _picture(compact.repvgg),
            "mobileone": _picture(compact.mobileone),
            "mlp_mixer": _picture(mixers.mlp_mixer, 32),
            "resmlp": _picture(mixers.resmlp, 32),
            "gmlp": _picture(mixers.gmlp, 32),
            "convmixer": _picture(mixers.convmixer, 32),
            "poolformer_plain": _picture(mixers.poolformer, 32),
            "swin_plain": _picture(attention.Swin, 32),
            "coatnet": _picture(attention.coatnet),
            "xcit": _picture(attention.XCiT, 32),
            "fcn": _picture(dense.FCN),
            "unet": _picture(dense.UNet),
            "pspnet": _picture(dense.PSPNet),
            "deeplab_v3": _picture(dense.DeepLabV3),
            "hrnet": _picture(dense.HRNet),
            "yolo_v3": _picture(detectors.YOLO),
            "ssd": _picture(detectors.SSD),
            "retinanet": _picture(detectors.RetinaNet),
            "fcos": _picture(detectors.FCOS),
            "srcnn": _picture(restoration.SRCNN, 16),
            "espcn": _picture(restoration.espcn, 16),
            "edsr": _picture(restoration.edsr, 16),
            "dncnn": _picture(restoration.DnCNN, 16),
            "dcgan": _picture(restoration.dcgan, 1, 24),
            "cyclegan": _picture(restoration.cyclegan, 32),
            "autoencoder": _picture(restoration.Autoencoder, 32),
            "pointnet": lambda: (geometry.PointNet(), {"points": torch.randn(2, 3, 40)}),
            "dgcnn": lambda: (geometry.DGCNN(), {"points": torch.randn(2, 3, 24)}),
            "crnn": lambda: (geometry.CRNN(), {"x": torch.randn(2, 1, 16, 24)}),
            "spatial_transformer": _picture(geometry.SpatialTransformer, 24, 1),
            "optical_flow": lambda: (
                geometry.Flow(),
                {"first": torch.randn(1, 3, 32, 32), "second": torch.randn(1, 3, 32, 32)},
            ),
        },
    ),
}

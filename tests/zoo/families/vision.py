"""Image and video classifiers and encoders."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from tests.zoo.entry import Build, entries
from tests.zoo.inputs import pixels

# A transformer over patches.
PATCHES: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
# Four stages, each of half the resolution.
PYRAMID: dict[str, Any] = {
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 2, 2, 4],
    "decoder_hidden_size": 16,
}
WINDOWS: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
CONVOLUTIONS: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
_EFFICIENT: dict[str, Any] = {
    "image_size": 64,
    "kernel_sizes": [3, 5],
    "in_channels": [8, 12],
    "out_channels": [12, 16],
    "strides": [1, 2],
    "num_block_repeats": [1, 2],
    "expand_ratios": [1, 4],
    "hidden_dim": 320,
    "width_coefficient": 0.25,
    "depth_coefficient": 1.0,
}


def _image(family: str, head: str, common: dict[str, Any], size: int = 32, **more: Any) -> Build:
    """Returns how `<family><head>` over images of `size` is made."""
    return lambda: (
        getattr(hf, family + head)(getattr(hf, f"{family}Config")(**common | more)),
        pixels(size),
    )


def _video(family: str, head: str, frames: int, **more: Any) -> Build:
    """Returns how a model over `frames` small pictures is made."""
    return lambda: (
        getattr(hf, family + head)(
            getattr(hf, f"{family}Config")(**PATCHES | more, num_frames=frames)
        ),
        {"pixel_values": torch.randn(1, frames, 3, 32, 32)},
    )


def _clip(model: str) -> Build:
    """Returns how a V-JEPA 2 over four small frames is made."""
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2}
    return lambda: (
        getattr(hf, model)(
            hf.VJEPA2Config(
                **sizes | {f"pred_{name}": value for name, value in sizes.items()},
                crop_size=32,
                patch_size=8,
                frames_per_clip=4,
                mlp_ratio=2,
            )
        ),
        {"pixel_values_videos": torch.randn(1, 4, 3, 32, 32)},
    )


CLASSIFIER = "ForImageClassification"

VISION = entries(
    "Vision",
    {
        "vit": _image("ViT", CLASSIFIER, PATCHES),
        "vit-msn": _image("ViTMSN", "Model", PATCHES),
        "deit": _image("DeiT", "ForImageClassificationWithTeacher", PATCHES),
        "beit": _image("Beit", CLASSIFIER, PATCHES, use_relative_position_bias=True),
        "data2vec-vision": _image("Data2VecVision", "Model", PATCHES),
        "dinov2": _image("Dinov2", "Model", PATCHES, mlp_ratio=2),
        "dinov2-swiglu": _image("Dinov2", "Model", PATCHES, use_swiglu_ffn=True),
        "dinov2-registers": _image("Dinov2WithRegisters", "Model", PATCHES, mlp_ratio=2),
        "dinov3-vit": _image("DINOv3ViT", "Model", PATCHES),
        "dinov3-convnext": _image("DINOv3ConvNext", "Model", CONVOLUTIONS, 64),
        "ijepa": _image("IJepa", "Model", PATCHES),
        "pixio": _image("Pixio", "Model", PATCHES),
        "aimv2": _image("Aimv2Vision", "Model", PATCHES),
        "mlcd": _image("MLCDVision", "Model", PATCHES),
        "vitdet": _image(
            "VitDet",
            "Model",
            PATCHES,
            patch_size=4,
            window_size=4,
            window_block_indices=[0],
            use_relative_position_embeddings=True,
            pretrain_image_size=32,
        ),
        "swin": _image("Swin", CLASSIFIER, WINDOWS),
        "swinv2": _image("Swinv2", CLASSIFIER, WINDOWS),
        "donut-swin": _image("DonutSwin", "Model", WINDOWS),
        "swin2sr": _image(
            "Swin2SR",
            "ForImageSuperResolution",
            WINDOWS,
            16,
            image_size=16,
            patch_size=1,
            num_channels=3,
            upscale=2,
        ),
        "convnext": _image("ConvNext", CLASSIFIER, CONVOLUTIONS, 64, layer_scale_init_value=0.5),
        "convnextv2": _image("ConvNextV2", CLASSIFIER, CONVOLUTIONS, 64),
        "focalnet": _image(
            "FocalNet",
            CLASSIFIER,
            {},
            image_size=32,
            patch_size=2,
            embed_dim=16,
            hidden_sizes=[16, 32],
            depths=[1, 1],
            focal_levels=[2, 2],
            focal_windows=[3, 3],
        ),
        "hiera": _image(
            "Hiera",
            CLASSIFIER,
            {},
            64,
            image_size=[64, 64],
            embed_dim=16,
            depths=[1, 1, 1, 1],
            num_heads=[1, 2, 2, 2],
        ),
        "mobilevit": _image(
            "MobileViT",
            CLASSIFIER,
            {},
            64,
            image_size=64,
            hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 48],
        ),
        "mobilevitv2": _image(
            "MobileViTV2", CLASSIFIER, {}, 64, image_size=64, width_multiplier=0.25
        ),
        "mobilenet-v1": _image("MobileNetV1", CLASSIFIER, {}, 64, depth_multiplier=0.25),
        "mobilenet-v2": _image("MobileNetV2", CLASSIFIER, {}, 64, depth_multiplier=0.25),
        "efficientnet": _image("EfficientNet", CLASSIFIER, _EFFICIENT, 64),
        "regnet": _image("RegNet", CLASSIFIER, CONVOLUTIONS, 64, embedding_size=8, groups_width=8),
        "regnet-x": _image(
            "RegNet", CLASSIFIER, CONVOLUTIONS, 64, embedding_size=8, groups_width=8, layer_type="x"
        ),
        "resnet": _image("ResNet", CLASSIFIER, CONVOLUTIONS, 64, embedding_size=8),
        "bit": _image("Bit", CLASSIFIER, CONVOLUTIONS, 64, embedding_size=8, num_groups=4),
        "hgnet-v2": _image("HGNetV2", CLASSIFIER, {}, 64),
        "textnet": _image(
            "TextNet",
            CLASSIFIER,
            {},
            64,
            conv_layer_kernel_sizes=[[[3, 3]], [[3, 3], [1, 3]], [[3, 3]], [[3, 1]]],
            conv_layer_strides=[[2], [2, 1], [2], [2]],
            hidden_sizes=[8, 8, 12, 16, 24],
            stem_out_channels=8,
        ),
        "levit": _image(
            "Levit",
            CLASSIFIER,
            {},
            64,
            image_size=64,
            hidden_sizes=[16, 24, 32],
            num_attention_heads=[2, 2, 2],
            depths=[1, 1, 1],
            key_dim=[8, 8, 8],
        ),
        "poolformer": _image(
            "PoolFormer", CLASSIFIER, CONVOLUTIONS, 64, layer_scale_init_value=0.5
        ),
        "cvt": _image(
            "Cvt", CLASSIFIER, {}, 64, embed_dim=[8, 16, 24], num_heads=[1, 2, 2], depth=[1, 2, 3]
        ),
        "pvt": _image("Pvt", CLASSIFIER, PYRAMID, 64, image_size=64),
        "pvt-v2": _image("PvtV2", CLASSIFIER, PYRAMID, 64, image_size=64),
        "pvt-v2-linear": _image(
            "PvtV2", CLASSIFIER, PYRAMID, 64, image_size=64, linear_attention=True
        ),
        "swiftformer": _image(
            "SwiftFormer",
            CLASSIFIER,
            {},
            64,
            image_size=64,
            depths=[1, 1, 1, 1],
            embed_dims=[8, 16, 24, 32],
        ),
        "timesformer": _video("Timesformer", "Model", 4),
        "videomae": _video("VideoMAE", "Model", 4),
        "vivit": _video("Vivit", "Model", 4, tubelet_size=[2, 8, 8]),
        "vjepa2": _clip("VJEPA2ForVideoClassification"),
        "vjepa2-predictor": _clip("VJEPA2Model"),
    },
)

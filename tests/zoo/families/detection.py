"""Detectors of objects: boxes and classes."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor

from tests.zoo.entry import Build, entries
from tests.zoo.families.vision import PATCHES
from tests.zoo.inputs import pixels, tokens

_DETR: dict[str, Any] = {
    "d_model": 32,
    "num_queries": 6,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_labels": 5,
}
_HYBRID: dict[str, Any] = {
    **_DETR,
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [16, 24, 32],
    "decoder_in_channels": [32, 32, 32],
    "num_denoising": 0,
    "anchor_image_size": None,
}


def _backbone(family: str, **more: Any) -> Any:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
    stages = {"out_features": ["stage2", "stage3", "stage4"]}
    return getattr(hf, f"{family}Config")(**sizes | stages | more)


def _last() -> Any:
    return _backbone("ResNet", out_features=["stage4"])


def _detr(family: str, stages: bool = False, **more: Any) -> Build:
    """Returns a detector on the last stages of a ResNet; a mask hides part of the picture."""
    return lambda: (
        getattr(hf, f"{family}ForObjectDetection")(
            getattr(hf, f"{family}Config")(
                **_DETR | more, backbone_config=_backbone("ResNet") if stages else _last()
            )
        ),
        _masked(64),
    )


def _masked(size: int) -> dict[str, Tensor]:
    mask = torch.ones(1, size, size, dtype=torch.long)
    mask[:, :, size * 3 // 4 :] = 0
    return {**pixels(size), "pixel_mask": mask}


def _hybrid(family: str, **more: Any) -> Build:
    """Returns a real-time detector on three stages of a ResNet."""
    return lambda: (
        getattr(hf, f"{family}ForObjectDetection")(
            getattr(hf, f"{family}Config")(
                **_HYBRID | {"backbone_config": _backbone("RTDetrResNet")} | more
            )
        ),
        pixels(64),
    )


def _owl(family: str) -> Build:
    text = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return lambda: (
        getattr(hf, f"{family}ForObjectDetection")(
            getattr(hf, f"{family}Config")(
                text_config=text, vision_config=PATCHES, projection_dim=32
            )
        ),
        {**pixels(), "input_ids": tokens(8, batch=2), "attention_mask": _ones(2, 8)},
    )


def _ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.long)


def _swin() -> Any:
    return hf.SwinConfig(
        image_size=64,
        patch_size=2,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[2, 2, 2, 2],
        window_size=4,
        out_features=["stage2", "stage3", "stage4"],
    )


DETECTION = entries(
    "Detection",
    {
        "detr": _detr("Detr"),
        "conditional-detr": _detr("ConditionalDetr"),
        "table-transformer": _detr("TableTransformer"),
        "dab-detr": _detr("DabDetr", hidden_size=32),
        "deformable-detr": _detr(
            "DeformableDetr",
            stages=True,
            num_feature_levels=3,
            disable_custom_kernels=True,
        ),
        "deformable-detr-two-stage": _detr(
            "DeformableDetr",
            stages=True,
            num_feature_levels=3,
            disable_custom_kernels=True,
            two_stage=True,
            two_stage_num_proposals=6,
            with_box_refine=True,
        ),
        "rt-detr": _hybrid("RTDetr"),
        "rt-detr-v2": _hybrid("RTDetrV2"),
        "d-fine": _hybrid("DFine"),
        "yolos": lambda: (
            hf.YolosForObjectDetection(
                hf.YolosConfig(**PATCHES | {"image_size": [32, 32]}, num_detection_tokens=6)
            ),
            pixels(),
        ),
        "owlvit": _owl("OwlViT"),
        "owlv2": _owl("Owlv2"),
        "grounding-dino": lambda: (
            hf.GroundingDinoForObjectDetection(
                hf.GroundingDinoConfig(
                    **_DETR,
                    backbone_config=_swin(),
                    text_config={
                        "model_type": "bert",
                        "vocab_size": 96,
                        "hidden_size": 32,
                        "intermediate_size": 48,
                        "num_hidden_layers": 1,
                        "num_attention_heads": 4,
                    },
                    num_feature_levels=4,
                    max_text_len=16,
                    disable_custom_kernels=True,
                )
            ),
            {**_masked(64), "input_ids": tokens(8), "attention_mask": _ones(1, 8)},
        ),
    },
)

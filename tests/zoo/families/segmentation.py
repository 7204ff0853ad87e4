"""Segmentation, depth and key points: an answer for each pixel."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from tests.zoo.entry import Build, entries
from tests.zoo.families.vision import CONVOLUTIONS, PATCHES, PYRAMID
from tests.zoo.inputs import pixels, tokens


def _made(family: str, head: str, size: int = 64, **config: Any) -> Build:
    return lambda: (
        getattr(hf, family + head)(getattr(hf, f"{family}Config")(**config)),
        pixels(size),
    )


def _stages(count: int = 4, **more: Any) -> Any:
    names = [f"stage{i}" for i in range(5 - count, 5)]
    return hf.ConvNextConfig(**CONVOLUTIONS, out_features=names, **more)


def _swin(size: int = 64) -> Any:
    return hf.SwinConfig(
        image_size=size,
        patch_size=4,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[2, 2, 2, 2],
        window_size=4,
        out_features=[f"stage{i}" for i in range(1, 5)],
    )


def _dino() -> Any:
    return hf.Dinov2Config(
        **PATCHES | {"num_hidden_layers": 4},
        out_indices=[1, 2, 3, 4],
        apply_layernorm=False,
        reshape_hidden_states=False,
    )


def _with(family: str, head: str, size: int, make: Any, **more: Any) -> Build:
    """Returns how a model on a backbone is made; the backbone's configuration is made late."""
    return lambda: (
        getattr(hf, family + head)(getattr(hf, f"{family}Config")(backbone_config=make(), **more)),
        pixels(size),
    )


SEMANTIC = "ForSemanticSegmentation"
_NECK = {"neck_hidden_sizes": [8, 12, 16, 24], "fusion_hidden_size": 16}

SEGMENTATION = entries(
    "Segmentation and depth",
    {
        "segformer": _made("Segformer", SEMANTIC, **PYRAMID),
        "upernet-convnext": _with(
            "UperNet", SEMANTIC, 64, _stages, hidden_size=16, auxiliary_channels=8
        ),
        "upernet-swin": _with("UperNet", SEMANTIC, 64, _swin, hidden_size=16, auxiliary_channels=8),
        "beit-segmentation": _made(
            "Beit",
            SEMANTIC,
            32,
            **PATCHES | {"num_hidden_layers": 4},
            out_indices=[1, 2, 3, 4],
            pool_scales=[1, 2],
            auxiliary_channels=8,
        ),
        "mobilevit-deeplab": _made(
            "MobileViT",
            SEMANTIC,
            image_size=64,
            hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 48],
            aspp_out_channels=16,
        ),
        "mobilenet-v2-deeplab": _made("MobileNetV2", SEMANTIC, depth_multiplier=0.25),
        "maskformer": lambda: (
            hf.MaskFormerForInstanceSegmentation(
                hf.MaskFormerConfig(
                    backbone_config=_swin(),
                    fpn_feature_size=32,
                    mask_feature_size=32,
                    decoder_config={
                        "model_type": "detr",
                        "d_model": 32,
                        "num_queries": 5,
                        "encoder_layers": 1,
                        "decoder_layers": 2,
                        "decoder_ffn_dim": 24,
                        "decoder_attention_heads": 4,
                    },
                )
            ),
            pixels(64),
        ),
        "mask2former": _with(
            "Mask2Former",
            "ForUniversalSegmentation",
            64,
            _swin,
            feature_size=32,
            mask_feature_size=32,
            hidden_dim=32,
            encoder_feedforward_dim=24,
            encoder_layers=1,
            decoder_layers=3,
            num_attention_heads=4,
            dim_feedforward=24,
            num_queries=5,
        ),
        "oneformer": lambda: (
            hf.OneFormerForUniversalSegmentation(
                hf.OneFormerConfig(
                    backbone_config=_swin(),
                    conv_dim=32,
                    mask_dim=32,
                    hidden_dim=32,
                    encoder_feedforward_dim=24,
                    encoder_layers=1,
                    decoder_layers=3,
                    num_attention_heads=4,
                    dim_feedforward=24,
                    num_queries=5,
                    task_seq_len=8,
                    text_encoder_width=16,
                    text_encoder_context_length=8,
                    text_encoder_num_layers=1,
                    text_encoder_vocab_size=96,
                )
            ),
            {**pixels(64), "task_inputs": tokens(8)},
        ),
        "dpt": _made(
            "DPT",
            "ForDepthEstimation",
            32,
            **PATCHES | {"num_hidden_layers": 4} | _NECK,
            backbone_out_indices=[0, 1, 2, 3],
        ),
        "dpt-segmentation": _made(
            "DPT",
            SEMANTIC,
            32,
            **PATCHES | {"num_hidden_layers": 4} | _NECK,
            backbone_out_indices=[0, 1, 2, 3],
        ),
        "glpn": _made("GLPN", "ForDepthEstimation", **PYRAMID),
        "depth-anything": _with(
            "DepthAnything",
            "ForDepthEstimation",
            32,
            _dino,
            patch_size=8,
            reassemble_hidden_size=32,
            head_hidden_size=8,
            **_NECK,
        ),
        "zoedepth": lambda: (
            hf.ZoeDepthForDepthEstimation(
                hf.ZoeDepthConfig(
                    backbone_config=hf.BeitConfig(
                        **PATCHES | {"num_hidden_layers": 4},
                        out_indices=[1, 2, 3, 4],
                        reshape_hidden_states=False,
                    ),
                    backbone_hidden_size=32,
                    bottleneck_features=16,
                    num_attractors=[4, 3, 2, 1],
                    bin_embedding_dim=8,
                    num_relative_features=8,
                    bin_configurations=[
                        {"n_bins": 8, "min_depth": 0.001, "max_depth": 10.0, "name": "nyu"}
                    ],
                    **_NECK,
                )
            ),
            pixels(),
        ),
        "vitpose": _with(
            "VitPose",
            "ForPoseEstimation",
            32,
            lambda: hf.VitPoseBackboneConfig(
                **PATCHES | {"image_size": [32, 32], "patch_size": [8, 8]}, out_indices=[2]
            ),
            num_labels=5,
        ),
        "vitmatte": lambda: (
            hf.VitMatteForImageMatting(
                hf.VitMatteConfig(
                    backbone_config=hf.VitDetConfig(
                        **PATCHES | {"patch_size": 16, "image_size": 64},
                        num_channels=4,
                        pretrain_image_size=64,
                        out_features=["stage2"],
                    ),
                    hidden_size=32,
                    convstream_hidden_sizes=[8, 12, 16],
                    fusion_hidden_sizes=[24, 16, 12, 8],
                )
            ),
            pixels(64, channels=4),
        ),
        "superpoint": _made(
            "SuperPoint",
            "ForKeypointDetection",
            encoder_hidden_sizes=[8, 8, 16, 16],
            decoder_hidden_size=16,
            descriptor_decoder_dim=16,
        ),
        "sam": lambda: (
            hf.SamModel(
                hf.SamConfig(
                    vision_config=hf.SamVisionConfig(
                        hidden_size=32,
                        output_channels=16,
                        num_hidden_layers=2,
                        num_attention_heads=4,
                        image_size=64,
                        patch_size=8,
                        window_size=4,
                        global_attn_indexes=[1],
                        num_pos_feats=8,
                        mlp_dim=48,
                    ),
                    prompt_encoder_config=hf.SamPromptEncoderConfig(
                        hidden_size=16, image_size=64, patch_size=8, mask_input_channels=8
                    ),
                    mask_decoder_config=hf.SamMaskDecoderConfig(
                        hidden_size=16, mlp_dim=24, num_attention_heads=4, iou_head_hidden_dim=32
                    ),
                )
            ),
            {
                **pixels(64),
                "input_points": 64 * torch.rand(1, 1, 2, 2),
                "input_labels": torch.tensor([[[1, 0]]]),
            },
        ),
        "clipseg": lambda: (
            hf.CLIPSegForImageSegmentation(
                hf.CLIPSegConfig(
                    text_config={
                        "vocab_size": 96,
                        "hidden_size": 32,
                        "intermediate_size": 48,
                        "num_hidden_layers": 2,
                        "num_attention_heads": 4,
                        "bos_token_id": 1,
                        "eos_token_id": 2,
                    },
                    vision_config=PATCHES | {"num_hidden_layers": 3},
                    projection_dim=32,
                    extract_layers=[0, 1, 2],
                    reduce_dim=16,
                    decoder_intermediate_size=24,
                )
            ),
            {**pixels(), "input_ids": tokens(8)},
        ),
    },
)

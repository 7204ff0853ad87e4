"""Pictures, sound and text together."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor

from tests.zoo.entry import Build, entries
from tests.zoo.families.decoders import SMALL as DECODER
from tests.zoo.families.vision import PATCHES
from tests.zoo.inputs import VOCAB, pixels, text, tokens

_TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_IMAGE = 4  # the token that stands for a patch of a picture


def _pair(family: str, head: str = "Model", **more: Any) -> Build:
    """Returns how a pair of towers, one for pictures and one for text, is made."""

    def make() -> Any:
        config = getattr(hf, f"{family}Config")(
            text_config=_TEXT | more.pop("text", {}),
            vision_config=PATCHES | more.pop("vision", {}),
            **{"projection_dim": 32} | more,
        )
        return getattr(hf, family + head)(config), {**pixels(), **text()}

    return make


def _answer(kind: str, config: str, vision: Any, language: str, patches: int, **more: Any) -> Build:
    """Returns how a decoder that reads the patches of a picture among its tokens is made."""

    def make() -> Any:
        text_config = getattr(hf, f"{language}Config")(**DECODER, head_dim=8)
        settings = {"image_token_id": _IMAGE, "image_token_index": _IMAGE} | more
        model = getattr(hf, kind)(
            getattr(hf, config)(vision_config=vision(), text_config=text_config, **settings)
        )
        inputs = _with_picture(patches)
        if language == "Gemma":  # says which tokens see what comes after them
            inputs["token_type_ids"] = (inputs["input_ids"] != _IMAGE).long()
        return model, inputs

    return make


def _with_picture(patches: int) -> dict[str, Tensor]:
    ids = tokens(patches + 8)
    ids[:, 1 : patches + 1] = _IMAGE
    return {**pixels(), "input_ids": ids}


def _sound() -> Any:
    return hf.ClapConfig(
        text_config=_TEXT | {"projection_dim": 16},
        audio_config={
            "window_size": 4,
            "num_mel_bins": 16,
            "spec_size": 64,
            "hidden_size": 32,
            "depths": [1, 1],
            "num_attention_heads": [2, 4],
            "patch_embeds_hidden_size": 16,
            "num_hidden_layers": 2,
            "projection_dim": 16,
        },
        projection_dim=16,
    )


MULTIMODAL = entries(
    "Multi-modal",
    {
        "clip": _pair("CLIP"),
        "siglip": _pair("Siglip"),
        "siglip2": lambda: (
            hf.Siglip2Model(
                hf.Siglip2Config(
                    text_config=_TEXT, vision_config=PATCHES | {"num_patches": 16, "patch_size": 4}
                )
            ),
            {
                **text(),
                "pixel_values": torch.randn(1, 16, 48),
                "pixel_attention_mask": torch.ones(1, 16, dtype=torch.long),
                "spatial_shapes": torch.tensor([[4, 4]]),
            },
        ),
        "metaclip2": _pair("MetaClip2"),
        "chinese-clip": _pair("ChineseCLIP"),
        "altclip": _pair("AltCLIP", text={"project_dim": 32}),
        "blip": _pair("Blip"),
        "blip-retrieval": _pair(
            "Blip",
            "ForImageTextRetrieval",
            image_text_hidden_size=16,
            text={"encoder_hidden_size": 32},
        ),
        "groupvit": _pair(
            "GroupViT",
            vision={
                "depths": [1, 1, 1],
                "num_group_tokens": [4, 2, 0],
                "num_output_groups": [4, 2, 2],
                "num_hidden_layers": 3,
            },
            projection_intermediate_dim=48,
        ),
        "xclip": lambda: (
            hf.XCLIPModel(
                hf.XCLIPConfig(
                    text_config=_TEXT,
                    vision_config=PATCHES
                    | {
                        "num_frames": 2,
                        "mit_hidden_size": 32,
                        "mit_intermediate_size": 48,
                        "mit_num_attention_heads": 4,
                    },
                    projection_dim=32,
                    prompt_num_attention_heads=4,
                )
            ),
            {**text(), "pixel_values": torch.randn(1, 2, 3, 32, 32)},
        ),
        "align": lambda: (
            hf.AlignModel(
                hf.AlignConfig(
                    text_config=_TEXT,
                    vision_config={
                        "image_size": 64,
                        "kernel_sizes": [3, 5],
                        "in_channels": [8, 12],
                        "out_channels": [12, 16],
                        "strides": [1, 2],
                        "num_block_repeats": [1, 2],
                        "expand_ratios": [1, 4],
                        "width_coefficient": 0.25,
                        "depth_coefficient": 1.0,
                        "hidden_dim": 320,
                    },
                    projection_dim=8,
                )
            ),
            {**pixels(64), **text()},
        ),
        "clap": lambda: (
            hf.ClapModel(_sound()),
            {**text(), "input_features": torch.randn(1, 1, 200, 16)},
        ),
        "flava": lambda: (
            hf.FlavaModel(
                hf.FlavaConfig(
                    image_config=PATCHES,
                    text_config=_TEXT,
                    multimodal_config={
                        k: v for k, v in PATCHES.items() if "size" in k or "num" in k
                    },
                    hidden_size=32,
                    projection_dim=32,
                    init_codebook=False,
                )
            ),
            {**pixels(batch=2), **text()},
        ),
        "bridgetower": lambda: (
            hf.BridgeTowerModel(
                hf.BridgeTowerConfig(
                    hidden_size=32,
                    num_attention_heads=4,
                    num_hidden_layers=2,
                    vision_config={
                        "hidden_size": 64,
                        "num_hidden_layers": 2,
                        "image_size": 32,
                        "patch_size": 8,
                    },
                    text_config=_TEXT,
                )
            ),
            {**pixels(batch=2), **text(), "pixel_mask": torch.ones(2, 32, 32, dtype=torch.long)},
        ),
        "vilt": lambda: (
            hf.ViltModel(hf.ViltConfig(**_TEXT | PATCHES)),
            {**pixels(), "input_ids": tokens(8)},
        ),
        "visual-bert": lambda: (
            hf.VisualBertModel(hf.VisualBertConfig(**_TEXT, visual_embedding_dim=24)),
            {**text(), "visual_embeds": torch.randn(2, 5, 24)},
        ),
        "lxmert": lambda: (
            hf.LxmertModel(
                hf.LxmertConfig(**_TEXT, l_layers=1, x_layers=1, r_layers=1, visual_feat_dim=24)
            ),
            {
                **text(),
                "visual_feats": torch.randn(2, 5, 24),
                "visual_pos": torch.rand(2, 5, 4),
            },
        ),
        "git": lambda: (
            hf.GitForCausalLM(hf.GitConfig(**_TEXT, vision_config=PATCHES)),
            {**pixels(), "input_ids": tokens(8)},
        ),
        "trocr": lambda: (
            hf.VisionEncoderDecoderModel(
                encoder=hf.ViTModel(hf.ViTConfig(**PATCHES)),
                decoder=hf.TrOCRForCausalLM(
                    hf.TrOCRConfig(
                        vocab_size=VOCAB,
                        d_model=32,
                        decoder_layers=2,
                        decoder_attention_heads=4,
                        decoder_ffn_dim=48,
                        cross_attention_hidden_size=32,
                        max_position_embeddings=40,
                    )
                ),
            ),
            {**pixels(), "decoder_input_ids": tokens(8)},
        ),
        "layoutlmv3": lambda: (
            hf.LayoutLMv3Model(
                hf.LayoutLMv3Config(
                    **_TEXT,
                    input_size=32,
                    patch_size=8,
                    max_2d_position_embeddings=64,
                    coordinate_size=5,
                    shape_size=6,
                    rel_pos_bins=8,
                    max_rel_pos=16,
                    rel_2d_pos_bins=8,
                    max_rel_2d_pos=16,
                )
            ),
            {
                **pixels(),
                "input_ids": tokens(8),
                "bbox": torch.randint(0, 30, (1, 8, 2)).repeat(1, 1, 2),
            },
        ),
        "blip2": lambda: (
            hf.Blip2ForConditionalGeneration(
                hf.Blip2Config(
                    vision_config=PATCHES,
                    qformer_config={
                        k: v for k, v in _TEXT.items() if k not in ("bos_token_id", "eos_token_id")
                    }
                    | {"encoder_hidden_size": 32},
                    text_config={
                        "model_type": "opt",
                        **DECODER,
                        "ffn_dim": 48,
                        "word_embed_proj_dim": 32,
                    },
                    num_query_tokens=4,
                    image_token_index=_IMAGE,
                )
            ),
            _with_picture(4),
        ),
        "llava": _answer(
            "LlavaForConditionalGeneration",
            "LlavaConfig",
            lambda: hf.CLIPVisionConfig(**PATCHES),
            "Llama",
            16,
            vision_feature_layer=-1,
        ),
        "paligemma": _answer(
            "PaliGemmaForConditionalGeneration",
            "PaliGemmaConfig",
            lambda: hf.SiglipVisionConfig(**PATCHES, vision_use_head=False),
            "Gemma",
            16,
            projection_dim=32,
            hidden_size=32,
        ),
        "internvl": _answer(
            "InternVLForConditionalGeneration",
            "InternVLConfig",
            lambda: hf.InternVLVisionConfig(
                **PATCHES | {"image_size": [32, 32], "patch_size": [8, 8]}
            ),
            "Qwen2",
            4,
        ),
    },
)

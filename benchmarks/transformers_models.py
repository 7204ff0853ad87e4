"""Models of the transformers library for benchmarks: its architectures, seeded weights.

`build(name, batch)` gives a model in evaluation mode that returns tensors alone, and its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.whisper.modeling_whisper import WhisperEncoder

Inputs = Callable[[torch.Generator], tuple[Tensor, ...]]

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Outputs(nn.Module):
    """A model of the library, of whose answer the named tensor is returned.

    Args:
        model: the library's.
        field: of its answer; "" where the answer is the tensor.
        inputs: the names of what it is called with, in order.
    """

    def __init__(self, model: nn.Module, field: str, inputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.field, self.inputs = model, field, inputs

    def forward(self, *given: Tensor) -> Tensor:
        """Returns the tensor."""
        if not self.field:
            return self.model(*given)
        answer = self.model(**dict(zip(self.inputs, given, strict=True)))
        found: Tensor = getattr(answer, self.field) if self.field else answer
        return found


def _image(size: int) -> Inputs:
    return lambda generator: (torch.randn(1, 3, size, size, generator=generator),)


def _tokens(length: int, vocabulary: int, mask: bool = True) -> Inputs:
    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        ids = torch.randint(4, vocabulary, (1, length), generator=generator)
        return (ids, torch.ones(1, length, dtype=torch.int64)) if mask else (ids,)

    return draw


def _signal(*shape: int) -> Inputs:
    return lambda generator: (torch.randn(1, *shape, generator=generator),)


@dataclass(frozen=True)
class Spec:
    """A model of the library.

    Attributes:
        made: its class, or the name of it.
        config: the name of its configuration's class.
        field: of its answer, the tensor that is returned; "" where the answer is one.
        inputs: the names of what it is called with.
        draw: makes these for a batch of one.
        settings: of the configuration.
    """

    made: str | Callable[[Any], nn.Module]
    config: str
    field: str
    inputs: tuple[str, ...]
    draw: Inputs
    settings: dict[str, Any] = field(default_factory=dict)

    def model(self) -> nn.Module:
        """Returns the model, which returns tensors alone."""
        settings = {k: v() if callable(v) else v for k, v in self.settings.items()}
        config = getattr(transformers, self.config)(**settings)
        config.use_cache = False
        made = getattr(transformers, self.made) if isinstance(self.made, str) else self.made
        return Outputs(made(config), self.field, self.inputs)


_TEXT, _PIXELS = ("input_ids", "attention_mask"), ("pixel_values",)
_DEBERTA = {
    "hidden_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "relative_attention": True,
    "position_buckets": 256,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}


def _backbone() -> Any:
    return transformers.ResNetConfig(out_features=["stage4"])


def _dac(config: Any) -> nn.Module:
    """The encoder of a codec of sounds, without its quantizer."""
    return transformers.DacModel(config).encoder


def _text_and_image(words: int, size: int) -> Inputs:
    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        ids = torch.randint(4, words, (1, 16), generator=generator)
        return ids, torch.randn(1, 3, size, size, generator=generator)

    return draw


def _images(kind: str, head: str, field: str, size: int, **settings: Any) -> Spec:
    return Spec(f"{kind}{head}", f"{kind}Config", field, _PIXELS, _image(size), settings)


def _texts(kind: str, field: str, length: int, words: int, **settings: Any) -> Spec:
    config = f"{kind.removesuffix('EncoderModel').removesuffix('Model')}Config"
    return Spec(kind, config, field, _TEXT, _tokens(length, words), settings)


def _sounds(kind: str, **settings: Any) -> Spec:
    """A second of sound at 16 kHz."""
    made = _signal(16_000)
    return Spec(f"{kind}Model", f"{kind}Config", _HIDDEN, ("input_values",), made, settings)


_CLASSES = "ForImageClassification", "logits"
_HIDDEN = "last_hidden_state"


def _few(kind: str, length: int = 128, words: int = 1000, **settings: Any) -> Spec:
    """A few layers of a text model, or of a decoder's prompt, with a small vocabulary."""
    return _texts(kind, _HIDDEN, length, words, vocab_size=words, **settings)


_DECODER = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
_LAYERS = {"num_hidden_layers": 4}
_OTHERS: dict[str, Spec] = {
    "roformer_4": _few("RoFormerModel", **_LAYERS),
    "xlm_roberta_4": _few("XLMRobertaModel", **_LAYERS),
    "fnet_4": Spec(
        *("FNetModel", "FNetConfig", _HIDDEN, ("input_ids",), _tokens(128, 1000, False)),
        {"vocab_size": 1000, **_LAYERS},
    ),
    "squeezebert_4": _few("SqueezeBertModel", **_LAYERS),
    "mobilebert_6": _few("MobileBertModel", num_hidden_layers=6),
    "convbert_4": _few("ConvBertModel", **_LAYERS),
    "funnel_4": _few("FunnelModel", block_sizes=[2, 2], num_decoder_layers=1),
    "llama_prompt": _few("LlamaModel", **_DECODER),
    "qwen2_prompt": _few("Qwen2Model", **_DECODER),
    "gemma_prompt": _few("GemmaModel", head_dim=64, **_DECODER),
    "opt_prompt": _few(
        "OPTModel",
        hidden_size=512,
        ffn_dim=2048,
        num_attention_heads=8,
        word_embed_proj_dim=512,
        **_LAYERS,
    ),
    "bloom_prompt": _few("BloomModel", hidden_size=512, n_layer=4, n_head=8),
    "gpt_neox_prompt": _few(
        "GPTNeoXModel", hidden_size=512, intermediate_size=2048, num_attention_heads=8, **_LAYERS
    ),
    "mamba_prompt": Spec(
        *("MambaModel", "MambaConfig", _HIDDEN, ("input_ids",), _tokens(64, 1000, False)),
        {"vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 2},
    ),
    "vit_384": _images("ViT", *_CLASSES, 224, hidden_size=384, intermediate_size=1536),
    "yolos": _images(
        *("Yolos", "ForObjectDetection", "pred_boxes", 256),
        image_size=[256, 256],
        hidden_size=192,
        num_attention_heads=3,
        intermediate_size=768,
    ),
    "siglip_vision_4": _images("SiglipVision", "Model", "pooler_output", 224, **_LAYERS),
    "mobilenet_v1": _images("MobileNetV1", *_CLASSES, 224),
    "regnet": _images("RegNet", *_CLASSES, 224),
    "focalnet": _images("FocalNet", *_CLASSES, 224),
    "glpn": _images("GLPN", "ForDepthEstimation", "predicted_depth", 256),
    "audio_spectrogram_4": Spec(
        *("ASTModel", "ASTConfig", _HIDDEN, ("input_values",), _signal(512, 128)),
        {"max_length": 512, **_LAYERS},
    ),
    "wavlm_4": _sounds("WavLM", num_hidden_layers=4),
    "sew_4": _sounds("SEW", num_hidden_layers=4),
    "data2vec_audio_4": _sounds("Data2VecAudio", num_hidden_layers=4),
    "patchtst": Spec(
        *("PatchTSTForPrediction", "PatchTSTConfig", "prediction_outputs", ("past_values",)),
        _signal(512, 7),
        {"num_input_channels": 7, "context_length": 512, "patch_length": 16, "patch_stride": 8},
    ),
    "patchtsmixer": Spec(
        *("PatchTSMixerForPrediction", "PatchTSMixerConfig", "prediction_outputs"),
        *(("past_values",), _signal(512, 7)),
        {"num_input_channels": 7, "context_length": 512, "patch_length": 16, "patch_stride": 8},
    ),
    "dac_encoder": Spec(_dac, "DacConfig", "", ("waveform",), _signal(1, 8_000)),
    "clip_both": Spec(
        *("CLIPModel", "CLIPConfig", "logits_per_image"),
        *(("input_ids", "pixel_values"), _text_and_image(1000, 224)),
    ),
    "blip_text_image": Spec(
        *("BlipForImageTextRetrieval", "BlipConfig", "itm_score", ("input_ids", "pixel_values")),
        _text_and_image(1000, 384),
    ),
}


def _ids(length: int, words: int) -> Inputs:
    return _tokens(length, words, mask=False)


def _both(length: int, behind: int, words: int) -> Inputs:
    """Tokens of an encoder and of its decoder."""

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        sizes = (length, behind)
        return tuple(torch.randint(4, words, (1, n), generator=generator) for n in sizes)

    return draw


def _translates(kind: str, words: int = 1000, **settings: Any) -> Spec:
    """An encoder of 128 tokens and a decoder of 32."""
    inputs = ("input_ids", "decoder_input_ids")
    return Spec(
        *(f"{kind}Model", f"{kind}Config", _HIDDEN, inputs, _both(128, 32, words)),
        {"vocab_size": words, **settings},
    )


def _prompt(kind: str, length: int = 128, **settings: Any) -> Spec:
    """A few layers of a decoder over a prompt."""
    given = {"vocab_size": 1000, "hidden_size": 512, "num_hidden_layers": 4, **settings}
    return Spec(f"{kind}Model", f"{kind}Config", _HIDDEN, ("input_ids",), _ids(length, 1000), given)


def _swin_backbone() -> Any:
    stages = ["stage1", "stage2", "stage3", "stage4"]
    return transformers.SwinConfig(depths=[2, 2, 2, 2], out_features=stages)


def _resnet_stages() -> Any:
    return transformers.ResNetConfig(out_features=["stage2", "stage3", "stage4"])


def _sam_masks(config: Any) -> nn.Module:
    """An encoder of images as segmenters have it: windows, relative places, a neck."""
    return transformers.SamModel(config).vision_encoder


_SMALL = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, **_LAYERS}
_WIDE = {"d_model": 512, "encoder_layers": 3, "decoder_layers": 3}
_DETECTS = {"use_timm_backbone": False, "use_pretrained_backbone": False}
_SURVEYED: dict[str, Spec] = {
    "t5_both": _translates("T5", num_layers=4),
    "mbart_both": _translates("MBart", **_WIDE),
    "prophetnet_both": _translates(
        "ProphetNet", num_encoder_layers=3, num_decoder_layers=3, hidden_size=512
    ),
    "mamba2_prompt": _prompt("Mamba2", 64, num_heads=16, head_dim=64, chunk_size=32),
    "mixtral_prompt": _prompt(
        *("Mixtral", 128),
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=1024,
        num_local_experts=4,
    ),
    "xlnet": Spec(
        *("XLNetModel", "XLNetConfig", _HIDDEN, ("input_ids",), _ids(128, 1000)),
        {"vocab_size": 1000, "d_model": 512, "n_layer": 4, "n_head": 8, "d_inner": 2048},
    ),
    "nystromformer": _few("NystromformerModel", 256, **_SMALL),
    "deberta": _few("DebertaModel", relative_attention=True, pos_att_type=["c2p", "p2c"], **_SMALL),
    "canine": Spec(
        *("CanineModel", "CanineConfig", _HIDDEN, ("input_ids",), _ids(512, 1000)), _SMALL
    ),
    "reformer": Spec(
        *("ReformerModel", "ReformerConfig", _HIDDEN, ("input_ids",), _ids(256, 320)),
        {"attn_layers": ["local", "local"], "axial_pos_shape": [16, 16], "is_decoder": False},
    ),
    "perceiver": Spec(
        *("PerceiverModel", "PerceiverConfig", _HIDDEN, ("inputs",), _signal(512, 768)),
        {"num_latents": 128, "d_latents": 512, "num_self_attends_per_block": 6},
    ),
    "clap_audio": Spec(
        *("ClapAudioModel", "ClapAudioConfig", "pooler_output", ("input_features",)),
        *(_signal(1, 1001, 64), {"enable_fusion": False}),
    ),
    "sam_encoder": Spec(
        *(_sam_masks, "SamConfig", _HIDDEN, _PIXELS, _image(512)),
        {
            "vision_config": {
                "image_size": 512,
                "hidden_size": 384,
                "num_attention_heads": 6,
                "num_hidden_layers": 6,
                "mlp_dim": 1536,
                "global_attn_indexes": [2, 5],
            }
        },
    ),
    "conditional_detr": _images(
        *("ConditionalDetr", "ForObjectDetection", "pred_boxes", 512),
        backbone_config=_backbone,
        **_DETECTS,
    ),
    "deformable_detr": _images(
        *("DeformableDetr", "ForObjectDetection", "pred_boxes", 512),
        backbone_config=_resnet_stages,
        num_feature_levels=4,
        **_DETECTS,
    ),
    "mask2former": _images(
        *("Mask2Former", "ForUniversalSegmentation", "masks_queries_logits", 256),
        backbone_config=_swin_backbone,
    ),
    "upernet": _images(
        *("UperNet", "ForSemanticSegmentation", "logits", 512), backbone_config=_swin_backbone
    ),
    "group_vit": Spec(
        *("GroupViTVisionModel", "GroupViTVisionConfig", "pooler_output", _PIXELS, _image(224)),
    ),
    "cvt": _images("Cvt", *_CLASSES, 224),
    "timesformer": Spec(
        *("TimesformerModel", "TimesformerConfig", _HIDDEN, _PIXELS, _signal(8, 3, 224, 224)),
        _SMALL,
    ),
    "vjepa2": Spec(
        *("VJEPA2Model", "VJEPA2Config", _HIDDEN, ("pixel_values_videos",)),
        *(
            _signal(8, 3, 224, 224),
            {
                "crop_size": 224,
                "frames_per_clip": 8,
                "hidden_size": 384,
                "num_attention_heads": 6,
                "num_hidden_layers": 4,
            },
        ),
    ),
    "depth_anything": _images(
        *("DepthAnything", "ForDepthEstimation", "predicted_depth", 252),
        backbone_config=lambda: transformers.Dinov2Config(
            image_size=252,
            patch_size=14,
            num_hidden_layers=4,
            hidden_size=384,
            num_attention_heads=6,
            out_features=["stage1", "stage2", "stage3", "stage4"],
            reshape_hidden_states=False,
            apply_layernorm=True,
        ),
        reassemble_hidden_size=384,
        neck_hidden_sizes=[48, 96, 192, 384],
        patch_size=14,
    ),
    "sewd_4": _sounds("SEWD", num_hidden_layers=4),
    "w2v_bert_4": Spec(
        *("Wav2Vec2BertModel", "Wav2Vec2BertConfig", _HIDDEN, ("input_features",)),
        *(
            _signal(200, 160),
            {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, **_LAYERS},
        ),
    ),
    "parakeet_4": Spec(
        *("ParakeetEncoder", "ParakeetEncoderConfig", _HIDDEN, ("input_features",)),
        *(
            _signal(400, 80),
            {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, **_LAYERS},
        ),
    ),
    "git_captions": Spec(
        *("GitModel", "GitConfig", _HIDDEN, ("input_ids", "pixel_values")),
        *(
            _text_and_image(1000, 224),
            {"vocab_size": 1000, "vision_config": {"num_hidden_layers": 4}, **_SMALL},
        ),
    ),
    "tr_ocr": Spec(
        "TrOCRForCausalLM",
        "TrOCRConfig",
        "logits",
        ("input_ids",),
        _ids(32, 1000),
        {"vocab_size": 1000, "decoder_layers": 4},
    ),
}
MODELS: dict[str, Spec] = {
    "distilbert_384": _texts("DistilBertModel", _HIDDEN, 384, 30_522),
    "minilm_l6": _texts(
        *("BertModel", _HIDDEN, 128, 30_522),
        hidden_size=384,
        num_hidden_layers=6,
        intermediate_size=1536,
    ),
    "deberta_v2_6": _texts("DebertaV2Model", _HIDDEN, 128, 128_100, **_DEBERTA),
    "modernbert": _texts("ModernBertModel", _HIDDEN, 256, 50_368),
    "modernbert_6": _texts("ModernBertModel", _HIDDEN, 128, 50_368, num_hidden_layers=6),
    "t5_encoder": _texts("T5EncoderModel", _HIDDEN, 256, 32_128),
    "t5_small_encoder": _texts("T5EncoderModel", _HIDDEN, 128, 32_128),
    "albert": _texts(
        *("AlbertModel", _HIDDEN, 128, 30_000),
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
    ),
    "electra_small": _texts("ElectraModel", _HIDDEN, 128, 30_522),
    "gpt2": _texts("GPT2Model", _HIDDEN, 128, 50_257),
    "mpnet_6": _texts("MPNetModel", _HIDDEN, 128, 30_527, num_hidden_layers=6),
    "bart": _texts("BartModel", _HIDDEN, 128, 50_265),
    "swin_t": _images("Swin", *_CLASSES, 224),
    "segformer_b0": _images("Segformer", "ForSemanticSegmentation", "logits", 512, num_labels=150),
    "clip_vision": _images("CLIPVision", "Model", "pooler_output", 224),
    "beit_4": _images(
        *("Beit", "Model", _HIDDEN, 224), num_hidden_layers=4, use_relative_position_bias=True
    ),
    "dinov2": _images("Dinov2", *_CLASSES, 224, image_size=224),
    "mobilevit": _images("MobileViT", *_CLASSES, 256),
    "convnextv2": _images("ConvNextV2", *_CLASSES, 224),
    "poolformer": _images("PoolFormer", *_CLASSES, 224),
    "levit": _images("Levit", *_CLASSES, 224),
    "pvt": _images("Pvt", *_CLASSES, 224),
    "bit": _images("Bit", *_CLASSES, 224),
    "detr": _images(
        *("Detr", "ForObjectDetection", "pred_boxes", 800),
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone_config=_backbone,
    ),
    "rt_detr": _images("RTDetr", "ForObjectDetection", "pred_boxes", 640),
    "swin2sr": _images("Swin2SR", "ForImageSuperResolution", "reconstruction", 64, image_size=64),
    "dpt": _images("DPT", "ForDepthEstimation", "predicted_depth", 384),
    "whisper_tiny_encoder": Spec(
        WhisperEncoder, "WhisperConfig", _HIDDEN, ("input_features",), _signal(80, 3000)
    ),
    "wav2vec2": Spec(
        "Wav2Vec2Model", "Wav2Vec2Config", _HIDDEN, ("input_values",), _signal(80_000)
    ),
    "wav2vec2_4": _sounds("Wav2Vec2", num_hidden_layers=4),
    "hubert_4": _sounds("Hubert", num_hidden_layers=4),
    "hifigan": Spec(
        "SpeechT5HifiGan", "SpeechT5HifiGanConfig", "", ("spectrogram",), _signal(100, 80)
    ),
    **_OTHERS,
    **_SURVEYED,
    "videomae": Spec("VideoMAEModel", "VideoMAEConfig", _HIDDEN, _PIXELS, _signal(16, 3, 224, 224)),
}


def build(name: str, batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a model of MODELS, and a batch of its inputs; equal names give equal numbers."""
    torch.manual_seed(0)
    spec = MODELS[name]
    model = spec.model().eval()
    generator = torch.Generator().manual_seed(1)
    rows = [spec.draw(generator) for _ in range(batch)]
    return model, tuple(torch.cat(parts) for parts in zip(*rows, strict=True))

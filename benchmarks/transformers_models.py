"""Models of the transformers library for benchmarks: its architectures, seeded weights.

`build(name)` gives a model in evaluation mode that returns tensors alone, and its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Outputs(nn.Module):
    """A model of the library, of whose answer the named tensor is returned.

    Args:
        model: the library's.
        field: of its answer.
        inputs: the names of what it is called with, in order.
    """

    def __init__(self, model: nn.Module, field: str, inputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.field, self.inputs = model, field, inputs

    def forward(self, *given: Tensor) -> Tensor:
        """Returns the tensor."""
        answer = self.model(**dict(zip(self.inputs, given, strict=True)))
        found: Tensor = getattr(answer, self.field)
        return found


def _image(size: int) -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1)),)


def _tokens(length: int, vocabulary: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, vocabulary, (1, length), generator=generator)
    return ids, torch.ones(1, length, dtype=torch.int64)


def _distilbert() -> Made:
    from transformers import DistilBertConfig, DistilBertModel

    model = DistilBertModel(DistilBertConfig())
    names = ("input_ids", "attention_mask")
    return Outputs(model, "last_hidden_state", names), _tokens(384, 30_522)


def _deberta() -> Made:
    from transformers import DebertaV2Config, DebertaV2Model

    config = DebertaV2Config(
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=3072,
        relative_attention=True,
        position_buckets=256,
        max_relative_positions=-1,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
    )
    names = ("input_ids", "attention_mask")
    return Outputs(DebertaV2Model(config), "last_hidden_state", names), _tokens(128, 128_100)


def _swin() -> Made:
    from transformers import SwinConfig, SwinForImageClassification

    model = SwinForImageClassification(SwinConfig())
    return Outputs(model, "logits", ("pixel_values",)), _image(224)


def _segformer() -> Made:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=150))
    return Outputs(model, "logits", ("pixel_values",)), _image(512)


def _whisper() -> Made:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    model = WhisperEncoder(WhisperConfig())
    spectrum = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(1))
    return Outputs(model, "last_hidden_state", ("input_features",)), (spectrum,)


def _text(model: str, length: int = 128, **sizes: Any) -> Made:
    """A model of token ids, by its name in the library, of its configuration's sizes or others."""
    import transformers

    config = getattr(transformers, f"{model}Config")(**sizes)
    network = getattr(transformers, f"{model}Model")(config)
    return Outputs(network, "last_hidden_state", ("input_ids", "attention_mask")), _tokens(
        length, config.vocab_size
    )


def _vision(model: str, size: int = 224, **sizes: Any) -> Made:
    import transformers

    config = getattr(transformers, f"{model}Config")(**sizes)
    network = getattr(transformers, f"{model}Model")(config)
    return Outputs(network, "last_hidden_state", ("pixel_values",)), _image(size)


def _wave(model: str, samples: int = 16_000, **sizes: Any) -> Made:
    import transformers

    config = getattr(transformers, f"{model}Config")(**sizes)
    network = getattr(transformers, f"{model}Model")(config)
    sound = torch.randn(1, samples, generator=torch.Generator().manual_seed(1))
    return Outputs(network, "last_hidden_state", ("input_values",)), (sound,)


def _t5() -> Made:
    from transformers import T5Config, T5EncoderModel

    model = T5EncoderModel(T5Config())
    names = ("input_ids", "attention_mask")
    return Outputs(model, "last_hidden_state", names), _tokens(128, 32_128)


MODELS: dict[str, Callable[[], Made]] = {
    "distilbert_384": _distilbert,
    "deberta_v2_6": _deberta,
    "swin_t": _swin,
    "segformer_b0": _segformer,
    "whisper_tiny_encoder": _whisper,
    "albert": lambda: _text(
        "Albert", hidden_size=768, num_attention_heads=12, intermediate_size=3072
    ),
    "electra_small": lambda: _text("Electra"),
    "modernbert": lambda: _text("ModernBert", num_hidden_layers=6),
    "gpt2": lambda: _text("GPT2", use_cache=False),
    "mpnet_6": lambda: _text("MPNet", num_hidden_layers=6),
    "t5_small_encoder": _t5,
    "beit_4": lambda: _vision("Beit", num_hidden_layers=4, use_relative_position_bias=True),
    "clip_vision": lambda: _vision("CLIPVision"),
    "wav2vec2_4": lambda: _wave("Wav2Vec2", num_hidden_layers=4),
    "hubert_4": lambda: _wave("Hubert", num_hidden_layers=4),
}


def build(name: str) -> Made:
    """Returns a model of MODELS; equal names give equal numbers."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs

"""Small seeded language models of `transformers`: one configuration for each kind of decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

VOCAB = 160
_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **more}


def _llama3() -> Any:
    rope = _rope(
        "llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )
    return transformers.LlamaConfig(**_SMALL, rope_parameters=rope)


def _yarn() -> Any:
    rope = _rope("yarn", factor=4.0, original_max_position_embeddings=128)
    return transformers.LlamaConfig(**_SMALL, rope_parameters=rope)


CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "qwen2-tied": lambda: transformers.Qwen2Config(**_SMALL, tie_word_embeddings=True),
    "qwen2-sliding": lambda: transformers.Qwen2Config(
        **_SMALL, use_sliding_window=True, sliding_window=48, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**_SMALL, head_dim=32),
    "llama2": lambda: transformers.LlamaConfig(**_SMALL | {"num_key_value_heads": 4}),
    "llama3": _llama3,
    "llama-linear-rope": lambda: transformers.LlamaConfig(
        **_SMALL, rope_parameters=_rope("linear", factor=2.0)
    ),
    "llama-yarn": _yarn,
    "mistral": lambda: transformers.MistralConfig(**_SMALL, sliding_window=40),
    "gemma2": lambda: transformers.Gemma2Config(
        **_SMALL, head_dim=16, sliding_window=56, query_pre_attn_scalar=16
    ),
    "phi3": lambda: transformers.Phi3Config(**_SMALL, partial_rotary_factor=0.5),
    "smollm3": lambda: transformers.SmolLM3Config(**_SMALL),
}


def small_model(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Returns a seeded model in evaluation mode; gemma2 with the attention that caps its scores."""
    torch.manual_seed(0)
    attention = {"attn_implementation": "eager"} if name == "gemma2" else {}
    config = CONFIGURATIONS[name]()
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, **attention)
    with torch.no_grad():  # initial norms and biases are ones and zeros, which hide mistakes
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape).to(dtype))
    return model.eval()

"""Every architecture of transformers' causal language models, as a small seeded model.

Owns where each one's configuration comes from: the zoo's entry of that architecture where there is
one; otherwise its configuration class with the sizes below, as far as it knows them.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

from tests.zoo import ENTRIES
from tests.zoo.families.decoders import SMALL
from tests.zoo.families.newer_decoders import EXPERTS, LATENT, LINEAR
from tests.zoo.inputs import VOCAB
from tests.zoo.weights import vary

NAMES = tuple(CLASSES)
_MOST_PARAMETERS = 40_000_000

# Entries that are not called as their architecture is, with hyphens.
_ENTRY_OF = {
    "deepseek_v32": "deepseek-v3.2",
    "ernie4_5": "ernie4.5",
    "ernie4_5_moe": "ernie4.5-moe",
    "exaone_moe": "exaone-moe",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "granitemoehybrid": "granitemoe-hybrid",
    "granitemoeshared": "granitemoe-shared",
    "granitemoe_swa": "granitemoe-swa",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
    "hyperclovax": "hyperclova-x",
    "inkling_text": "inkling",
    "qwen3_5_moe_text": "qwen3.5-moe",
    "qwen3_5_text": "qwen3.5",
    "qwen4_exp_text": "qwen4-exp",
}
_SIZES: dict[str, Any] = {
    **SMALL,
    "head_dim": 8,
    "sliding_window": 6,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "shared_intermediate_size": 24,
    "dense_intermediate_size": 24,
    "intermediate_size_mlp": 24,
    "expert_ffn_hidden_size": 24,
    "ffn_hidden_size": 48,
    "ffn_dim": 48,
    "num_layers": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "index_topk": 8,
    "index_n_heads": 32,
    "index_head_dim": 16,
    "attention_chunk_size": 6,
}


def build(name: str) -> nn.Module:
    """Returns a small model of an architecture in evaluation mode; equal in every process.

    Raises:
        Exception: whatever transformers raises for what it cannot build.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = configuration(name)
        if name.startswith("musicgen"):  # whose decoder no automatic class makes
            model: nn.Module = getattr(hf, CLASSES[name])(config).eval()
        else:
            model = hf.AutoModelForCausalLM.from_config(config).eval()
        vary(model)
    count = sum(p.numel() for p in model.parameters())
    if count > _MOST_PARAMETERS:
        raise AssertionError(f"{name} has {count:,} parameters: it needs smaller sizes")
    return model


def configuration(name: str) -> Any:
    """Returns a small configuration of an architecture, that of a decoder with a cache."""
    entry = ENTRIES.get(_ENTRY_OF.get(name, name.replace("_", "-")))
    if name in _MORE or entry is None:
        kind = CONFIG_MAPPING[name]
        config = kind(**_known(kind) | _MORE.get(name, {}))
    else:
        config = entry.make()[0].config
    config = config.get_text_config(decoder=True) if name.startswith("musicgen") else config
    positions = config.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    if vars(config).get(positions, 64) < 64:
        setattr(config, positions, 64)
    for part in (config, config.get_text_config()):
        if hasattr(part, "is_decoder"):
            part.is_decoder = True
        part.use_cache = True
        for key, value in _GENERATING.items():
            if hasattr(part, key):
                setattr(part, key, value)
    return config


def _known(kind: Any) -> dict[str, Any]:
    """Returns the sizes that a configuration class knows, those of its parts included."""
    parts = {
        key: _known(part)
        for key, part in getattr(kind, "sub_configs", {}).items()
        if hasattr(part, "__annotations__")
    }
    known = {key: value for key, value in _SIZES.items() if key in kind.__annotations__}
    return known | parts


_TINY: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
_LAYER: dict[str, Any] = _TINY | {"num_hidden_layers": 1}
_OLD: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2}
_MIXED = ["sliding_attention", "full_attention"]
_EXPERTS = {"first_k_dense_replace": 1, "num_key_value_heads": 4}
_BLT: dict[str, Any] = _LAYER | {"num_key_value_heads": 4}

_DOTS = SMALL | EXPERTS | LATENT | {"num_key_value_heads": 4, "per_layer_config": {}}
_INDEXER: dict[str, Any] = {
    "head_dim": 8,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}
# What the zoo's entries, which run once over a whole text, have otherwise.
_GENERATING = {
    "return_last_states": True,
    "max_target_positions": 64,
    "default_language": "en_XX",
    "axial_pos_embds": False,
}
_MORE: dict[str, dict[str, Any]] = {
    "axk1": {"num_key_value_heads": 4},
    "axk2": {"num_key_value_heads": 4},
    "blt": {
        "patcher_config": _BLT,
        "encoder_config": _BLT | {"hidden_size_global": 32},
        "decoder_config": _BLT | {"hidden_size_global": 32},
        "global_config": _BLT,
        "encoder_hash_byte_group_vocab": 64,
        "vocab_size": 260,
    },
    "cohere_compass_text": {
        "layer_types": _MIXED,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in _MIXED},
    },
    "dbrx": {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 64,
        "vocab_size": VOCAB,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note_text": {"num_key_value_heads": 4},
    "dots3_note": {
        "text_config": _DOTS,
        "vision_config": _LAYER
        | {
            "per_layer_config": {},
            "mlp_layer_types": ["dense"],
            "adapter_in_dim": 32,
            "adapter_out_dim": 32,
        },
        "audio_config": _LAYER | {"adapter_input_size": 32, "adapter_output_size": 32},
    },
    "bailing_hybrid": _EXPERTS | {"layer_types": ["linear_attention", "full_attention"]},
    "lfm3": SMALL | {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {
        "num_key_value_heads": 4,
        "head_dim": 8,
        "qk_head_dim": 16,
        "zero_expert_num": 2,
    },
    "qwen3_5": {"text_config": SMALL | LINEAR | {"head_dim": 8}},
    "qwen3_5_moe": {"text_config": SMALL | LINEAR | EXPERTS | {"head_dim": 8}},
    "qwen4_exp": {"text_config": SMALL | LINEAR | EXPERTS | _INDEXER},
    "qwen4_exp_text": SMALL | LINEAR | EXPERTS | _INDEXER,
    "kimi_linear": SMALL | EXPERTS | LATENT | {"layer_types": LINEAR["layer_types"]},
    "fuyu": {"text_config": {"model_type": "persimmon", **SMALL}},
    "gemma3n_text": {
        "layer_types": _MIXED,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "activation_sparsity_pattern": [0.5, 0.0],
        "laurel_rank": 8,
    },
    "got_ocr2": {
        "text_config": {"model_type": "qwen2", **SMALL},
        "vision_config": {**_LAYER, "mlp_dim": 48, "output_channels": 16, "image_size": 64},
    },
    "gpt-sw3": {**_OLD, "n_embd": 32, "n_layer": 2, "n_head": 4},
    # Its cache forgets what lies behind a window that forward does not know.
    "moshi": SMALL | {"head_dim": 8, "sliding_window": 64, "max_position_embeddings": 64},
    "moss_transcribe_diarize": {
        "text_config": {"model_type": "qwen3", **SMALL, "head_dim": 8},
        "audio_config": {
            "d_model": 32,
            "encoder_layers": 1,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
        },
    },
    "trocr": {
        "vocab_size": VOCAB,
        "d_model": 32,
        "decoder_layers": 2,
        "decoder_ffn_dim": 48,
        "decoder_attention_heads": 4,
        "max_position_embeddings": 64,
    },
    "zamba": {
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "attention_head_dim": 16,
        "mamba_d_state": 8,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}

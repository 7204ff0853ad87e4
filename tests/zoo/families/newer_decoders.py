"""Decoders of the last years' families: latent and sparse attention, hybrids, shared experts."""

from __future__ import annotations

from typing import Any

import transformers as hf

from tests.zoo.entry import Build, entries
from tests.zoo.families.decoders import SMALL, decoder
from tests.zoo.inputs import prompt

EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
}
# Many heads: a position that all of them score below 0 ties with others, and which of equal ones
# `topk` takes is unspecified.
_SPARSE: dict[str, Any] = {"index_topk": 8, "index_n_heads": 32, "index_head_dim": 16}
LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


def _text_decoder(family: str, **more: Any) -> Build:
    """Returns how the text part of a family with several kinds of inputs is made."""
    return lambda: (
        getattr(hf, f"{family}ForCausalLM")(getattr(hf, f"{family}TextConfig")(**SMALL | more)),
        prompt(),
    )


NEWER_DECODERS = entries(
    "Newer decoders",
    {
        "doge": decoder("Doge"),
        "minicpm3": decoder("MiniCPM3", **LATENT),
        "nanochat": decoder("NanoChat"),
        "vaultgemma": decoder("VaultGemma", head_dim=8, sliding_window=6),
        "jais2": decoder("Jais2"),
        "granite-swa": decoder("GraniteSWA", sliding_window=6),
        "hyperclova-x": decoder("HyperCLOVAX", head_dim=8),
        "ministral3": decoder("Ministral3", head_dim=8),
        "mistral4": decoder("Mistral4", **EXPERTS | LATENT),
        "youtu": decoder("Youtu", **LATENT),
        "lfm3": decoder("Lfm3"),
        "hrm-text": decoder("HrmText"),
        "flint": decoder("Flint"),
        "gemma4": _text_decoder("Gemma4", head_dim=8, vocab_size_per_layer_input=96),
        "qwen3.5": _text_decoder("Qwen3_5", **LINEAR, head_dim=8),
        "olmo-hybrid": decoder("OlmoHybrid", **LINEAR),
        "exaone-moe": decoder("ExaoneMoe", **EXPERTS, n_group=2, topk_group=1, head_dim=8),
        "deepseek-v3.2": decoder("DeepseekV32", **EXPERTS | LATENT | _SPARSE),
        "deepseek-v4": decoder("DeepseekV4", **EXPERTS, head_dim=16),
        "glm4-moe-lite": decoder("Glm4MoeLite", **EXPERTS | LATENT),
        "glm-moe-dsa": decoder("GlmMoeDsa", **EXPERTS | LATENT | _SPARSE),
        "minimax": decoder(
            "MiniMax",
            **EXPERTS,
            head_dim=8,
            layer_types=["linear_attention", "full_attention"],
            block_size=8,
        ),
        "mimo-v2-flash": decoder("MiMoV2Flash", **EXPERTS, head_dim=8),
        "qwen3.5-moe": _text_decoder("Qwen3_5Moe", **LINEAR | EXPERTS, head_dim=8),
        "qwen4-exp": _text_decoder("Qwen4Exp", **EXPERTS, head_dim=8),
        "kimi-linear": decoder("KimiLinear", **EXPERTS | LATENT),
        "solar-open": decoder("SolarOpen", **EXPERTS, head_dim=8),
        "afmoe": decoder("Afmoe", **EXPERTS, head_dim=8, sliding_window=6),
        "hy-v3": decoder("HYV3", **EXPERTS, head_dim=8),
        "cohere2-moe": decoder("Cohere2Moe", **EXPERTS, head_dim=8, sliding_window=6),
        "granitemoe-swa": decoder("GraniteMoeSWA", **EXPERTS, sliding_window=6),
        "laguna": decoder("Laguna", **EXPERTS, head_dim=8),
        "bailing-hybrid": decoder("BailingHybrid", **EXPERTS | LATENT, head_dim=8),
        "mellum": decoder("Mellum", **EXPERTS, head_dim=8),
        "inkling": _text_decoder("Inkling", **EXPERTS, head_dim=8),
    },
)

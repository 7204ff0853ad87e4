"""Decoders with mixtures of experts."""

from __future__ import annotations

from typing import Any

from tests.zoo.entry import entries
from tests.zoo.families.decoders import decoder

_ROUTED: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
}

EXPERTS = entries(
    "Mixtures of experts",
    {
        "mixtral": decoder("Mixtral", num_local_experts=4),
        "mixtral-batched": decoder(
            "Mixtral", num_local_experts=4, experts_implementation="batched_mm"
        ),
        "qwen2-moe": decoder("Qwen2Moe", **_ROUTED, shared_expert_intermediate_size=24),
        "qwen3-moe": decoder("Qwen3Moe", **_ROUTED, head_dim=8),
        "olmoe": decoder("Olmoe", **_ROUTED),
        "phimoe": decoder("Phimoe", num_local_experts=4),
        "granitemoe": decoder("GraniteMoe", num_local_experts=4),
        "granitemoe-shared": decoder(
            "GraniteMoeShared", num_local_experts=4, shared_intermediate_size=24
        ),
        "jetmoe": decoder("JetMoe", num_local_experts=4, kv_channels=8),
        "gpt-oss": decoder("GptOss", num_local_experts=4, head_dim=8, sliding_window=6),
        "deepseek-v2": decoder("DeepseekV2", **_LATENT, topk_method="greedy"),
        "deepseek-v3": decoder("DeepseekV3", **_LATENT),
        "dots1": decoder("Dots1", **_LATENT, head_dim=8),
        "ernie4.5-moe": decoder(
            "Ernie4_5_Moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=24, head_dim=8
        ),
        "glm4-moe": decoder("Glm4Moe", **_LATENT, head_dim=8),
        "hunyuan-moe": decoder("HunYuanMoEV1", num_experts=4, moe_topk=2, head_dim=8),
        "minimax-m2": decoder("MiniMaxM2", num_local_experts=4, num_experts_per_tok=2, head_dim=8),
        "flex-olmo": decoder("FlexOlmo", **_ROUTED),
        "lfm2-moe": decoder(
            "Lfm2Moe", **_ROUTED, layer_types=["conv", "full_attention"], num_dense_layers=1
        ),
    },
)

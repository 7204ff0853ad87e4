"""State-space, recurrent and linear-attention decoders, and hybrids of them with attention."""

from __future__ import annotations

from typing import Any

import transformers as hf

from tests.zoo.entry import entries
from tests.zoo.families.decoders import decoder
from tests.zoo.inputs import VOCAB, prompt

_MAMBA: dict[str, Any] = {"state_size": 8, "conv_kernel": 4}
_SCAN: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}

STATE_SPACE = entries(
    "State-space and recurrent",
    {
        "mamba": decoder("Mamba", **_MAMBA),
        "mamba2": decoder("Mamba2", **_MAMBA, num_heads=4, head_dim=16, n_groups=2, chunk_size=8),
        "falcon-mamba": decoder("FalconMamba", **_MAMBA),
        "recurrent-gemma": decoder(
            "RecurrentGemma", lru_width=32, attention_window_size=6, num_hidden_layers=3
        ),
        "jamba": decoder(
            "Jamba",
            num_hidden_layers=2,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            num_experts=4,
            mamba_d_state=8,
            use_mamba_kernels=False,
        ),
        "bamba": decoder("Bamba", **_SCAN, attn_layer_indices=[1]),
        "zamba2": decoder(
            "Zamba2",
            num_key_value_heads=4,
            layers_block_type=["mamba", "hybrid"],
            mamba_d_state=8,
            mamba_ngroups=2,
            n_mamba_heads=4,
            chunk_size=8,
            use_mamba_kernels=False,
        ),
        "falcon-h1": decoder("FalconH1", **_SCAN, mamba_d_ssm=64, head_dim=8),
        "granitemoe-hybrid": decoder(
            "GraniteMoeHybrid",
            **_SCAN,
            layer_types=["mamba", "attention"],
            num_local_experts=4,
            shared_intermediate_size=24,
        ),
        "nemotron-h": decoder(
            "NemotronH",
            layers_block_type=["mamba", "attention", "mlp"],
            num_hidden_layers=3,
            mamba_num_heads=4,
            mamba_head_dim=16,
            n_groups=2,
            ssm_state_size=8,
            chunk_size=8,
            head_dim=8,
        ),
        "qwen3-next": decoder(
            "Qwen3Next",
            head_dim=8,
            layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=24,
        ),
        "rwkv": lambda: (
            hf.RwkvForCausalLM(
                hf.RwkvConfig(
                    vocab_size=VOCAB,
                    hidden_size=32,
                    attention_hidden_size=32,
                    intermediate_size=48,
                    num_hidden_layers=2,
                    context_length=32,
                    rescale_every=0,  # else forward divides its own weights, once
                )
            ),
            prompt(),
        ),
        "xlstm": lambda: (
            hf.xLSTMForCausalLM(
                hf.xLSTMConfig(
                    vocab_size=VOCAB,
                    hidden_size=32,
                    num_hidden_layers=2,
                    num_heads=2,
                    chunk_size=8,
                    ffn_round_up_to_multiple_of=16,
                    return_last_states=False,
                )
            ),
            prompt(),
        ),
    },
)

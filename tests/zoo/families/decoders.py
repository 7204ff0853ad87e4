"""Decoders of text, over a whole prompt and without a cache."""

from __future__ import annotations

from typing import Any

import transformers as hf

from tests.zoo.entry import Build, entries
from tests.zoo.inputs import VOCAB, prompt

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_OLD: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2}


def decoder(family: str, **more: Any) -> Build:
    """Returns how `<family>ForCausalLM` of a small configuration is made."""
    return lambda: (
        getattr(hf, f"{family}ForCausalLM")(getattr(hf, f"{family}Config")(**SMALL | more)),
        prompt(),
    )


DECODERS = entries(
    "Decoders",
    {
        "gpt2": lambda: (
            hf.GPT2LMHeadModel(hf.GPT2Config(**_OLD, n_embd=32, n_layer=2, n_head=4)),
            prompt(),
        ),
        "openai-gpt": lambda: (
            hf.OpenAIGPTLMHeadModel(
                hf.OpenAIGPTConfig(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4)
            ),
            prompt(),
        ),
        "gpt-neo": lambda: (
            hf.GPTNeoForCausalLM(
                hf.GPTNeoConfig(
                    **_OLD,
                    hidden_size=32,
                    num_layers=2,
                    num_heads=4,
                    attention_types=[[["global", "local"], 1]],
                    window_size=6,
                    max_position_embeddings=64,
                )
            ),
            prompt(),
        ),
        "gpt-neox": decoder("GPTNeoX"),
        "gptj": lambda: (
            hf.GPTJForCausalLM(hf.GPTJConfig(**_OLD, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)),
            prompt(),
        ),
        "codegen": lambda: (
            hf.CodeGenForCausalLM(
                hf.CodeGenConfig(**_OLD, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)
            ),
            prompt(),
        ),
        "gpt-bigcode": lambda: (
            hf.GPTBigCodeForCausalLM(
                hf.GPTBigCodeConfig(**_OLD, n_embd=32, n_layer=2, n_head=4, multi_query=True)
            ),
            prompt(),
        ),
        "ctrl": lambda: (
            hf.CTRLLMHeadModel(
                hf.CTRLConfig(vocab_size=VOCAB, n_embd=32, dff=48, n_layer=2, n_head=4)
            ),
            prompt(),
        ),
        "opt": decoder("OPT", ffn_dim=48, word_embed_proj_dim=32),
        "bloom": lambda: (
            hf.BloomForCausalLM(hf.BloomConfig(**_OLD, hidden_size=32, n_layer=2, n_head=4)),
            prompt(),
        ),
        "mpt": lambda: (
            hf.MptForCausalLM(
                hf.MptConfig(vocab_size=VOCAB, d_model=32, n_heads=4, n_layers=2, max_seq_len=64)
            ),
            prompt(),
        ),
        "llama": decoder("Llama"),
        "mistral": decoder("Mistral", sliding_window=6),
        "ministral": decoder("Ministral", sliding_window=6, head_dim=8),
        "qwen2": decoder("Qwen2", tie_word_embeddings=True),
        "qwen3": decoder("Qwen3", head_dim=16),
        "gemma": decoder("Gemma", head_dim=8),
        "gemma2": decoder("Gemma2", head_dim=8, sliding_window=6, attn_implementation="eager"),
        "gemma3": lambda: (
            hf.Gemma3ForCausalLM(
                hf.Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=6, query_pre_attn_scalar=8)
            ),
            prompt(),
        ),
        "phi": decoder("Phi", partial_rotary_factor=0.5),
        "phi3": decoder("Phi3"),
        "falcon": decoder("Falcon", multi_query=True, parallel_attn=True),
        "falcon-new": decoder("Falcon", new_decoder_architecture=True, num_kv_heads=2),
        "falcon-alibi": decoder("Falcon", alibi=True, multi_query=False),
        "persimmon": decoder("Persimmon"),
        "stablelm": decoder("StableLm", use_parallel_residual=True, qk_layernorm=True),
        "olmo": decoder("Olmo"),
        "olmo2": decoder("Olmo2"),
        "olmo3": decoder("Olmo3", sliding_window=6),
        "cohere": decoder("Cohere", use_qk_norm=True),
        "cohere2": decoder("Cohere2", sliding_window=6, head_dim=8),
        "granite": decoder("Granite", logits_scaling=2.0, residual_multiplier=0.5),
        "smollm3": decoder("SmolLM3"),
        "starcoder2": decoder("Starcoder2"),
        "nemotron": decoder("Nemotron", head_dim=8),
        "glm": decoder("Glm", head_dim=8),
        "glm4": decoder("Glm4", head_dim=8),
        "exaone4": decoder("Exaone4", sliding_window=6, sliding_window_pattern=2),
        "arcee": decoder("Arcee"),
        "apertus": decoder("Apertus"),
        "helium": decoder("Helium", head_dim=8),
        "ernie4.5": decoder("Ernie4_5", head_dim=8),
        "seed-oss": decoder("SeedOss", head_dim=8),
        "hunyuan-dense": decoder("HunYuanDenseV1", head_dim=8),
        "diffllama": decoder("DiffLlama"),
        "bitnet": decoder("BitNet"),
        "lfm2": decoder("Lfm2", layer_types=["conv", "full_attention"]),
        "modernbert-decoder": decoder("ModernBertDecoder", local_attention=8),
        "biogpt": decoder("BioGpt"),
        "xglm": lambda: (
            hf.XGLMForCausalLM(
                hf.XGLMConfig(
                    **_OLD,
                    d_model=32,
                    ffn_dim=48,
                    num_layers=2,
                    attention_heads=4,
                    max_position_embeddings=64,
                )
            ),
            prompt(),
        ),
        "imagegpt": lambda: (
            hf.ImageGPTModel(
                hf.ImageGPTConfig(vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=2, n_head=4)
            ),
            prompt(),
        ),
    },
)

"""Encoder-decoders: text to text, in one pass over source and target."""

from __future__ import annotations

from typing import Any

import transformers as hf

from tests.zoo.entry import Build, entries
from tests.zoo.inputs import VOCAB, translation

_BART: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_T5: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}


def _made(model: str, config: str, common: dict[str, Any], **more: Any) -> Build:
    return lambda: (getattr(hf, model)(getattr(hf, config)(**common | more)), translation())


ENCODER_DECODERS = entries(
    "Encoder-decoders",
    {
        "t5": _made("T5ForConditionalGeneration", "T5Config", _T5),
        "mt5": _made("MT5Model", "MT5Config", _T5, feed_forward_proj="gated-gelu"),
        "umt5": _made("UMT5Model", "UMT5Config", _T5),
        "longt5": _made("LongT5Model", "LongT5Config", _T5, local_radius=4),
        "longt5-global": _made(
            "LongT5Model",
            "LongT5Config",
            _T5,
            local_radius=4,
            encoder_attention_type="transient-global",
            global_block_size=4,
        ),
        "switch-transformers": _made(
            "SwitchTransformersModel",
            "SwitchTransformersConfig",
            _T5,
            num_experts=4,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
        ),
        "bart": _made("BartForConditionalGeneration", "BartConfig", _BART),
        "mbart": _made("MBartModel", "MBartConfig", _BART),
        "blenderbot": _made("BlenderbotModel", "BlenderbotConfig", _BART),
        "blenderbot-small": _made("BlenderbotSmallModel", "BlenderbotSmallConfig", _BART),
        "pegasus": _made("PegasusModel", "PegasusConfig", _BART),
        "pegasus-x": _made(
            "PegasusXModel", "PegasusXConfig", _BART, block_size=4, num_global_tokens=4
        ),
        "bigbird-pegasus": _made(
            "BigBirdPegasusModel", "BigBirdPegasusConfig", _BART, attention_type="original_full"
        ),
        "marian": _made("MarianMTModel", "MarianConfig", _BART),
        "m2m100": _made("M2M100Model", "M2M100Config", _BART),
        "plbart": _made("PLBartModel", "PLBartConfig", _BART),
        "mvp": _made("MvpModel", "MvpConfig", _BART),
        "led": _made(
            "LEDModel",
            "LEDConfig",
            _BART,
            attention_window=4,
            max_encoder_position_embeddings=64,
            max_decoder_position_embeddings=64,
        ),
        "nllb-moe": _made(
            "NllbMoeModel",
            "NllbMoeConfig",
            _BART,
            num_experts=4,
            encoder_sparse_step=2,
            decoder_sparse_step=2,
        ),
        "fsmt": _made("FSMTModel", "FSMTConfig", _BART, src_vocab_size=VOCAB, tgt_vocab_size=VOCAB),
        "prophetnet": _made(
            "ProphetNetModel",
            "ProphetNetConfig",
            {k: v for k, v in _BART.items() if not k.endswith("_layers")},
            hidden_size=32,
            num_encoder_layers=2,
            num_decoder_layers=2,
            num_encoder_attention_heads=4,
            num_decoder_attention_heads=4,
        ),
        "t5gemma": lambda: (hf.T5GemmaModel(_t5gemma()), translation()),
    },
)


def _t5gemma() -> Any:
    side = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 6,
    }
    return hf.T5GemmaConfig(encoder=dict(side), decoder=dict(side), vocab_size=VOCAB)

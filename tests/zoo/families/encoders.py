"""Encoders of text."""

from __future__ import annotations

from typing import Any

import transformers as hf

from tests.zoo.entry import Build, entries
from tests.zoo.inputs import VOCAB, prompt, text

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}
_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "max_relative_positions": 16,
}


def _model(family: str, head: str = "Model", **more: Any) -> Build:
    """Returns how `<family><head>` of a small configuration is made."""
    return lambda: (
        getattr(hf, family + head)(getattr(hf, f"{family}Config")(**SMALL | more)),
        text(),
    )


def _xlm() -> Any:
    return hf.XLMConfig(n_words=VOCAB, emb_dim=32, n_layers=2, n_heads=4, pad_index=1)


ENCODERS = entries(
    "Encoders",
    {
        "bert": _model("Bert", "ForMaskedLM"),
        "bert-classifier": _model("Bert", "ForSequenceClassification", num_labels=3),
        "roberta": _model("Roberta", max_position_embeddings=80),
        "roberta-prelayernorm": _model("RobertaPreLayerNorm"),
        "xlm-roberta": _model("XLMRoberta", "ForTokenClassification"),
        "camembert": _model("Camembert", "ForQuestionAnswering"),
        "distilbert": lambda: (
            hf.DistilBertForQuestionAnswering(
                hf.DistilBertConfig(vocab_size=VOCAB, dim=32, hidden_dim=48, n_layers=2, n_heads=4)
            ),
            text(),
        ),
        "albert": _model("Albert", embedding_size=16, num_hidden_groups=1),
        "electra": _model("Electra", embedding_size=16),
        "electra-discriminator": _model("Electra", "ForPreTraining", embedding_size=16),
        "deberta": _model("Deberta", **_DEBERTA),
        "deberta-v2": _model("DebertaV2", **_DEBERTA, share_att_key=True, position_buckets=8),
        "mpnet": _model("MPNet"),
        "modernbert": _model(
            "ModernBert",
            local_attention=8,
            bos_token_id=2,
            eos_token_id=3,
            cls_token_id=2,
            sep_token_id=3,
        ),
        "convbert": _model("ConvBert", embedding_size=16),
        "mobilebert": _model(
            "MobileBert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16
        ),
        "canine": lambda: (
            hf.CanineModel(
                hf.CanineConfig(
                    **SMALL | {"max_position_embeddings": 256},
                    num_hash_buckets=64,
                    local_transformer_stride=16,
                )
            ),
            text(32),
        ),
        "fnet": lambda: (
            hf.FNetModel(hf.FNetConfig(**SMALL)),
            prompt(),
        ),
        "funnel": lambda: (
            hf.FunnelModel(
                hf.FunnelConfig(
                    vocab_size=VOCAB,
                    block_sizes=[1, 1],
                    num_decoder_layers=1,
                    d_model=32,
                    n_head=4,
                    d_head=8,
                    d_inner=48,
                )
            ),
            text(),
        ),
        "squeezebert": _model(
            "SqueezeBert",
            embedding_size=32,
            **{
                f"{p}_groups": 2
                for p in ("q", "k", "v", "post_attention", "intermediate", "output")
            },
        ),
        "layoutlm": lambda: (
            hf.LayoutLMModel(hf.LayoutLMConfig(**SMALL, max_2d_position_embeddings=64)),
            {**text(), "bbox": _boxes()},
        ),
        "longformer": lambda: (
            hf.LongformerModel(hf.LongformerConfig(**SMALL, attention_window=[4, 4])),
            text(),
        ),
        "big-bird": _model("BigBird", attention_type="original_full"),
        "big-bird-sparse": lambda: (
            hf.BigBirdModel(
                hf.BigBirdConfig(
                    **SMALL | {"max_position_embeddings": 128},
                    attention_type="block_sparse",
                    block_size=4,
                    num_random_blocks=2,
                )
            ),
            text(64),
        ),
        "nystromformer": lambda: (
            hf.NystromformerModel(
                hf.NystromformerConfig(**SMALL, segment_means_seq_len=16, num_landmarks=16)
            ),
            prompt(),
        ),
        "rembert": _model("RemBert", input_embedding_size=16, output_embedding_size=24),
        "roformer": _model("RoFormer", embedding_size=32),
        "ibert": _model("IBert"),
        "megatron-bert": _model("MegatronBert"),
        "esm": _model("Esm", mask_token_id=4, position_embedding_type="rotary"),
        "data2vec-text": _model("Data2VecText"),
        "xlnet": lambda: (
            hf.XLNetModel(
                hf.XLNetConfig(vocab_size=VOCAB, d_model=32, n_layer=2, n_head=4, d_inner=48)
            ),
            text(),
        ),
        "xlm": lambda: (hf.XLMModel(_xlm()), text()),
        "nomic-bert": _model("NomicBert"),
        "eurobert": _model("EuroBert", num_key_value_heads=2),
        "gte": _model("Gte"),
        "jina-embeddings-v3": _model("JinaEmbeddingsV3"),
        "luke": _model("Luke", entity_vocab_size=20, entity_emb_size=16),
        "mra": _model("Mra", block_per_row=1, approx_mode="full"),
        "reformer": lambda: (
            hf.ReformerModel(
                hf.ReformerConfig(
                    vocab_size=VOCAB,
                    hidden_size=32,
                    attention_head_size=8,
                    num_attention_heads=4,
                    feed_forward_size=48,
                    attn_layers=["local", "lsh"],
                    axial_pos_shape=[4, 4],
                    axial_pos_embds_dim=[16, 16],
                    local_attn_chunk_length=4,
                    lsh_attn_chunk_length=4,
                    num_buckets=4,
                    hash_seed=0,
                    max_position_embeddings=16,
                )
            ),
            prompt(),
        ),
        "perceiver": lambda: (
            hf.PerceiverForMaskedLM(
                hf.PerceiverConfig(
                    vocab_size=VOCAB,
                    num_latents=8,
                    d_latents=32,
                    d_model=32,
                    num_blocks=1,
                    num_self_attends_per_block=2,
                    num_self_attention_heads=4,
                    num_cross_attention_heads=4,
                    qk_channels=32,
                    v_channels=32,
                    max_position_embeddings=16,
                )
            ),
            text(),
        ),
    },
)


def _boxes() -> Any:
    import torch

    corner = torch.randint(0, 30, (2, 16, 2))
    return torch.cat([corner, corner + torch.randint(1, 30, (2, 16, 2))], dim=-1)

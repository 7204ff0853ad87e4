"""Speech and sound."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from tests.zoo.entry import Build, entries
from tests.zoo.inputs import tokens, waveform

_WAVES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "conv_dim": [16, 16, 16],
    "conv_kernel": [10, 3, 3],
    "conv_stride": [5, 4, 4],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
    "num_codevectors_per_group": 8,
    "codevector_dim": 16,
    "proj_codevector_dim": 16,
}
_SEQUENCES: dict[str, Any] = {
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


def _waves(family: str, head: str = "Model", **more: Any) -> Build:
    """Returns how a model of the wav2vec 2.0 kind is made."""
    return lambda: (
        getattr(hf, family + head)(getattr(hf, f"{family}Config")(**_WAVES | more)),
        waveform(),
    )


def _hifigan() -> Any:
    return hf.SpeechT5HifiGanConfig(
        model_in_dim=16,
        upsample_initial_channel=32,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3, 5],
        resblock_dilation_sizes=[[1, 3], [1, 3]],
    )


def _speecht5(**more: Any) -> Any:
    return hf.SpeechT5Config(
        **{
            **_WAVES,
            "vocab_size": 96,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_mel_bins": 16,
            "speech_decoder_prenet_units": 24,
            "speech_decoder_postnet_units": 24,
            "speaker_embedding_dim": 16,
            "encoder_max_relative_position": 12,
        }
        | more
    )


SPEECH = entries(
    "Speech and sound",
    {
        "whisper": lambda: (
            hf.WhisperForConditionalGeneration(
                hf.WhisperConfig(
                    **_SEQUENCES,
                    num_mel_bins=16,
                    max_source_positions=20,
                    max_target_positions=20,
                )
            ),
            {"input_features": torch.randn(1, 16, 40), "decoder_input_ids": tokens(8)},
        ),
        "wav2vec2": _waves("Wav2Vec2", "ForCTC"),
        "wav2vec2-stable": _waves(
            "Wav2Vec2", do_stable_layer_norm=True, feat_extract_norm="layer", conv_bias=True
        ),
        "wav2vec2-adapter": _waves("Wav2Vec2", add_adapter=True, num_adapter_layers=1),
        "wav2vec2-classifier": _waves("Wav2Vec2", "ForSequenceClassification"),
        "wav2vec2-conformer": _waves("Wav2Vec2Conformer", conv_depthwise_kernel_size=7),
        "wav2vec2-conformer-rotary": _waves(
            "Wav2Vec2Conformer", conv_depthwise_kernel_size=7, position_embeddings_type="rotary"
        ),
        "wav2vec2-bert": lambda: (
            hf.Wav2Vec2BertModel(
                hf.Wav2Vec2BertConfig(
                    **_WAVES, feature_projection_input_dim=16, conv_depthwise_kernel_size=7
                )
            ),
            {"input_features": torch.randn(1, 24, 16)},
        ),
        "hubert": _waves("Hubert", "ForCTC"),
        "wavlm": _waves("WavLM", num_buckets=16, max_bucket_distance=24),
        "unispeech": _waves("UniSpeech"),
        "unispeech-sat": _waves("UniSpeechSat"),
        "data2vec-audio": _waves("Data2VecAudio"),
        "sew": _waves("SEW"),
        "sew-d": _waves("SEWD", max_position_embeddings=64, position_buckets=8, hidden_act="gelu"),
        "speech-to-text": lambda: (
            hf.Speech2TextForConditionalGeneration(
                hf.Speech2TextConfig(
                    **_SEQUENCES,
                    input_feat_per_channel=16,
                    conv_channels=24,
                    max_source_positions=64,
                    max_target_positions=32,
                )
            ),
            {"input_features": torch.randn(1, 40, 16), "decoder_input_ids": tokens(8)},
        ),
        "speecht5-recognition": lambda: (
            hf.SpeechT5ForSpeechToText(_speecht5()),
            {**waveform(), "decoder_input_ids": tokens(8)},
        ),
        "speecht5-synthesis": lambda: (
            hf.SpeechT5ForTextToSpeech(_speecht5(speech_decoder_prenet_dropout=0.0)),
            {
                "input_ids": tokens(12),
                "decoder_input_values": torch.randn(1, 10, 16),
                "speaker_embeddings": torch.randn(1, 16),
            },
        ),
        "speecht5-hifigan": lambda: (
            hf.SpeechT5HifiGan(_hifigan()),
            {"spectrogram": torch.randn(1, 12, 16)},
        ),
        "ast": lambda: (
            hf.ASTForAudioClassification(
                hf.ASTConfig(
                    hidden_size=32,
                    intermediate_size=48,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    patch_size=8,
                    frequency_stride=6,
                    time_stride=6,
                    max_length=32,
                    num_mel_bins=16,
                )
            ),
            {"input_values": torch.randn(1, 32, 16)},
        ),
        "moonshine": lambda: (
            hf.MoonshineForConditionalGeneration(
                hf.MoonshineConfig(
                    vocab_size=96,
                    hidden_size=32,
                    intermediate_size=48,
                    encoder_num_hidden_layers=2,
                    decoder_num_hidden_layers=2,
                    encoder_num_attention_heads=4,
                    decoder_num_attention_heads=4,
                )
            ),
            {"input_values": torch.randn(1, 4000), "decoder_input_ids": tokens(8)},
        ),
        "parakeet-ctc": lambda: (
            hf.ParakeetForCTC(
                hf.ParakeetCTCConfig(
                    vocab_size=32,
                    pad_token_id=31,
                    encoder_config={
                        "hidden_size": 32,
                        "num_hidden_layers": 2,
                        "num_attention_heads": 4,
                        "intermediate_size": 48,
                        "subsampling_conv_channels": 8,
                        "num_mel_bins": 16,
                        "conv_kernel_size": 5,
                    },
                )
            ),
            {"input_features": torch.randn(1, 48, 16)},
        ),
        "univnet": lambda: (
            hf.UnivNetModel(
                hf.UnivNetConfig(
                    model_in_channels=8,
                    model_hidden_channels=8,
                    num_mel_bins=16,
                    resblock_kernel_sizes=[3],
                    resblock_stride_sizes=[4],
                    resblock_dilation_sizes=[[1, 3]],
                    kernel_predictor_num_blocks=1,
                    kernel_predictor_hidden_channels=8,
                )
            ),
            {"input_features": torch.randn(1, 6, 16), "noise_sequence": torch.randn(1, 6, 8)},
        ),
        "encodec": lambda: (
            hf.EncodecModel(
                hf.EncodecConfig(
                    hidden_size=16,
                    num_filters=4,
                    upsampling_ratios=[4, 2],
                    codebook_size=16,
                    sampling_rate=800,
                    target_bandwidths=[0.8],
                )
            ),
            {"input_values": torch.randn(1, 1, 160)},
        ),
        "mimi": lambda: (
            hf.MimiModel(
                hf.MimiConfig(
                    hidden_size=32,
                    num_filters=4,
                    upsampling_ratios=[4, 2],
                    codebook_size=16,
                    codebook_dim=16,
                    num_quantizers=4,
                    vector_quantization_hidden_dimension=16,
                    upsample_groups=32,
                    num_hidden_layers=2,
                    intermediate_size=48,
                    num_attention_heads=4,
                    num_key_value_heads=4,
                    sampling_rate=800,
                    frame_rate=50,
                )
            ),
            {"input_values": torch.randn(1, 1, 320)},
        ),
    },
)

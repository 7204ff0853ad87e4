"""Forecasters of time series, and models that compute in the frequency domain."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor

from tests.zoo.entry import Build, entries
from tests.zoo.inputs import pixels
from tests.zoo.plain import spectra

_ENCODED: dict[str, Any] = {
    "prediction_length": 8,
    "context_length": 16,
    "lags_sequence": [1, 2],
    "num_time_features": 1,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
_PATCHED: dict[str, Any] = {
    "num_input_channels": 3,
    "context_length": 32,
    "patch_length": 8,
    "patch_stride": 8,
    "d_model": 16,
    "prediction_length": 8,
}


def _past_and_future() -> dict[str, Tensor]:
    return {
        "past_values": torch.randn(2, 18),
        "past_time_features": torch.randn(2, 18, 1),
        "past_observed_mask": torch.ones(2, 18),
        "future_values": torch.randn(2, 8),
        "future_time_features": torch.randn(2, 8, 1),
    }


def _forecaster(family: str, **more: Any) -> Build:
    """Returns how an encoder and decoder over a series and its dates are made."""
    return lambda: (
        getattr(hf, f"{family}Model")(getattr(hf, f"{family}Config")(**_ENCODED | more)),
        _past_and_future(),
    )


def _patched(family: str, **more: Any) -> Build:
    """Returns how a forecaster over pieces of several series is made."""
    return lambda: (
        getattr(hf, f"{family}ForPrediction")(getattr(hf, f"{family}Config")(**_PATCHED | more)),
        {"past_values": torch.randn(2, 32, 3)},
    )


SERIES = entries(
    "Series and spectra",
    {
        "autoformer": _forecaster("Autoformer", label_length=4, moving_average=3),
        "time-series-transformer": _forecaster("TimeSeriesTransformer"),
        "patchtst": _patched("PatchTST", num_hidden_layers=2, num_attention_heads=2, ffn_dim=32),
        "patchtsmixer": _patched("PatchTSMixer", num_layers=2),
        "timesfm": lambda: (
            hf.TimesFmModel(
                hf.TimesFmConfig(
                    patch_length=8,
                    context_length=32,
                    horizon_length=8,
                    hidden_size=32,
                    intermediate_size=32,
                    head_dim=8,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                )
            ),
            {
                "past_values": torch.randn(2, 32),
                "past_values_padding": torch.zeros(2, 32, dtype=torch.long),
                "freq": torch.zeros(2, 1, dtype=torch.long),
            },
        ),
        "keyword_spotter": lambda: (spectra.KeywordSpotter(), {"x": torch.randn(2, 2000)}),
        "separator": lambda: (spectra.Separator(), {"x": torch.randn(2, 1000)}),
        "fourier_neural_operator": lambda: (
            spectra.FourierNeuralOperator(),
            {"x": torch.randn(2, 1, 24, 20)},
        ),
        "global_filter_network": lambda: (
            spectra.GlobalFilterNetwork(),
            {"x": pixels()["pixel_values"]},
        ),
    },
)

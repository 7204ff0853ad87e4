"""What a GGUF file says of a model beside its tensors, held against the configuration made of it.

`transformers` makes the configuration, and takes over what it knows. A setting that changes what a
model computes and did not arrive there would make wrong numbers; so each of the architecture's
settings is either known to have no such effect, or found in the configuration with its value, or
the file is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from npusim.errors import ExportError
from npusim.runtime.gguf import gguf_settings, gguf_tensors

FREQUENCIES = "rope_freqs.weight"  # what the rotary frequencies are divided by

# Settings that say nothing of the arithmetic, or whose tensors have their shapes.
_SHAPES = frozenset(
    (
        *("block_count", "context_length", "embedding_length", "feed_forward_length"),
        *("vocab_size", "tensor_data_layout", "use_parallel_residual"),
    )
)


def _head_dim(config: Any) -> Any:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _rotary(config: Any) -> Mapping[str, Any]:
    return getattr(config, "rope_parameters", None) or {}


def _theta(config: Any) -> Any:
    return _rotary(config).get("rope_theta", getattr(config, "rope_theta", None))


def _rotary_dim(config: Any) -> Any:
    part = _rotary(config).get("partial_rotary_factor", 1.0)
    return int(_head_dim(config) * part)


def _epsilon(config: Any) -> Any:
    names = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon")
    return next((getattr(config, name) for name in names if hasattr(config, name)), None)


# Setting -> what the configuration makes of it.
_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "attention.head_count": lambda config: config.num_attention_heads,
    "attention.head_count_kv": lambda config: config.num_key_value_heads,
    "attention.key_length": _head_dim,
    "attention.value_length": _head_dim,
    "attention.layer_norm_epsilon": _epsilon,
    "attention.layer_norm_rms_epsilon": _epsilon,
    "attention.sliding_window": lambda config: getattr(config, "sliding_window", None),
    "attn_logit_softcapping": lambda config: getattr(config, "attn_logit_softcapping", None),
    "final_logit_softcapping": lambda config: getattr(config, "final_logit_softcapping", None),
    "rope.dimension_count": _rotary_dim,
    "rope.freq_base": _theta,
    "rope.scaling.type": lambda config: "none",
}


def check_settings(config: Any, path: Path) -> None:
    """Holds a file's settings against the configuration that was made of it.

    Raises:
        ExportError: one is not known, or has another value there.
    """
    for key, value in gguf_settings(path).items():
        if key in _SHAPES:
            continue
        if key not in _VALUES:
            raise ExportError(
                f"{path} has the setting {key} = {value}, and what it means is not known here.",
                hint="Take the model's safetensors.",
            )
        found = _VALUES[key](config)
        if not _equal(value, found):
            raise ExportError(
                f"{path} has {key} = {value}, which the configuration that is made of it does not "
                f"hold ({found}).",
                hint="Take the model's safetensors.",
            )


def _equal(value: Any, found: Any) -> bool:
    numbers = isinstance(value, (int, float)) and isinstance(found, (int, float))
    return math.isclose(value, found, rel_tol=1e-6) if numbers else bool(value == found)


def scale_frequencies(model: nn.Module, path: Path) -> None:
    """Divides a model's rotary frequencies by the factors that a file has for them, if any.

    Raises:
        ExportError: there are factors, and nothing that they fit.
    """
    tensor = gguf_tensors(path).get(FREQUENCIES)
    if tensor is None:
        return
    factors = torch.from_numpy(tensor.fields()[""].astype("float32"))
    rotary = [
        module
        for module in model.modules()
        if getattr(module, "inv_freq", None) is not None and module.inv_freq.shape == factors.shape
    ]
    if not rotary:
        raise ExportError(f"{path} has {FREQUENCIES} {list(factors.shape)}, which fits nothing.")
    for module in rotary:
        module.inv_freq = module.inv_freq / factors

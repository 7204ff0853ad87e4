"""Weights as a trained model might have them, from a seed.

A fresh model makes a poor test: biases are zero, batch norms are the identity, activations fade or
grow from layer to layer. Here every parameter matters to the result.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def randomize(model: nn.Module, generator: torch.Generator) -> None:
    """Draws every parameter: weights keep the variance of their input, norms vary around one."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            with torch.no_grad():
                _draw(module, name, parameter, generator)


def _draw(module: nn.Module, name: str, parameter: Tensor, generator: torch.Generator) -> None:
    norms = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)
    if isinstance(module, norms) and name == "weight":
        parameter.uniform_(0.6, 1.4, generator=generator)
    elif name.endswith("bias"):
        parameter.normal_(0.0, 0.05, generator=generator)
    elif name == "layer_scale":
        parameter.uniform_(0.2, 0.8, generator=generator)
    elif isinstance(module, (nn.Conv2d, nn.Linear)) or name.endswith("proj_weight"):
        fan_in = parameter[0].numel()
        parameter.normal_(0.0, (1.5 / fan_in) ** 0.5, generator=generator)
    else:  # embeddings, tokens, positions
        parameter.normal_(0.0, 0.5, generator=generator)


def calibrate(model: nn.Module, batches: list[tuple[Tensor, ...]]) -> None:
    """Sets the running statistics of all batch norms to those of the batches."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None  # the plain average over the batches
    with torch.no_grad():
        for batch in batches:
            model(*batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()

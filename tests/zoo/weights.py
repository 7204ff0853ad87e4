"""Seeded weights for models of any library, so that every parameter matters to the result.

Fresh transformers have matrices so small that attention is uniform, and norms that are the
identity: both hide mistakes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


def vary(model: nn.Module) -> None:
    """Draws matrices that keep the size of their input, and moves everything else a little."""
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.is_floating_point():
                    _draw(module, name, parameter)


def _draw(module: nn.Module, name: str, parameter: Tensor) -> None:
    if isinstance(module, _PRODUCTS) and name == "weight":
        fan_in = parameter[0].numel()
        parameter.normal_(0.0, fan_in**-0.5)
    elif isinstance(module, _NORMS) and name == "weight":
        parameter.uniform_(0.6, 1.4)
    elif isinstance(module, nn.Embedding):
        parameter.normal_(0.0, 0.5)
    else:
        parameter.add_(0.1 * torch.randn_like(parameter))


def settle(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Sets the statistics of batch norms to about those of what they see, layer by layer.

    With statistics of zero and one, activations would fade on their way through a deep model.
    """
    norms = [m for m in model.modules() if isinstance(getattr(m, "running_var", None), Tensor)]
    handles = [norm.register_forward_pre_hook(_observe) for norm in norms]
    try:
        with torch.no_grad():
            if norms:
                model(**inputs)
    finally:
        for handle in handles:
            handle.remove()


def _observe(norm: nn.Module, args: tuple[Tensor, ...]) -> None:
    mean, variance = norm.running_mean, norm.running_var
    mean.copy_(args[0].mean() + 0.1 * torch.randn_like(mean))
    variance.copy_(args[0].var() * torch.empty_like(variance).uniform_(0.6, 1.4))

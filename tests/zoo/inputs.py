"""Example inputs of the zoo, small and seeded by the caller."""

from __future__ import annotations

import torch
from torch import Tensor

VOCAB = 96
LENGTH = 16


def tokens(length: int = LENGTH, vocab: int = VOCAB, batch: int = 1) -> Tensor:
    """Token ids [batch, length], none of them special."""
    return torch.randint(5, vocab, (batch, length))


def text(length: int = LENGTH, vocab: int = VOCAB) -> dict[str, Tensor]:
    """Two sentences and a mask that hides the end of the second."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length - length // 4 :] = 0
    return {"input_ids": tokens(length, vocab, batch=2), "attention_mask": mask}


def prompt(length: int = LENGTH, vocab: int = VOCAB) -> dict[str, Tensor]:
    """One sentence without padding, as a decoder sees it."""
    return {"input_ids": tokens(length, vocab)}


def translation(source: int = LENGTH, target: int = 8) -> dict[str, Tensor]:
    """Source and target tokens of an encoder-decoder; a mask hides the end of the source."""
    mask = (torch.arange(source) < source - 3).long()[None]
    return {
        "input_ids": tokens(source),
        "attention_mask": mask,
        "decoder_input_ids": tokens(target),
    }


def pixels(size: int = 32, batch: int = 1, channels: int = 3) -> dict[str, Tensor]:
    """Normalised images [batch, channels, size, size]."""
    return {"pixel_values": torch.randn(batch, channels, size, size)}


def waveform(samples: int = 1600) -> dict[str, Tensor]:
    """Normalised sound [1, samples]."""
    return {"input_values": torch.randn(1, samples)}

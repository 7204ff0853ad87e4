"""What it means that a language model says what `transformers` says, on whatever device.

float32 must give transformers' greedy tokens one for one. bfloat16 may choose the other of two
tokens that are nearly as likely: its logits are compared along the tokens it chose, and what it
chose must be within that error of the best.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import npusim
from tests.end_to_end.architectures import VOCAB

CONTEXT, CHUNK, NEW = 400, 128, 12
PROMPTS = (1, 7, 128, 129, 300)
BFLOAT16_TOLERANCE = 2e-2  # of the largest logit


def compiled(model: nn.Module, target: str = "cpu") -> npusim.CompiledProgram:
    """Returns the program of a model with the context and chunk of these tests."""
    module = npusim.extract_llm(model, max_context=CONTEXT, prefill_chunk=CHUNK)
    return npusim.compile(module, target)


def prompt_of(length: int) -> list[int]:
    """Returns seeded tokens, none of them special."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


def logits_along(model: nn.Module, tokens: list[int]) -> Tensor:
    """Returns transformers' logits after each token, as float32 on the host."""
    ids = torch.tensor([tokens], device=next(model.parameters()).device)
    with torch.no_grad():
        return model(ids).logits[0].float().cpu()


def check_tokens(model: nn.Module, lm: npusim.LanguageModel, length: int) -> None:
    """Asserts that a prompt of that length is continued with transformers' greedy tokens."""
    prompt = prompt_of(length)
    ids = torch.tensor([prompt], device=next(model.parameters()).device)
    expected = model.generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
    actual = list(lm.generate_tokens(prompt, max_new_tokens=NEW, ignore_eos=True))
    assert actual == expected[0, length:].tolist(), f"prompt of {length}"


def check_logits(model: nn.Module, lm: npusim.LanguageModel, length: int) -> None:
    """Asserts that the logits after such a prompt, and after what follows, are transformers'."""
    session = lm.new_session()
    prompt = prompt_of(length)
    session.append(prompt)
    logits, tokens = [session.logits], []
    for _ in range(NEW):
        tokens.append(int(logits[-1].argmax()))
        session.append(tokens[-1:])
        logits.append(session.logits)
    expected = logits_along(model, prompt + tokens)[length - 1 :]
    allowed = BFLOAT16_TOLERANCE * float(expected.abs().max())
    for step, (want, got) in enumerate(zip(expected.numpy(), logits, strict=True)):
        assert np.abs(want - got).max() <= allowed, f"prompt of {length}, step {step}"
        assert want.max() - want[got.argmax()] <= 2 * allowed

"""Steps of many requests on a GPU: what the CPU computes, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import npusim
from npusim.frontends.step_method import StepSizes
from npusim.targets import TargetConfig
from tests.gpu.device import require_gpu

require_gpu()

CONTEXT, PAGE, VOCAB = 256, 64, 256
SIZES = StepSizes(page_tokens=PAGE, max_step_tokens=256, max_requests=8, pages=16)
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 320, "intermediate_size": 704, "num_hidden_layers": 2,
    "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": CONTEXT,
}  # fmt: skip
Part = tuple[int, int, int]  # rows [first, last) of a request


class Steps:
    """The method `step` on a device, filled up to a number of rows that there is code for."""

    def __init__(
        self, module: Any, weights: Any, device: str, quantize: str | None, invariance: str
    ) -> None:
        target = replace(TargetConfig.named(device), batch_invariance=invariance)
        program = npusim.compile(module, target, quantize=quantize)
        self.session = npusim.load(program, weights=weights, method="step", device=device)
        chance = np.random.default_rng(1)
        self.texts = [chance.integers(0, VOCAB, 200) for _ in range(3)]
        self.pages = chance.permutation(16)[: 3 * CONTEXT // PAGE].reshape(3, -1)

    def logits(self, parts: Sequence[Part]) -> np.ndarray:
        """Returns the scores after the last row of each part."""
        rows = [
            (self.texts[i][at], at, n)
            for n, (i, first, last) in enumerate(parts)
            for at in range(first, last)
        ]
        count = 1 << (len(rows) - 1).bit_length()
        requests = min(count, SIZES.max_requests)
        tokens, positions, own = (np.array(column) for column in zip(*rows, strict=True))
        ends = np.cumsum([last - first for _, first, last in parts]) - 1
        tables = np.full((requests, CONTEXT // PAGE), -1)
        for n, (i, _, _) in enumerate(parts):
            tables[n] = self.pages[i]

        def filled(values: np.ndarray, size: int) -> np.ndarray:
            return np.pad(values, (0, size - len(values)), constant_values=-1)

        places = (np.maximum(filled(values, count), 0) for values in (tokens, positions))
        given = [*places, filled(own, count), tables, filled(ends, requests)]
        given[0] = given[0][None]
        found = self.session(*(np.asarray(value, np.int64) for value in given))[0]
        return np.asarray(found, np.float32)[: len(parts)]

    def prompt(self, chunk: int, beside: bool = False) -> np.ndarray:
        """Returns the scores after the first text, read in chunks, perhaps beside the others."""
        found = np.zeros(0)
        for first in range(0, 200, chunk):
            parts = [(i, first, min(first + chunk, 200)) for i in range(3 if beside else 1)]
            found = self.logits(parts)[0]
        return found


@pytest.mark.parametrize(
    ("dtype", "quantize", "invariance"),
    [(torch.bfloat16, None, "auto"), (torch.float16, None, "auto"), (torch.float32, None, "all"),
     (torch.bfloat16, "int8", "auto"), (torch.float16, "fp8", "auto"),
     (torch.bfloat16, "int4-g32", "auto"), (torch.bfloat16, "int4-g128-asymmetric", "all")],
)  # fmt: skip
def test_a_prompt_has_the_same_bits_in_any_chunks_and_company(
    dtype: torch.dtype, quantize: str | None, invariance: str
) -> None:
    torch.manual_seed(3)
    model = hf.Qwen2ForCausalLM(hf.Qwen2Config(**SMALL)).to(dtype).eval()
    module = npusim.extract_llm(model, max_context=CONTEXT, prefill_chunk=16, serve=SIZES)
    weights = model.state_dict()
    steps = Steps(module, weights, "cuda", quantize, invariance)
    cpu = Steps(module, weights, "cpu", quantize, invariance)
    found = steps.prompt(200)
    for chunk in (1, 7, 20, 64):
        assert np.array_equal(found, steps.prompt(chunk)), chunk
    assert np.array_equal(found, steps.prompt(20, beside=True))
    assert np.array_equal(found, steps.prompt(64, beside=True))
    want = cpu.prompt(200)
    error = np.linalg.norm(found - want) / np.linalg.norm(want)
    assert error < (1e-4 if dtype == torch.float32 else 4e-2)

"""The decoders that the benchmarks of many requests serve, their weights, and programs of them.

Architectures by name, seeded weights that are made in memory in seconds, and what a step moves and
computes at least.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import npusim
from benchmarks import llm_peers
from npusim.frontends.step_method import StepSizes
from npusim.targets import TargetConfig

PAGE, CONTEXT, REQUESTS, ROWS = 64, 8704, 256, 2048
READ, PRODUCTS = 4.3e12, 700e12  # bytes and operations a second that an H200 reaches
SIZES = StepSizes(page_tokens=PAGE, max_step_tokens=ROWS, max_requests=REQUESTS, pages=5376)


def configuration(name: str) -> Any:
    """Returns the configuration of "1.5b" (Qwen2.5) or "8b" (Llama 3.1)."""
    if name in llm_peers.SIZES:
        return llm_peers.configuration(name)
    import transformers

    return transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )


def seeded_weights(config: Any) -> dict[str, torch.Tensor]:
    """Returns bfloat16 weights: ones for norms, else parts of one table of normal numbers."""
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    chance = torch.Generator().manual_seed(0)
    table = (torch.randn(1 << 25, generator=chance) * config.initializer_range).bfloat16()
    found: dict[str, torch.Tensor] = {}
    for number, (name, tensor) in enumerate(model.state_dict().items()):
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        if tensor.ndim == 1 and name.endswith("norm.weight"):
            found[name] = torch.ones(tensor.shape, dtype=torch.bfloat16)
            continue
        count, at = tensor.numel(), 7919 * number  # so that no two layers are the same
        rows = torch.empty(count, dtype=torch.bfloat16)
        for first in range(0, count, len(table) - at):
            part = rows[first : first + len(table) - at]
            part.copy_(table[at : at + len(part)])
        found[name] = rows.view(tensor.shape)
    return found


def extracted(name: str, graphs: Path | None, serve: StepSizes = SIZES) -> Any:
    """Returns what `npusim.compile` takes; that of the file `graphs`, if it is there."""
    if graphs is not None and graphs.exists():
        return graphs
    with tempfile.TemporaryDirectory() as folder:
        configuration(name).save_pretrained(folder)
        module = npusim.extract_llm(folder, max_context=CONTEXT, prefill_chunk=128, serve=serve)
    if graphs is not None:
        module.save(graphs)
    return module


def compiled(
    name: str,
    graphs: Path | None,
    program: Path | None,
    quantize: str | None = None,
    without: Sequence[str] = (),
) -> npusim.CompiledProgram:
    """Returns the program of a model for CUDA; that of the file `program`, if it is there.

    Args:
        graphs: of `extracted`.
        program: where it is kept, too, if it had to be made.
        without: kernels that the target does without.
    """
    if program is not None and program.exists():
        return npusim.CompiledProgram.load(program)
    module = timed("extracted", lambda: extracted(name, graphs))
    target = TargetConfig.named("cuda")
    target = replace(target, kernels=tuple(k for k in target.kernels if k not in without))
    made = timed("compiled", lambda: npusim.compile(module, target, quantize=quantize))
    if program is not None:
        program.parent.mkdir(parents=True, exist_ok=True)
        made.save(program)
    return made


class Floor:
    """What a step takes at least: a model's products and the keys and values that it reads."""

    def __init__(self, config: Any, bytes_of_weight: float = 2) -> None:
        hidden, heads = config.hidden_size, config.num_attention_heads
        wide = config.num_key_value_heads * (hidden // heads)
        layer = hidden * (2 * hidden + 2 * wide + 3 * config.intermediate_size)
        head = config.vocab_size * hidden
        self.weights = config.num_hidden_layers * layer + head
        self.bytes = config.num_hidden_layers * layer * bytes_of_weight + head * 2
        self.keys = config.num_hidden_layers * 2 * wide * 2  # bytes of a token

    def ms(self, rows: int, behind: int) -> float:
        """Returns milliseconds of a step of so many requests with so many tokens behind them."""
        products = max(self.bytes / READ, 2 * rows * self.weights / PRODUCTS)
        return 1e3 * (products + rows * behind * self.keys / READ)


def timed(what: str, made: Any) -> Any:
    """Returns `made()`, and prints how long that took."""
    start = time.perf_counter()
    result = made()
    print(f"{what} in {time.perf_counter() - start:.1f} s", flush=True)
    return result


if __name__ == "__main__":  # graphs FILE of the model NAME, to be carried to where they are run
    import sys

    extracted(sys.argv[1], Path(sys.argv[2]))

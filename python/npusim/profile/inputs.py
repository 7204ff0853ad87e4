"""What a profiled method is given where the caller names no inputs, and the state it starts from.

Times hardly depend on values, but for those that decide how much work there is: tokens and lengths
of language models, and the position in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npusim.errors import Error
from npusim.program.program import CompiledProgram, TensorSpec


def sample(spec: TensorSpec, sizes: Mapping[str, int] | None = None) -> np.ndarray:
    """Returns an input of the right kind: seeded normal floats, zeros for everything else.

    Args:
        sizes: of every symbol of the shape; by default the greatest ones.
    """
    shape = spec.greatest_shape if sizes is None else spec.shape_at(sizes)
    if spec.dtype.startswith("float"):
        return np.random.default_rng(0).standard_normal(shape).astype(spec.dtype)
    if spec.dtype == "bfloat16":  # a device buffer rounds it
        return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return np.zeros(shape, spec.dtype)


def language_model_input(facts: Mapping[str, Any], spec: TensorSpec) -> np.ndarray:
    """Returns seeded tokens for `tokens`, the whole chunk for `length`; `generate` is greedy."""
    if spec.name == "length":
        return np.full(spec.shape, facts["prefill_chunk"], np.int64)
    if spec.name == "sampling":
        return np.array([0.0, 0.0, 1.0, 0.0, 1.0])
    if spec.name == "seed":
        return np.zeros(spec.shape, np.int64)
    return np.random.default_rng(0).integers(0, facts["vocab_size"], spec.shape)


def language_model_facts(program: CompiledProgram) -> Mapping[str, Any] | None:
    """Returns what the program's metadata says of a language model, or None when it is none."""
    facts = program.metadata.get("language_model")
    return facts if isinstance(facts, Mapping) else None


def check_context(facts: Mapping[str, Any] | None, context: int, tokens: int) -> None:
    """Raises Error for a context that the program does not have room for."""
    if facts is None:
        if context:
            raise Error("The program is no language model: it has no context.")
        return
    room = facts["max_context"] - tokens
    if not 0 <= context <= room:
        raise Error(
            f"A context of {context} tokens does not fit: the program holds "
            f"{facts['max_context']}, and the method appends {tokens}.",
            hint=f"Give 0 … {room}.",
        )

"""Files of ggml's blocks in steps of many requests: the same bits alone and among others.

Blocks are expanded when weights are loaded, those of Q4_0 kept as codes and multiplied as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from npusim.runtime.gguf import BLOCKS
from tests.frontends.checkpoints import models

pytest.importorskip("transformers")
pytest.importorskip("gguf")

from tests.frontends.checkpoints.test_gguf import write
from tests.serve.test_step_method import Steps, assert_alike

EVERY = sorted(BLOCKS)


def test_nothing_else_in_a_step_shows_in_logits(tmp_path: Path) -> None:
    check(tmp_path, "qwen2", EVERY)


@pytest.mark.long
@pytest.mark.parametrize("kind", EVERY)
def test_each_kind_of_blocks_alone(tmp_path: Path, kind: str) -> None:
    check(tmp_path, "llama", kind)


def check(folder: Path, model: str, kind: str | Sequence[str]) -> None:
    """A model of the family, stored in these kinds of blocks, keeps its bits in any step."""
    path, layers = folder / "m.gguf", 1 if isinstance(kind, str) else 2
    write(path, models.model(model, num_hidden_layers=layers), kind)
    assert_alike(Steps(path), seeds=2)

"""Decoders in steps of many requests: what is refused says why, and with `--zoo` all of them.

tests/serve/test_step_method.py has those that are served, of each kind of attention and of weights.
"""

from __future__ import annotations

import pytest

from tests.zoo.decoder_models import NAMES
from tests.zoo.serving import DIFFERS, REFUSED, SERVED, measure

# Its positions' biases are made for one length.
REPRESENTATIVES = {"mpt": REFUSED}
# Families that are to stay served.
GOALS = (
    *("llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mistral", "mixtral", "gemma", "gemma2"),
    *("gemma3_text", "phi", "phi3", "olmo2", "granite", "stablelm", "gpt_neox", "gpt2", "opt"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    everything = metafunc.config.getoption("--zoo")
    metafunc.parametrize("name", NAMES if everything else REPRESENTATIVES)


def test_decoder(name: str) -> None:
    row = measure(name)
    assert row.outcome != DIFFERS, row
    if name in GOALS:
        assert row.outcome == SERVED, row
    if row.outcome == REFUSED:
        assert "serves many requests" in row.problem or "recurrent" in row.problem
        assert row.problem.endswith("Leave serve out; requests are served by sessions then.")

"""A configuration that asks for absurd sizes is refused before memory is."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim
from npusim.errors import ExportError
from npusim.frontends.hollow_model import _Hollow

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


@pytest.mark.parametrize(
    "absurd", [{"hidden_size": 10**9}, {"hidden_size": 10**12}, {"num_hidden_layers": 10**8}]
)
def test_an_absurd_size_is_refused(
    tmp_path: Path, absurd: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A sixtieth of what is counted to, which takes most of a minute.
    monkeypatch.setattr(_Hollow, "_MOST_TENSORS", 1 << 12)
    config = transformers.LlamaConfig(**{**SMALL, **absurd})
    config.save_pretrained(tmp_path)
    with pytest.raises(
        ExportError, match=r"more than any model needs|cannot be built|can be built"
    ):
        npusim.extract_llm(tmp_path, max_context=64)

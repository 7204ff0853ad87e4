"""Text out of tokens: whole characters, stop strings, special tokens, and which tokenizer is used.

The model's next token follows from the last one alone, so that what it says is a fixed text.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.language_model.tokenizer import StopStrings, TextStream, Tokenizer
from tests.runtime import toy_language_model as toy

tokenizers = pytest.importorskip("tokenizers")

SPOKEN = "h😀é 世.ok"  # every byte once
SPECIAL = "<end>"


def _byte_names() -> dict[int, str]:
    """How byte-level tokenizers write a byte: printable ones as they are, others from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def save_tokenizer(folder: Path, text: str = SPOKEN) -> Path:
    """Writes a tokenizer with a token for each byte of the text, and one special token."""
    names = _byte_names()
    vocabulary = {names[byte]: i for i, byte in enumerate(dict.fromkeys(text.encode()))}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([SPECIAL])
    backend.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def table_of(successors: dict[int, int]) -> np.ndarray:
    """Weights with which each token is followed by its successor."""
    table = np.zeros((toy.VOCABULARY, toy.VOCABULARY), np.float32)
    for token, following in successors.items():
        table[token, following] = 10
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder: a tokenizer and weights that speak SPOKEN, byte by byte, and then end."""
    safetensors = pytest.importorskip("safetensors.numpy")
    folder = tmp_path_factory.mktemp("model")
    tokens = Tokenizer(save_tokenizer(folder)).encode(SPOKEN)
    assert len(set(tokens)) == len(SPOKEN.encode())
    chain = [*tokens, toy.EOS]
    successors = dict(itertools.pairwise(chain))
    safetensors.save_file({"table": table_of(successors)}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> npusim.LanguageModel:
    return npusim.LanguageModel.load(toy.program(), folder, threads=1)


def test_pieces_are_whole_characters(model: npusim.LanguageModel) -> None:
    made = model.generate("h")
    assert list(made) == list(SPOKEN[1:])
    assert made.text == SPOKEN[1:] and made.finish_reason == "stop"
    assert made.tokens[-1] == toy.EOS


def test_an_unfinished_character_shows_at_the_end(model: npusim.LanguageModel) -> None:
    made = model.generate("h", max_new_tokens=2)
    assert "".join(made) == made.text == "\N{REPLACEMENT CHARACTER}"
    assert made.finish_reason == "length"


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("é", "😀"),
        ([".ok"], "😀é 世"),
        (["ok.", "é x", "k"], "😀é 世.o"),
        (["世", "é "], "😀"),
        ("nowhere", SPOKEN[1:]),
        ("😀", ""),
    ],
)
def test_stop_strings(model: npusim.LanguageModel, stop: str | list[str], text: str) -> None:
    made = model.generate("h", stop=stop)
    assert "".join(made) == made.text == text
    assert made.finish_reason == "stop"


def test_a_conversation_goes_on_in_text(model: npusim.LanguageModel) -> None:
    session = model.new_session()
    assert "".join(session.generate("h", stop=" ")) == "😀é"
    assert session.position == len("h😀é ".encode())
    assert "".join(session.generate("", max_new_tokens=3)) == "世"
    assert "".join(session.generate("o")) == "k"


def test_left_in_the_middle_the_rest_can_be_had(model: npusim.LanguageModel) -> None:
    made = model.generate("h")
    assert next(made) == "😀"
    for _ in range(1):
        made._generation.__next__()
    assert made.flush() == "" and list(made) == []


def test_a_text_has_all_of_its_tokens(tmp_path: Path) -> None:
    path = save_tokenizer(tmp_path)
    wanted = Tokenizer(path).encode(SPOKEN)
    trained = tokenizers.Tokenizer.from_file(str(path))
    trained.enable_truncation(3)
    trained.enable_padding(length=64)
    trained.save(str(path))
    assert Tokenizer(path).encode(SPOKEN) == wanted


def test_special_tokens_do_not_show(tmp_path: Path) -> None:
    tokenizer = Tokenizer(save_tokenizer(tmp_path))
    tokens = tokenizer.encode(f"ok{SPECIAL}h")
    assert len(tokens) == 4 and tokenizer.decode(tokens) == "okh"
    stream = TextStream(tokenizer)
    assert [stream.push(token) for token in tokens] == ["o", "k", "", "h"]


@pytest.mark.parametrize("seed", range(5))
def test_the_pieces_of_any_tokens_are_their_text(tmp_path: Path, seed: int) -> None:
    tokenizer = Tokenizer(save_tokenizer(tmp_path))
    tokens = np.random.default_rng(seed).integers(0, tokenizer.size, 60).tolist()
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(tokens)
    stream = TextStream(tokenizer)
    parts = [stream.push_all(tokens[at : at + seed + 1]) for at in range(0, len(tokens), seed + 1)]
    assert "".join(parts) + stream.finish() == tokenizer.decode(tokens)


def test_words_keep_their_spaces(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={"▁a": 0, "▁b": 1, "c": 2}, merges=[])
    )
    backend.decoder = tokenizers.decoders.Metaspace()
    backend.save(str(tmp_path / "tokenizer.json"))
    stream = TextStream(Tokenizer(tmp_path))
    assert [stream.push(token) for token in (0, 1, 2, 0)] == ["a", " b", "c", " a"]


@pytest.mark.parametrize(
    ("stops", "pieces", "out"),
    [
        (["ab"], ["a", "a", "b"], ["", "a", ""]),
        (["abc", "b"], ["a", "b"], ["", "a"]),
        (["aab"], ["a", "a", "a", "a", "b", "x"], ["", "", "a", "a", ""]),
        ([], ["a", "b"], ["a", "b"]),
    ],
)
def test_text_is_held_back_while_it_may_be_a_stop_string(
    stops: Sequence[str], pieces: list[str], out: list[str]
) -> None:
    matcher, got = StopStrings(stops), []
    for piece in pieces:
        got.append(matcher.push(piece))
        if matcher.found:
            break
    assert got == out


def test_misuse(model: npusim.LanguageModel, folder: Path, tmp_path: Path) -> None:
    def refused(words: str, prompt: Any = "h", **options: Any) -> None:
        with pytest.raises(npusim.Error, match=words):
            model.generate(prompt, **options)

    refused("character 1 is a lone surrogate", "h\ud83d")
    refused("has no tokens", "")
    refused("stop string is ''", stop="")
    refused("stop string is 3", stop=[3])
    assert not npusim.LanguageModel.load(toy.program(), toy.weights()).has_tokenizer
    with pytest.raises(npusim.Error, match="no tokenizer"):
        npusim.LanguageModel.load(toy.program(), toy.weights()).generate("h")
    (tmp_path / "tokenizer.json").write_text("{}")
    for path in (tmp_path, tmp_path / "missing"):
        other = npusim.LanguageModel.load(toy.program(), folder, tokenizer=path)
        with pytest.raises(npusim.Error, match="no tokenizer"):
            other.generate("h")
    save_tokenizer(tmp_path, "".join(map(chr, range(0x21, 0x7F))))
    other = npusim.LanguageModel.load(toy.program(), folder, tokenizer=tmp_path)
    with pytest.raises(npusim.Error, match="95 tokens, the model 32"):
        other.generate("h")


def test_end_of_text_from_generation_config(folder: Path, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    config = tmp_path / "generation_config.json"

    def load() -> npusim.LanguageModel:
        return npusim.LanguageModel.load(toy.program(), folder, tokenizer=tmp_path)

    config.write_text('{"eos_token_id": [5, 31]}')
    assert load().eos_token_ids == (5, 31)
    config.write_text('{"eos_token_id": 4}')
    assert load().eos_token_ids == (4, 31)
    for wrong in ('{"eos_token_id": "x"}', "[1]", "{"):
        config.write_text(wrong)
        with pytest.raises(npusim.Error, match="generation_config"):
            load()


def test_tokens_that_stand_for_bytes_read_as_their_tokenizer_has_it(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(save_tokenizer(tmp_path)))
    backend.add_tokens(["a b", "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}x", "é世"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    for token in range(tokenizer.size + 1):
        stream = TextStream(tokenizer)
        assert stream.push_all([token, 0]) + stream.finish() == tokenizer.decode([token, 0])
    tokens = np.random.default_rng(1).integers(0, tokenizer.size + 1, 500).tolist()
    stream = TextStream(tokenizer)
    assert stream.push_all(tokens) + stream.finish() == tokenizer.decode(tokens)

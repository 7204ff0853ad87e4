"""Text to tokens and back. Owns the use of the `tokenizers` package, and of `tokenizer.json`."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from npusim.errors import Error, first_line
from npusim.runtime.gguf import SUFFIX as GGUF

FILE = "tokenizer.json"

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class Tokenizer:
    """The tokenizer that a model was trained with.

    Args:
        path: a `tokenizer.json`, the folder that holds it, or a `.gguf` file with its vocabulary.

    Raises:
        Error: no such file, it is no tokenizer, or the package `tokenizers` is missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path) / FILE if Path(path).is_dir() else Path(path)
        try:
            from tokenizers import Tokenizer as Backend
        except ImportError:
            raise Error(
                "Text needs the tokenizers package.",
                hint="pip install 'npusim[llm]', or work with token ids.",
            ) from None
        if not self.path.is_file():
            raise Error(
                f"There is no tokenizer {self.path}.",
                hint=f"Give the {FILE} of the model, or its folder.",
            )
        try:
            single = self.path.suffix == GGUF
            self._backend = (_of_gguf if single else Backend.from_file)(str(self.path))
        except Exception as error:  # the package raises plain Exception for whatever it meets
            raise Error(f"{self.path} is no tokenizer: {first_line(error)}.") from error
        # What a training left in the file: every text has all of its tokens here, and no others.
        self._backend.no_truncation()
        self._backend.no_padding()

    @property
    def size(self) -> int:
        """One more than the highest token it knows."""
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return 1 + max(vocabulary.values(), default=-1)

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """Returns the tokens of a text.

        Args:
            text: any text UTF-8 can express.
            begins: whether nothing comes before it; the tokenizer may then mark the beginning.

        Raises:
            Error: the text holds a lone surrogate.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Error(
                f"The text is not valid Unicode: character {error.start} is a lone surrogate.",
                hint="Decode its bytes as what they are, or with errors='replace'.",
            ) from None
        tokens: list[int] = self._backend.encode(text, add_special_tokens=begins).ids
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, without special ones; U+FFFD stands for invalid bytes."""
        text: str = self._backend.decode(list(tokens), skip_special_tokens=True)
        return text

    def as_json(self) -> str:
        """Returns what a `tokenizer.json` of it holds."""
        text: str = self._backend.to_str()
        return text

    def bytes_of(self, token: int) -> bytes | None:
        """Returns what one token stands for; None where its bytes alone cannot be told."""
        name: str | None = self._backend.id_to_token(token)
        if name is None:
            return b""
        if token in self._added:
            return name.encode()
        if "ByteLevel" in self._decoders:
            known = all(character in _BYTES for character in name)
            return bytes(_BYTES[character] for character in name) if known else name.encode()
        if found := _BYTE.fullmatch(name):
            return bytes([int(found[1], 16)])
        if self._decoders & {"Metaspace", "Replace"}:
            return name.replace(_SPACE, " ").encode()
        text = self.decode([token])
        return None if "\N{REPLACEMENT CHARACTER}" in text else text.encode()

    def said(self, token: int) -> bytes | None:
        """Returns the bytes that a token adds to a text, none for special ones; None where the text
        of several tokens is not that of their bytes, one behind the other."""
        found = self._said.get(token)
        if found is None and self._decoders == {"ByteLevel"}:
            found = self._said[token] = self._spelled(token)
        return found

    def _spelled(self, token: int) -> bytes:
        name: str | None = self._backend.id_to_token(token)
        if name is None or token in self._special:
            return b""
        known = all(character in _BYTES for character in name)
        return bytes(_BYTES[character] for character in name) if known else name.encode()

    @cached_property
    def _said(self) -> dict[int, bytes]:
        return {}

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self._backend.get_added_tokens_decoder())

    @cached_property
    def _special(self) -> frozenset[int]:
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token for token, told in added.items() if told.special)

    @cached_property
    def _decoders(self) -> frozenset[str]:
        decoder = self._backend.decoder
        return frozenset(() if decoder is None else _types(json.loads(decoder.__getstate__())))


def _types(decoder: Any) -> Iterator[str]:
    """Yields the kinds of a decoder and of those it is made of."""
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for part in decoder.get("decoders", ()):
            yield from _types(part)


def _byte_names() -> dict[str, int]:
    """What byte-level tokenizers write for a byte: itself where it prints, else from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in plain)
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _byte_names()


def _of_gguf(path: str) -> Any:
    """Returns the tokenizer that a GGUF file's vocabulary makes; transformers knows their kinds."""
    from transformers import AutoTokenizer

    folder, name = os.path.split(path)
    return AutoTokenizer.from_pretrained(folder or ".", gguf_file=name).backend_tokenizer


class TextStream:
    """Turns tokens that arrive one by one into pieces of text.

    A token may end inside a character: its text is held back until the rest is there. The pieces
    together are the text of all tokens.
    """

    _UNFINISHED = 3  # replacement characters at the end that later tokens may still change
    _WINDOW = 64  # tokens held back at most

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        # Of tokens that do not simply stand for bytes. The window starts at tokens whose text is
        # out already: how a token reads depends on whether something stands before it.
        self._window: list[int] = []
        self._context = 0  # tokens of the window that are context only
        self._out = 0  # characters of the window's text that are out

    def push(self, token: int) -> str:
        """Takes the next token; returns the text that is now certain, perhaps none."""
        said = self._tokenizer.said(token)
        if said is not None:
            return self._characters.decode(said)
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        unfinished = min(
            len(text) - len(text.rstrip("\N{REPLACEMENT CHARACTER}")), self._UNFINISHED
        )
        held = len(self._window) - self._context
        certain = text if held >= self._WINDOW else text[: len(text) - unfinished]
        piece = certain[self._out :]
        self._out = max(self._out, len(certain))
        if len(certain) == len(text) and (piece or held >= self._WINDOW):
            self._window = self._window[self._context :]
            self._context = len(self._window)
            self._out = len(self._tokenizer.decode(self._window))
        return piece

    def push_all(self, tokens: Sequence[int]) -> str:
        """Takes the next tokens; returns the text that is now certain."""
        said = [each for token in tokens if (each := self._tokenizer.said(token)) is not None]
        if len(said) < len(tokens):
            return "".join(map(self.push, tokens))
        return self._characters.decode(b"".join(said))

    def finish(self) -> str:
        """Returns what is still held back; an unfinished character shows as U+FFFD."""
        text = self._tokenizer.decode(self._window) if self._window else ""
        piece, self._out = text[self._out :], len(text)
        return piece + self._characters.decode(b"", final=True)


class StopStrings:
    """Cuts a stream of text at the first of several strings.

    Text that may be the beginning of a stop string is held back until that is decided.

    Attributes:
        found: whether one came.
        which: the one that came first; of several at one place the first one given.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False
        self.which: str | None = None

    def push(self, text: str) -> str:
        """Takes more text; returns what lies before any stop string. Sets `found` at one."""
        self._held += text
        places = [(at, s) for s in self._stops if (at := self._held.find(s)) >= 0]
        if places:
            at, self.which = min(places, key=lambda place: place[0])
            self.found = True
            piece, self._held = self._held[:at], ""
            return piece
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        piece, self._held = self._held[:cut], self._held[cut:]
        return piece

    def finish(self) -> str:
        """Returns what was held back: the text ends here without a stop string."""
        piece, self._held = self._held, ""
        return piece

    def _overlap(self, stop: str) -> int:
        """How much of the end of the text is a beginning of the stop string."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)

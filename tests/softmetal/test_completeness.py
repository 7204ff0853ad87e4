"""Every rule that the software device enforces has a host that breaks it, and is told so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
METAL = FOLDER.parent / "metal"
_SHORTEST, _LONGEST = 10, 16  # letters of a message that a test quotes


def _bare(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "", text)


def _messages() -> list[tuple[str, ...]]:
    """Returns what `violation` is called with: the texts, without what stands between them."""
    found: set[tuple[str, ...]] = set()
    for path in sorted(FOLDER.glob("[eoh]*/*")):
        if path.suffix in (".mm", ".cpp", ".h"):
            text = path.read_text("utf-8")
            for call in re.findall(r"\bviolation\(((?:[^;\"]|\"(?:[^\"\\]|\\.)*\")*?)\);", text):
                parts = re.findall(r'"((?:[^"\\]|\\.)*)"', call)
                bare = tuple(b for b in map(_bare, parts) if len(b) >= _SHORTEST)
                if bare:
                    found.add(bare)
    return sorted(found)


QUOTED = _bare("".join(p.read_text("utf-8") for f in (FOLDER, METAL) for p in f.glob("test_*.py")))
QUOTED += _bare((FOLDER / "violations.py").read_text("utf-8"))


def test_there_are_messages() -> None:
    assert len(_messages()) > 60


def _is_quoted(text: str) -> bool:
    length = min(_LONGEST, len(text))
    return any(text[at : at + length] in QUOTED for at in range(len(text) - length + 1))


@pytest.mark.parametrize("message", _messages(), ids=" ".join)
def test_a_test_breaks_the_rule(message: tuple[str, ...]) -> None:
    assert any(map(_is_quoted, message)), f"no test quotes: {message}"

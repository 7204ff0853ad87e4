"""Sections of docs/simulate.md that are computed, between marks of their names."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"


def documented(name: str, text: str, update: bool) -> None:
    """Holds a section to what it should say, or writes it."""
    begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
    page = PAGE.read_text()
    head, rest = page.split(begin)
    said, tail = rest.split(end)
    if update:
        PAGE.write_text(head + begin + text + end + tail)
    else:
        assert said == text, f"docs/simulate.md: section '{name}'; pytest --update-golden writes it"

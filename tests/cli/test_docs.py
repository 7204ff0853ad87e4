"""The docs name verbs and options that are there, and their shell commands hold together."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from npusim.cli.app import npusim

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELLS = ("", "console", "sh", "text")
_COMMAND = re.compile(r"^(?:\$ )?(npusim [a-z-].*)$", re.MULTILINE)
_INLINE = re.compile(r"`(npusim\s[^`]+)`")


def _commands(text: str) -> list[str]:
    blocks = [block for language, block in _FENCED.findall(text) if language in _SHELLS]
    fenced = [line for block in blocks for line in _COMMAND.findall(block)]
    return fenced + [" ".join(found.split()) for found in _INLINE.findall(text)]


def _options(verb: click.Command) -> set[str]:
    return {name for p in verb.params for name in (*p.opts, *p.secondary_opts)} | {"-h", "--help"}


def _wrong(command: str) -> str | None:
    """Returns what a command line names that is not there."""
    own = re.split(r"\s(?:&&|\|)\s|\s+#", command)[0]
    words = shlex.split(re.sub(r"[\[\]…]", " ", own))[1:]
    while words and words[0] == "--import":
        words = words[2:]
    if not words or words[0].startswith("-") or words[0] == "VERB":
        return None
    verb = npusim.commands.get(words[0])
    if verb is None:
        return f"no verb {words[0]}"
    named = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)}
    unknown = named - _options(verb)
    return f"{words[0]} has no {', '.join(sorted(unknown))}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_exist(page: Path) -> None:
    commands = _commands(page.read_text("utf-8"))
    assert [f"{c}: {why}" for c in commands if (why := _wrong(c))] == []


def test_commands_are_found() -> None:
    """What the test above would pass over is no commands at all, and none that are wrong."""
    counts = {page.name: len(_commands(page.read_text("utf-8"))) for page in PAGES}
    assert counts["README.md"] >= 12 and counts["exporting.md"] >= 2
    assert _wrong("npusim compile g.json --targte cpu") == "compile has no --targte"
    assert _wrong("npusim cmopile g.json") == "no verb cmopile"
    assert _wrong("npusim run p.npubin --weights=W && ls") is None


def test_every_verb_stands_in_the_table() -> None:
    table = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    named = set(re.findall(r"^\| `([a-z-]+)", table, re.MULTILINE))
    assert named - {"bash"} == set(npusim.commands)
    rows = re.findall(r"^\| `([a-z-]+ .+?)` \|", table, re.MULTILINE)
    assert len(rows) >= 12
    assert [why for row in rows if (why := _wrong(f"npusim {row}"))] == []

"""Tokens of preprocessed MSL, and the error that refuses a text.

Preprocessing is clang's (`clang -E`), so there are no comments and no macros left; its line markers
(`# 12 "program_source"`) are tokens of their own and say which line of the source one is in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SOURCE_NAME = "program_source"  # as Apple's compiler calls the text in its messages

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<directive>(?<![^\n])[ \t]*\#[^\n]*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<number>(?:0[xX][\da-fA-F.]+(?:[pP][+-]?\d+)?|\.?\d(?:[eE][+-]|[\w.])*)\w*)
      | (?P<string>"(?:\\.|[^"\\\n])*")
      | (?P<char>'(?:\\.|[^'\\\n])*')
      | (?P<punct>\[\[|\]\]|::|->\*?|\+\+|--|<<=|>>=|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|<<|.)
    """,
    re.VERBOSE,
)
_OPENING = {"(": ")", "[": "]", "{": "}", "[[": "]]"}


class Refused(Exception):
    """A text that the software device does not take; says where and what to write instead."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"{SOURCE_NAME}:{line}:1: error: {message}")


@dataclass(frozen=True)
class Token:
    kind: str  # name, number, string, char, punct, directive
    text: str
    start: int
    end: int
    line: int  # of the source

    def __eq__(self, other: object) -> bool:
        """Tokens are compared with texts: `token == "{"`."""
        return self.text == other if isinstance(other, str) else self is other

    __hash__ = None  # type: ignore[assignment]


def tokenize(text: str) -> list[Token]:
    """The tokens of preprocessed text. Raises Refused for a character MSL has no use for."""
    return list(_scan(text))


def _scan(text: str) -> Iterator[Token]:
    line, at = 1, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Refused(line, f"unexpected character {text[at]!r}")
        kind, found = str(match.lastgroup), match.group()
        if kind == "space":
            line += found.count("\n")
        else:
            marker = re.match(r'\s*#\s*(?:line\s+)?(\d+)\s+"', found)
            yield Token(kind, found, at, match.end(), line)
            if kind == "directive" and marker:
                line = int(marker[1]) - 1  # the newline behind it begins that line
        at = match.end()


def closing(tokens: list[Token], opening: int) -> int:
    """The index of the bracket that closes the one at `opening`."""
    stack: list[str] = []
    for index in range(opening, len(tokens)):
        token = tokens[index]
        if token.kind != "punct":
            continue
        if token.text in _OPENING:
            stack.append(_OPENING[token.text])
        elif token.text in _OPENING.values():
            if token.text == "]]" and stack[-2:] == ["]", "]"]:
                del stack[-2:]  # a[b[0]]
            elif not stack or stack.pop() != token.text:
                raise Refused(token.line, f"'{token.text}' closes nothing")
            if not stack:
                return index
    raise Refused(tokens[opening].line, f"'{tokens[opening].text}' is not closed")


def closing_angle(tokens: list[Token], opening: int) -> int | None:
    """The index of the `>` that ends the template arguments begun at `opening`; None: none are."""
    depth, index = 0, opening
    while index < len(tokens):
        text = tokens[index].text
        if text == "<":
            depth += 1
        elif text == ">":
            depth -= 1
            if depth == 0:
                return index
        elif text in _OPENING:
            index = closing(tokens, index)
        elif text in {";", "{", "}", "&&", "||"}:
            return None
        index += 1
    return None


def split_commas(tokens: list[Token]) -> list[list[Token]]:
    """Tokens parted at the commas outside of brackets and template arguments."""
    parts: list[list[Token]] = [[]]
    index = 0
    while index < len(tokens):
        token, end = tokens[index], index
        if token.text in _OPENING:
            end = closing(tokens, index)
        elif token == "<":
            end = closing_angle(tokens, index) or index
        if token == ",":
            parts.append([])
        else:
            parts[-1] += tokens[index : end + 1]
        index = end + 1
    return [part for part in parts if part]

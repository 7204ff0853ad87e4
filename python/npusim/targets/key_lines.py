"""On which line of a TOML text each key stands: exact, for any text that is valid TOML.

Python's reader tells no lines. This one reads only as much as finding keys needs, and takes for
granted that the other has accepted the text: it refuses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Path = tuple[str | int, ...]  # keys of tables and positions in lists, from the top

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SCALAR = re.compile(r"[^,\]}#\r\n]*")
_QUOTED = re.compile(
    r'"""(?:[^"\\]|\\[\s\S]|"{1,2}(?!"))*"{3,5}|'
    r"'''(?:[^']|'{1,2}(?!'))*'{3,5}|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'[^'\n]*'"
)
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")


def key_lines(text: str) -> Mapping[Path, int]:
    """Returns the line, from 1, of every key and list item of a valid TOML text.

    A table stands where its header or its first key does; an item of a list where it begins.
    """
    reader = _Reader(text.replace("\r\n", "\n"))
    reader.document()
    return reader.lines


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines: dict[Path, int] = {}
        self._lists: dict[Path, int] = {}  # arrays of tables: how many they have so far
        self._counted = (0, 1)  # a place in the text, and its line

    def document(self) -> None:
        table: Path = ()
        while self._skip(_GAP) < len(self.text):
            table = self._header() if self.text[self.at] == "[" else self._pair(table)

    def _header(self) -> Path:
        line, many = self._line(), self.text.startswith("[[", self.at)
        self.at += 2 if many else 1
        keys = self._keys()
        self.at += 2 if many else 1
        path = self._resolved(keys[:-1]) + keys[-1:]
        self._note(path, line)
        if not many:
            return self._newest(path)
        self._lists[path] = self._lists.get(path, 0) + 1
        path = self._newest(path)
        self._note(path, line)
        return path

    def _resolved(self, keys: tuple[str, ...]) -> Path:
        """Returns where a header's keys lead: in an array of tables, to its last one."""
        path: Path = ()
        for key in keys:
            path = self._newest((*path, key))
        return path

    def _newest(self, path: Path) -> Path:
        return (*path, self._lists[path] - 1) if path in self._lists else path

    def _pair(self, table: Path) -> Path:
        """Reads `key = value`, and returns the table again."""
        line, keys = self._line(), self._keys()
        self._skip(_SPACE)
        self.at += 1  # the sign
        self._note((*table, *keys), line, above=len(table))
        self._skip(_SPACE)
        self._value((*table, *keys))
        return table

    def _keys(self) -> tuple[str, ...]:
        keys = []
        while True:
            self._skip(_SPACE)
            keys.append(self._key())
            self._skip(_SPACE)
            if self.at >= len(self.text) or self.text[self.at] != ".":
                return tuple(keys)
            self.at += 1

    def _key(self) -> str:
        start = self.at
        if self.text[start] not in "\"'":
            self._skip(_BARE)
            return self.text[start : self.at]
        self._skip(_QUOTED)
        inside = self.text[start + 1 : self.at - 1]
        return _ESCAPE.sub(_unescaped, inside) if self.text[start] == '"' else inside

    def _value(self, path: Path) -> None:
        first = self.text[self.at]
        if first == "[":
            self._list(path)
        elif first == "{":
            self._inline_table(path)
        else:
            self._skip(_QUOTED if first in "\"'" else _SCALAR)

    def _list(self, path: Path) -> None:
        self.at += 1
        number = 0
        while self.text[self._skip(_GAP)] != "]":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._note((*path, number), self._line())
            self._value((*path, number))
            number += 1
        self.at += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        while self.text[self._skip(_GAP)] != "}":
            if self.text[self.at] == ",":
                self.at += 1
            else:
                self._pair(path)
        self.at += 1

    def _note(self, path: Path, line: int, above: int = 0) -> None:
        """Keeps the first line of a path, and of the tables that its dotted key makes."""
        for length in range(above + 1, len(path) + 1):
            self.lines.setdefault(path[:length], line)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.at

    def _line(self) -> int:
        place, line = self._counted
        self._counted = self.at, line + self.text.count("\n", place, self.at)
        return self._counted[1]


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if code[0] in "uU" and len(code) > 1 else _ESCAPES[code]

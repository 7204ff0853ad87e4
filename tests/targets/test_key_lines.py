"""Lines of keys: of every way that TOML has to write one, and of any text."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.errors import TargetConstraintError
from npusim.targets.data_file import DataFile, like, parse, read_value, to_toml
from npusim.targets.key_lines import key_lines

TEXT = (
    """# A comment = 1
top = "a # b"  # c
"quoted key" = 'it"""
    + """'
'single "one"' = 3
"esc\\u0061pe\\"" = 4
a.b . "c.d" = 5
many = [ # [x]
  1, [2,
  3], { in = [
 4], b = "]" },
]
text = \"\"\"
not = "a key"
[nor]
\"\"\"\"\"
literal = '''
x = '' 1
'''
inline = { a = { b.c = 1 }, d = [] }
when = 1979-05-27 07:32:00

[table]
key = -0.5e3
[table.inner]
[ spaced . "header]" ]
x = true
[[rows]]
y = 1
[[rows]]

y = 2
[rows.below]
z = 3
[[rows.more]]
w = 1
[[rows.more]]
w = 2
"""
)

LINES = {
    ("top",): 2,
    ("quoted key",): 3,
    ('single "one"',): 4,
    ('escape"',): 5,
    ("a",): 6,
    ("a", "b"): 6,
    ("a", "b", "c.d"): 6,
    ("many",): 7,
    ("many", 0): 8,
    ("many", 1): 8,
    ("many", 1, 0): 8,
    ("many", 1, 1): 9,
    ("many", 2): 9,
    ("many", 2, "in"): 9,
    ("many", 2, "in", 0): 10,
    ("many", 2, "b"): 10,
    ("text",): 12,
    ("literal",): 16,
    ("inline",): 19,
    ("inline", "a"): 19,
    ("inline", "a", "b"): 19,
    ("inline", "a", "b", "c"): 19,
    ("inline", "d"): 19,
    ("when",): 20,
    ("table",): 22,
    ("table", "key"): 23,
    ("table", "inner"): 24,
    ("spaced", "header]"): 25,
    ("spaced", "header]", "x"): 26,
    ("rows",): 27,
    ("rows", 0): 27,
    ("rows", 0, "y"): 28,
    ("rows", 1): 29,
    ("rows", 1, "y"): 31,
    ("rows", 1, "below"): 32,
    ("rows", 1, "below", "z"): 33,
    ("rows", 1, "more"): 34,
    ("rows", 1, "more", 0): 34,
    ("rows", 1, "more", 0, "w"): 35,
    ("rows", 1, "more", 1): 36,
    ("rows", 1, "more", 1, "w"): 37,
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_key_has_its_line(newline: str) -> None:
    text = TEXT.replace("\n", newline)
    parse(text, "own.toml")
    found = dict(key_lines(text))
    assert found.pop(("spaced",), 25) == 25
    assert found == LINES


def test_a_text_without_keys_has_none() -> None:
    for text in ("", "\n", "# only", " \t\n#\n"):
        assert key_lines(text) == {}
    assert key_lines("x=1") == {("x",): 1}
    assert key_lines("x=[]") == {("x",): 1}


def _paths(data: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    rows = data.items() if isinstance(data, dict) else enumerate(data)
    found = set()
    for key, value in rows:
        found.add((*path, key))
        if isinstance(value, (dict, list)):
            found |= _paths(value, (*path, key))
    return found


KEYS = st.text(string.printable + "ä\x7f\u2028", max_size=4)
SCALARS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(string.printable + "ä\x7f", max_size=6),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_is_written_reads_back_with_a_line_for_each_key(data: dict[str, Any]) -> None:
    text = to_toml(data)
    file = parse(text, "own.toml")
    assert file.data == data
    lines = text.split("\n")
    for path in _paths(data):
        number = key_lines(text)[path]
        assert file.place(path) == f"own.toml:{number}"
        if isinstance(path[-1], str) and path[-1].isascii() and path[-1].isalnum():
            assert path[-1] in lines[number - 1]


# Files that are like others


def test_what_is_taken_over_keeps_its_place() -> None:
    base = parse("x = 1\nlist = [1, 2]\n[t]\na = 1\nb = 2\n[t.u]\nc = 3", "base.toml")
    own = parse('like = "base"\nlist = [3]\n[t]\nb = 5', "own.toml")
    file = like(own, lambda name: base, ("base",))
    assert file.data == {"x": 1, "list": [3], "t": {"a": 1, "b": 5, "u": {"c": 3}}}
    assert file.place(("x",)) == "base.toml:1"
    assert file.place(("list", 0)) == "own.toml:2"
    assert file.place(("list", 1)) == "own.toml:2"  # nothing there: what is around it
    assert file.place(("t", "a")) == "base.toml:4"
    assert file.place(("t", "b")) == "own.toml:4"
    assert file.place(("t", "u", "c")) == "base.toml:7"
    assert file.place(("nothing",)) == "own.toml"
    with pytest.raises(TargetConstraintError, match=r'own.toml:1: .*"base" .*Installed: other'):
        like(own, lambda name: base, ("other",))
    assert like(base, lambda name: own, ()) == base


def test_a_malformed_file_is_refused_with_its_line() -> None:
    with pytest.raises(TargetConstraintError, match=r"^own\.toml: it is not TOML: .*line 2"):
        parse("x = 1\ny = {\n", "own.toml")
    with pytest.raises(TargetConstraintError, match="it is not TOML"):
        parse("[" * 100_000, "own.toml")


VALUES_OF = {
    "1": 1,
    "1.0": 1.0,
    "ws": "ws",
    '"1"': "1",
    "true": True,
    "[1, 2]": [1, 2],
    "inf": float("inf"),
    "{x = 1}": {"x": 1},
    "a\nb = 2": "a\nb = 2",
    "1\nb = 2": "1\nb = 2",
}


@pytest.mark.parametrize(("text", "value"), VALUES_OF.items())
def test_a_value_without_quotes_is_text(text: str, value: object) -> None:
    assert read_value(text) == value


def test_places_of_a_file_without_lines() -> None:
    assert DataFile("mine", {"a": 1}).place(("a", 0)) == "mine"

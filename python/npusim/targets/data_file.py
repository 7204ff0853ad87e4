"""Data files: TOML, read with the line of every key, and written.

A file with the key `like` says where it differs from an installed one; what it takes over keeps
the place it came from. Owns what is common to files of targets and of architectures; what their
keys mean is said by dataclasses (`records.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from npusim.errors import TargetConstraintError
from npusim.targets import key_lines
from npusim.targets.key_lines import key_lines as lines_of
from npusim.version import __version__, install_hint, release

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class DataFile:
    """What a file says.

    Attributes:
        name: of the file, in errors.
        data: tables as dicts, lists, and scalars.
        places: file and line of keys, by their path; a file may say them or one it is like.
    """

    name: str
    data: dict[str, Any]
    places: Mapping[key_lines.Path, str] = field(default_factory=dict)

    def place(self, path: key_lines.Path) -> str:
        """Returns `file:line` of a key, or of the innermost table around it that stands there."""
        inner = (path[:n] for n in range(len(path), 0, -1))
        return next((self.places[p] for p in inner if p in self.places), self.name)

    def without(self, *keys: str) -> DataFile:
        """Returns the file without some of its keys at the top."""
        data = {k: v for k, v in self.data.items() if k not in keys}
        return replace(self, data=data, places=_outside(self.places, keys))

    def without_key(self, path: tuple[str, ...]) -> DataFile:
        """Returns the file without a key that it has in a table, and all that stands below it."""
        inner = self if len(path) == 1 else replace(self, data=self.data[path[0]], places={})
        places = {p: at for p, at in self.places.items() if p[: len(path)] != path}
        if len(path) == 1:
            left = {k: v for k, v in self.data.items() if k != path[0]}
        else:
            left = {**self.data, path[0]: inner.without_key(path[1:]).data}
        return replace(self, data=left, places=places)

    def over(self, base: DataFile) -> DataFile:
        """Returns a file with what this one changes: tables key by key, all else as a whole."""
        data = _merged(base.data, self.data)
        kept = {p: at for p, at in base.places.items() if _reaches(data, base.data, p)}
        return DataFile(self.name, data, {**kept, **self.places})


def parse(text: str, name: str) -> DataFile:
    """Reads a TOML text; TargetConstraintError where it is none, with the line."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TargetConstraintError(f"{name}: it is not TOML: {error}.") from error
    file = DataFile(name, data, {p: f"{name}:{n}" for p, n in lines_of(text).items()})
    return _for_this_npusim(file) if "npusim" in data else file


def _for_this_npusim(file: DataFile) -> DataFile:
    """Checks the key `npusim`, the first release that reads a file; returns the file without it."""
    needed, place = file.data["npusim"], file.place(("npusim",))
    numbers, ours = release(needed), release(__version__)
    if numbers is None or ours is None:
        raise TargetConstraintError(
            f"{place}: npusim is {json.dumps(needed, default=str)}; it must be a release such as "
            f'"{__version__}", the first that reads the file.'
        )
    if numbers > ours:
        raise TargetConstraintError(
            f"{place}: the file needs npusim {needed}, and this is {__version__}.",
            hint=f"{install_hint(needed)}.",
        )
    return file.without("npusim")


def read(file: Any, name: str) -> DataFile:
    """Reads a file of the package or of the file system."""
    try:
        return parse(file.read_text("utf-8"), name)
    except UnicodeDecodeError as error:
        raise TargetConstraintError(f"{name}: it is not TOML: it is not UTF-8.") from error
    except OSError as error:
        raise TargetConstraintError(f"{name}: it cannot be read: {error.strerror}.") from error


def own_file(path: str, what: str, known: str) -> DataFile:
    """Reads a user's own file; TargetConstraintError for a path that leads to none.

    Args:
        path: as the user gave it.
        what: begins the sentence that says that there is no such thing.
        known: the installed ones, named in the hint.
    """
    file = Path(path)
    if file.suffix == ".toml" and file.is_file():
        return read(file, path)
    if file.suffix == ".json" and file.is_file():
        raise TargetConstraintError(
            f"{path}: a file of a target or of measurements is TOML, not JSON.",
            hint="Write its keys as 'key = value' into a .toml file.",
        )
    raise TargetConstraintError(what, hint=f"{known}; or pass a .toml file.")


def like(file: DataFile, installed: Callable[[str], DataFile], names: tuple[str, ...]) -> DataFile:
    """Returns a file with what it takes over from the one that its key `like` names.

    Raises:
        TargetConstraintError: none of the installed ones has that name.
    """
    if "like" not in file.data:
        return file
    base = file.data["like"]
    if base not in names:
        raise TargetConstraintError(
            f"{file.place(('like',))}: there is nothing installed that is called "
            f"{json.dumps(base, default=str)} to be like.",
            hint=f"Installed: {', '.join(names)}.",
        )
    return file.without("like").over(installed(base))


def read_value(text: str) -> Any:
    """Returns a value as TOML has it; what is none is text without quotes."""
    try:
        data = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return data["value"] if len(data) == 1 else text


def to_toml(data: Mapping[str, Any]) -> str:
    """Returns tables, lists and scalars as TOML text that reads back as the same."""
    return "\n".join(_table(data, ())) + "\n"


def _merged(base: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        k: _merged(base[k], v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v
        for k, v in changed.items()
    }
    return {**base, **both}


def _outside(places: Mapping[key_lines.Path, str], keys: tuple[str, ...]) -> dict[Any, str]:
    return {path: place for path, place in places.items() if path[0] not in keys}


def _reaches(data: Any, base: Any, path: key_lines.Path) -> bool:
    """Whether a path leads to what the base says: no list or scalar around it was replaced."""
    for key in path:
        data, base = data[key], base[key]
        if not isinstance(data, dict) or not isinstance(base, dict):
            return data is base
    return True


def _table(data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    tables = {k: v for k, v in data.items() if isinstance(v, Mapping) and _nested(v)}
    if path and len(tables) < len(data):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in data.items():
        if key not in tables:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in tables.items():
        yield from _table(value, (*path, key))


def _nested(table: Mapping[str, Any]) -> bool:
    """Whether a table is written under a header: one of numbers alone fits into a line."""
    return not all(isinstance(v, (int, float)) for v in table.values())


def _key(key: str) -> str:
    bare = key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key)
    return key if bare else _text(key)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)  # integers and booleans

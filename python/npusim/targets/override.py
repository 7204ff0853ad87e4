"""Single numbers of a target changed by hand: `mxu.rows=16`, as `--set` takes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from npusim.errors import TargetConstraintError
from npusim.targets.data_file import DataFile, read_value
from npusim.targets.key_lines import Path
from npusim.targets.records import key_text, to_data, unknown_key
from npusim.targets.target_config import TargetConfig

_KEY = re.compile(r'\.?(?:([\w*-]+)|"([^"]*)"|\[(\d{1,9})\])')


def override(target: TargetConfig, settings: Iterable[str]) -> TargetConfig:
    """Returns a target with some of its numbers changed.

    Args:
        target: whose file is taken as it is but for these.
        settings: each `key=value`: a key as errors name it (`dram.gb_per_s`, `sram[0].kib`; of a
            list of tables also by name, `sram.l1.kib`), and a value as TOML has it. Text needs no
            quotes. The last of several for one key counts.

    Raises:
        TargetConstraintError: a setting is malformed, its key or value is none of the target's, or
            what results contradicts itself; the message names the setting and the known keys.
    """
    settings = tuple(settings)
    if not settings:
        return target
    data = file_data(target)
    name = f"Target '{target.name}' with {', '.join(settings)}"
    places: dict[Path, str] = {}
    for setting in settings:
        key, sign, value = setting.partition("=")
        if not sign or not key.strip() or not value.strip():
            raise TargetConstraintError(
                f"Setting '{setting}' is not 'key=value'.", hint="Write one such as mxu.rows=16."
            )
        path = _set(data, _keys(key.strip(), setting), read_value(value.strip()), target, setting)
        places[path] = f"Setting '{setting}'"
    return TargetConfig.from_data(DataFile(name, data, places))


def file_data(target: TargetConfig) -> dict[str, Any]:
    """Returns what a whole file says that describes a target: tables, lists and scalars."""
    data: dict[str, Any] = to_data(target)
    machine = data.pop("hardware", {})
    return {**data, **machine.pop("npu", {}), **{k: v for k, v in machine.items() if k != "name"}}


def _keys(text: str, setting: str) -> list[str | int]:
    keys: list[str | int] = []
    at = 0
    while at < len(text):
        found = _KEY.match(text, at)
        if found is None:
            raise TargetConstraintError(
                f"Setting '{setting}': '{text}' is no key.", hint="Write one such as sram[0].kib."
            )
        bare, quoted, number = found.groups()
        keys.append(int(number) if number is not None else bare or quoted)
        at = found.end()
    return keys


def _set(
    data: dict[str, Any], keys: list[str | int], value: Any, target: TargetConfig, setting: str
) -> Path:
    """Changes a value in tables within tables, and returns its path."""
    inner: Any = data
    path: Path = ()
    for key in keys[:-1]:
        inner, path = _step(inner, path, key, target, setting)
    last = keys[-1]
    if isinstance(inner, list):
        _, path = _step(inner, path, last, target, setting)
        at = path[-1]
        assert isinstance(at, int)
        inner[at] = value
        return path
    if not isinstance(inner, dict) or not isinstance(last, str):
        raise _nothing(path, last, setting, ())
    if not path and last not in inner and last not in _scalars():
        raise _nothing(path, last, setting, tuple(inner))
    inner[last] = value
    return (*path, last)


def _scalars() -> tuple[str, ...]:
    return tuple(TargetConfig.__dataclass_fields__)


def _step(
    inner: Any, path: Path, key: str | int, target: TargetConfig, setting: str
) -> tuple[Any, Path]:
    """Returns what a key leads to; of a list of tables, a name leads to the one that has it."""
    if isinstance(inner, list):
        names = [row.get("name") for row in inner if isinstance(row, dict)]
        at: str | int = names.index(key) if key in names else key
        if not isinstance(at, int) or at >= len(inner):
            named = tuple(str(n) for n in names if n)
            raise _nothing(path, key, setting, named or (f"[0] … [{len(inner) - 1}]",))
        return inner[at], (*path, at)
    if not isinstance(inner, dict) or key not in inner:
        known = tuple(inner) if isinstance(inner, dict) else ()
        if not path and target.hardware is None:
            raise TargetConstraintError(
                f"Setting '{setting}': target '{target.name}' describes no machine.",
                hint=f"Known there: {', '.join(known)}.",
            )
        raise _nothing(path, key, setting, known)
    return inner[key], (*path, key)


def _nothing(
    path: Path, key: str | int, setting: str, known: tuple[str, ...]
) -> TargetConstraintError:
    if known:
        return unknown_key(lambda _: f"Setting '{setting}'", (*path, key), known)
    return TargetConstraintError(f"Setting '{setting}': '{key_text(path)}' has no keys below it.")

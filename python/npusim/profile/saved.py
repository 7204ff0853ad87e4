"""Profiles as JSON: what `npusim profile --json` prints, and reading it back.

The file says how long commands took on a device, with the parameters of their kernels, so whoever
fits a model to it needs neither the program nor the device.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npusim.abi.kernels import KERNELS, Params
from npusim.errors import Error
from npusim.files import printable_path, read_whole
from npusim.profile.profile import CommandProfile, Profile
from npusim.profile.reuse import Reuse

_COMMAND = {f.name: f.type for f in dataclasses.fields(CommandProfile)}
_HINT = "Write one with `npusim profile PROGRAM --json > FILE`."


def profile_facts(profile: Profile) -> dict[str, Any]:
    """Returns a profile as JSON has it."""
    return {
        "model": profile.model,
        "method": profile.method,
        "target": profile.target,
        "device": profile.device,
        "context": profile.context,
        "repeats": profile.repeats,
        "run_s": profile.run_seconds,
        "commands_s": profile.commands_seconds,
        "limits": dict(profile.limits),
        "commands": [dataclasses.asdict(command) for command in profile.commands],
    }


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Reads a profile that was written as JSON.

    Raises:
        Error: the file cannot be read, or is no profile; says what is wrong where.
    """
    shown = printable_path(path)
    try:
        data = json.loads(read_whole(Path(path)))
    except OSError as error:
        raise Error(f"Cannot read {shown}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise Error(f"{shown} is not JSON: {error}.", hint=_HINT) from error
    try:
        return _profile(data)
    except _Malformed as error:
        raise Error(f"{shown} is no profile: {error}.", hint=_HINT) from None


class _Malformed(Exception):
    """What is wrong in a file, and where."""


def _profile(data: object) -> Profile:
    given = _object(data, "it")
    commands = given.get("commands")
    if not isinstance(commands, list) or not commands:
        raise _Malformed("it has no list of commands")
    return Profile(
        model=_text(given, "model", "it"),
        method=_text(given, "method", "it"),
        target=_text(given, "target", "it"),
        device=_text(given, "device", "it"),
        context=_count(given, "context", "it"),
        repeats=_count(given, "repeats", "it"),
        commands=tuple(_command(row, f"commands[{i}]") for i, row in enumerate(commands)),
        run_seconds=_seconds(given, "run_s", "it"),
        limits=_limits(given.get("limits", {})),
    )


def _limits(data: object) -> dict[str, float]:
    """Returns rates by what they are of; files of earlier versions have none."""
    given = _object(data, "limits")
    for name, rate in given.items():
        if not _is_number(rate) or rate <= 0:
            raise _Malformed(f"{name!r} of limits is no rate")
    return {name: float(rate) for name, rate in given.items()}


def _command(data: object, where: str) -> CommandProfile:
    given = _object(data, where)
    texts = {n: _text(given, n, where) for n, kind in _COMMAND.items() if kind == "str"}
    counts = {n: _count(given, n, where) for n, kind in _COMMAND.items() if kind == "int"}
    kernel = KERNELS.get(texts["kernel"])
    if kernel is None:
        raise _Malformed(f"{where} calls a kernel {texts['kernel']!r}, which there is not")
    params = _params(_object(given.get("params"), f"{where}.params"), texts["kernel"], where)
    seconds = _seconds(given, "seconds", where)
    reuse = _reuse(given.get("reuse"), f"{where}.reuse")
    return CommandProfile(seconds=seconds, params=params, reuse=reuse, **texts, **counts)  # type: ignore[arg-type]


def _reuse(data: object, where: str) -> Reuse | None:
    """Returns what a command finds in caches; files of earlier versions do not say it."""
    if data is None:
        return None
    given = _object(data, where)
    rows = given.get("operands")
    if not isinstance(rows, list) or not all(map(_is_reach, rows)):
        raise _Malformed(f"'operands' of {where} is no list of bytes and their reach")
    return Reuse(tuple((nbytes, reach) for nbytes, reach in rows), _count(given, "code", where))


def _is_reach(row: object) -> bool:
    """Returns whether it is bytes and their reach, which is no shorter."""
    integers = isinstance(row, list) and len(row) == 2 and all(type(x) is int for x in row)
    return integers and 0 <= row[0] <= row[1]  # type: ignore[index]


def _params(given: Mapping[str, Any], stem: str, where: str) -> Params:
    """Returns parameters of a kernel; arrays are tuples, as its struct gives them.

    An array may end where nothing but zeros follows.
    """
    counts = {name: count for name, _, count in KERNELS[stem].fields}
    found: Params = {}
    for name, value in given.items():
        values, count = value if isinstance(value, list) else [value], counts.get(name, 0)
        fits = 0 < len(values) <= count if isinstance(value, list) else count == 1
        if not fits or not all(_is_number(v) for v in values):
            raise _Malformed(f"{where}: kernel '{stem}' has no parameter '{name}' of that form")
        rest = (0,) * (count - len(values))
        found[name] = (*values, *rest) if isinstance(value, list) else value
    return found


def _object(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise _Malformed(f"{where} is no object")
    return data


def _text(given: Mapping[str, Any], key: str, where: str) -> str:
    value = given.get(key)
    if not isinstance(value, str):
        raise _Malformed(f"'{key}' of {where} is no text")
    return value


def _count(given: Mapping[str, Any], key: str, where: str) -> int:
    value = given.get(key)
    if type(value) is not int or value < 0:
        raise _Malformed(f"'{key}' of {where} is no integer from 0 on")
    return value


def _seconds(given: Mapping[str, Any], key: str, where: str) -> float:
    value = given.get(key)
    if not _is_number(value) or value < 0:  # type: ignore[operator]
        raise _Malformed(f"'{key}' of {where} is no time in seconds")
    return float(value)  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))

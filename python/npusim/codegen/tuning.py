"""Tuning files: which choice was measured to be the fastest for each command, on which device.

A tuning file is JSON: `{"format": "npusim tuning", "version": 1, "device": …, "commands": {key:
{"stem", "library", "plan", "library_version", "variant", "microseconds"}}}`. The key is a hash of a
stem, its schema and its parameters, so that a file serves every program with such commands. It
holds choices and no code: what it names is looked up among what npusim itself could have chosen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npusim.abi.kernels import KERNELS
from npusim.codegen.choice import Choice
from npusim.codegen.generator import CodeGenerator
from npusim.errors import Error, ProgramFormatError
from npusim.files import write_atomic

_FORMAT, _VERSION = "npusim tuning", 1
_MOST_BYTES = 64 << 20
_MOST_PLAN, _MOST_LIBRARY_VERSION = 1 << 10, 1 << 31


@dataclass(frozen=True)
class Tuning:
    """Measured choices.

    Attributes:
        device: what they were measured on, for people.
        choices: by the key of a command.
        microseconds: what each candidate took, by its name, by the key of a command.
    """

    device: str
    choices: Mapping[str, Choice] = field(default_factory=dict)
    stems: Mapping[str, str] = field(default_factory=dict)
    microseconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def for_commands(
        self, commands: Iterator[tuple[str, bytes]], generator: CodeGenerator
    ) -> dict[tuple[str, bytes], Choice]:
        """Returns the choices for commands, of those that a generator can make."""
        found = ((command, self.choices.get(key_of(*command))) for command in commands)
        return {
            command: choice
            for command, choice in found
            if choice is not None and generator.is_possible(*command, choice)
        }

    def save(self, path: str | Path) -> None:
        """Writes a tuning file; whole or not at all."""
        commands = {
            key: {
                "stem": self.stems[key],
                "library": choice.library,
                "plan": choice.plan,
                "library_version": choice.version,
                "variant": choice.variant,
                "microseconds": dict(self.microseconds.get(key, {})),
            }
            for key, choice in sorted(self.choices.items())
        }
        document = {
            "format": _FORMAT,
            "version": _VERSION,
            "device": self.device,
            "commands": commands,
        }
        write_atomic(Path(path), (json.dumps(document, indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Tuning:
        """Reads a tuning file.

        Raises:
            ProgramFormatError: it is none, or malformed.
            Error: it cannot be read.
        """
        try:
            size = Path(path).stat().st_size
            if size > _MOST_BYTES:
                raise ValueError(f"{size} bytes are more than a tuning file has")
            document = json.loads(Path(path).read_bytes())
            return _tuning(document)
        except OSError as error:
            raise Error(f"{path}: {error.strerror or error}.") from error
        except (ValueError, RecursionError) as error:
            raise ProgramFormatError(
                f"{path} is no tuning file: {error}.", hint="Make one with npusim tune."
            ) from error


def key_of(stem: str, params: bytes) -> str:
    """Returns the key of a command in tuning files."""
    text = "\0".join((stem, KERNELS[stem].schema)).encode()
    return hashlib.sha256(text + b"\0" + params).hexdigest()[:32]


def _tuning(document: Any) -> Tuning:
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError(f'its "format" is not "{_FORMAT}"')
    if document.get("version") != _VERSION:
        raise ValueError(f"its version is {document.get('version')!r}, not {_VERSION}")
    device, commands = document.get("device"), document.get("commands")
    if not isinstance(device, str) or not isinstance(commands, dict):
        raise ValueError("it names no device, or has no commands")
    choices: dict[str, Choice] = {}
    stems: dict[str, str] = {}
    times: dict[str, dict[str, float]] = {}
    for key, entry in commands.items():
        if not isinstance(entry, dict) or entry.get("stem") not in KERNELS:
            raise ValueError(f"command {key[:40]!r} has no stem")
        stems[key] = entry["stem"]
        choices[key] = Choice(
            _text(entry, "library"),
            _count(entry, "plan", _MOST_PLAN),
            _count(entry, "library_version", _MOST_LIBRARY_VERSION),
            _text(entry, "variant"),
        )
        measured = entry.get("microseconds", {})
        if not isinstance(measured, dict):
            raise ValueError(f"command {key[:40]!r}: its times are malformed")
        times[key] = {str(name): _number(value) for name, value in measured.items()}
    return Tuning(device, choices, stems, times)


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name, "")
    if not isinstance(value, str) or len(value) > 64:
        raise ValueError(f"'{name}' is not a short text")
    return value


def _count(entry: Mapping[str, Any], name: str, most: int) -> int:
    value = entry.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"'{name}' is not a number from 0 to {most}")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("a time is not a number")
    return float(value)

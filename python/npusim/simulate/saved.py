"""The schema of report.json: its version, reading one back, and holding it to what it must be."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from npusim.errors import Error
from npusim.files import printable_path, read_whole

SCHEMA = "npusim-simulation/1"
REPORT_CAUSES = ("compute", "vector", "dma", "dram", "bank", "noc", "dispatch", "dependency")
_HINT = "Write one with `npusim simulate PROGRAM -o FOLDER`."
_TEXTS = ("model", "method", "target", "mode")
_LAYER_TEXTS = ("node", "op", "kernel", "module", "source", "bound", "formula", "advice")
_LAYER_NUMBERS = (*("start_s", "seconds", "operations", "dram_bytes", "sram_bytes", "utilization"),)


def read_report(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a report that `Simulation.save` wrote.

    Raises:
        Error: the file cannot be read, is no report, is one of another schema version, or holds
            what a report cannot; says what is wrong where.
    """
    shown = printable_path(path)
    try:
        data = json.loads(read_whole(Path(path)), parse_constant=_no_number)
    except OSError as error:
        raise Error(f"Cannot read {shown}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise Error(f"{shown} is not JSON: {error}.", hint=_HINT) from error
    return check_report(data, shown)


def check_report(data: object, shown: str = "The report") -> dict[str, Any]:
    """Returns data that is a report.

    Args:
        shown: what errors call it.

    Raises:
        Error: it is none; says what is wrong where.
    """
    try:
        return _report(data)
    except _Malformed as error:
        raise Error(f"{shown} is no report of a simulation: {error}.", hint=_HINT) from None


class _Malformed(Exception):
    """What is wrong, and where."""


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _report(data: object) -> dict[str, Any]:
    given = dict(_object(data, "it"))
    schema = given.get("schema")
    if schema != SCHEMA:
        raise _Malformed(f"its schema is {schema!r}, and this version reads {SCHEMA!r}")
    _texts(given, _TEXTS, "it")
    _numbers(given, ("seconds",), "it")
    _number_or_null(given, "cycles", "it")
    _numbers(_object(given.get("stalls"), "stalls"), REPORT_CAUSES, "stalls")
    _numbers(_object(given.get("peaks"), "peaks"), ("ops_per_second", "bytes_per_second"), "peaks")
    if given.get("energy") is not None:
        energy = _object(given["energy"], "energy")
        _numbers(energy, (*energy, "total"), "energy")
    for where, memory in _rows(given, "memories"):
        _texts(memory, ("name",), where)
        _numbers(memory, ("bytes", "peak_bytes"), where)
        _steps(memory.get("occupancy"), where)
    for where, layer in _rows(given, "layers"):
        _layer(layer, where)
    known = {layer["index"] for layer in given["layers"]}
    for where, event in _rows(given, "timeline"):
        _texts(event, ("lane", "name"), where)
        _numbers(event, ("start_s", "seconds"), where)
        busy = event.get("busy_s", event["seconds"])
        if not _is_amount(busy) or busy > event["seconds"] * (1 + 1e-9):
            raise _Malformed(f"'busy_s' of {where} is no part of its seconds")
        if event.get("layer") not in known:
            raise _Malformed(f"'layer' of {where} is none of the layers")
    return given


def busy_share(event: Mapping[str, Any]) -> float:
    """Returns in which share of an event its unit works: several that are joined have gaps."""
    seconds = event["seconds"]
    return float(min(1.0, event.get("busy_s", seconds) / seconds)) if seconds > 0 else 1.0


def _layer(layer: Mapping[str, Any], where: str) -> None:
    if type(layer.get("index")) is not int or layer["index"] < 0:
        raise _Malformed(f"'index' of {where} is no integer from 0 on")
    _texts(layer, _LAYER_TEXTS, where)
    _numbers(layer, _LAYER_NUMBERS, where)
    _number_or_null(layer, "cycles", where)
    _number_or_null(layer, "energy_j", where)
    _numbers(_object(layer.get("stalls"), f"{where}.stalls"), REPORT_CAUSES, f"{where}.stalls")


def _rows(given: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    rows = given.get(key)
    if not isinstance(rows, list):
        raise _Malformed(f"it has no list of {key}")
    return [(f"{key}[{i}]", _object(row, f"{key}[{i}]")) for i, row in enumerate(rows)]


def _steps(data: object, where: str) -> None:
    if not isinstance(data, list) or not all(
        isinstance(step, list) and len(step) == 2 and all(map(_is_amount, step)) for step in data
    ):
        raise _Malformed(f"'occupancy' of {where} is no list of seconds and bytes")


def _object(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise _Malformed(f"{where} is no object")
    return data


def _texts(given: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        if not isinstance(given.get(key), str):
            raise _Malformed(f"'{key}' of {where} is no text")


def _numbers(given: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        if not _is_amount(given.get(key)):
            raise _Malformed(f"'{key}' of {where} is no number from 0 on")


def _number_or_null(given: Mapping[str, Any], key: str, where: str) -> None:
    if key not in given or (given[key] is not None and not _is_amount(given[key])):
        raise _Malformed(f"'{key}' of {where} is neither null nor a number from 0 on")


def _is_amount(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0  # type: ignore[arg-type, operator]

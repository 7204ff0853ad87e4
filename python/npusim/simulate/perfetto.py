"""A simulation as a trace: JSON that ui.perfetto.dev and chrome://tracing open.

Threads are the commands, one after another, and the lanes of the machine's units; counters what the
time of each command is due to, as shares that sum to 1, what DRAM carries, and how full memories
are. Times are in microseconds, as the format has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from npusim.simulate.saved import busy_share

_PROCESS, _COMMANDS = 1, 1
_MICRO = 1e6


def to_trace(report: Mapping[str, Any]) -> str:
    """Returns the trace of a report, as `Simulation.report` gives it.

    Raises:
        ValueError: the report holds a number that JSON has not, such as NaN.
    """
    other = {key: report[key] for key in ("schema", "model", "method", "target", "mode", "seconds")}
    other["timeline_dropped"] = report.get("timeline_dropped", 0)
    trace = {"traceEvents": list(_events(report)), "displayTimeUnit": "ns", "otherData": other}
    return json.dumps(trace, allow_nan=False, separators=(",", ":")) + "\n"


def _events(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    names = (report["model"], report["method"], f"on {report['target']}", report["mode"])
    yield _label("process_name", _COMMANDS, name=", ".join(filter(None, names)))
    lanes = list(dict.fromkeys(event["lane"] for event in report["timeline"]))
    for thread, name in enumerate(("commands", *lanes), _COMMANDS):
        yield _label("thread_name", thread, name=name)
        yield _label("thread_sort_index", thread, sort_index=thread)
    for layer in report["layers"]:
        span = _span(f"{layer['index']} {layer['node']}", layer, _COMMANDS)
        yield {**span, "cat": layer["bound"], "args": _facts(layer)}
    threads = {lane: thread for thread, lane in enumerate(lanes, _COMMANDS + 1)}
    for event in report["timeline"]:
        span = _span(event["name"], event, threads[event["lane"]])
        args = {"command": event["layer"], "spans": event.get("count", 1)}
        yield {**span, "cat": event["lane"], "args": {**args, "works": busy_share(event)}}
    yield from _stalls(report)
    for memory in report["memories"]:
        for second, held in memory["occupancy"]:
            yield _counter(f"{memory['name']}, bytes in use", second, {"bytes": held})


def _stalls(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields what each command's time is due to, and its rate of DRAM; first of all, dispatch."""
    none = dict.fromkeys(report["stalls"], 0.0)
    layers = [layer for layer in report["layers"] if layer["seconds"] > 0]
    if layers and layers[0]["start_s"] > 0:
        yield _counter("due to", 0.0, {**none, "dispatch": 1.0})
    for layer in layers:
        shares = {cause: part / layer["seconds"] for cause, part in layer["stalls"].items()}
        yield _counter("due to", layer["start_s"], shares)
        rate = 1e-9 * layer["dram_bytes"] / layer["seconds"]
        yield _counter("DRAM, GB/s", layer["start_s"], {"GB/s": rate})
    yield _counter("due to", report["seconds"], none)
    yield _counter("DRAM, GB/s", report["seconds"], {"GB/s": 0.0})


def _facts(layer: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("node", "op", "kernel", "module", "source", "bound", "cycles", "operations")
    more = ("dram_bytes", "sram_bytes", "utilization", "energy_j", "formula", "advice")
    return {key: layer[key] for key in (*keys, *more)}


def _label(kind: str, thread: int, **args: object) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": args}


def _span(name: str, timed: Mapping[str, Any], thread: int) -> dict[str, Any]:
    start, length = _MICRO * timed["start_s"], _MICRO * timed["seconds"]
    return {"ph": "X", "name": name, "pid": _PROCESS, "tid": thread, "ts": start, "dur": length}


def _counter(name: str, second: float, values: Mapping[str, float]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": _PROCESS, "ts": _MICRO * second, "args": dict(values)}

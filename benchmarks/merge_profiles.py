"""Several passes of `device_profiles.py` on a machine that others use, too, as one.

    PYTHONPATH=python:. python -m benchmarks.merge_profiles OUT PASS...

A command's time is the median of those of the passes, a run's likewise. `passes.txt` beside them
has the seconds of each pass's runs. Sources are told from the repository's root.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

ROOTS = ("benchmarks/", "tests/", "python/")


def merged(passes: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns one profile as JSON has it, of several of one program."""
    commands = []
    for same in zip(*(one["commands"] for one in passes), strict=True):
        params = {k: _short(v) for k, v in same[0]["params"].items() if _says(v)}
        seconds = statistics.median(command["seconds"] for command in same)
        source = _relative(same[0]["source"])
        commands.append({**same[0], "seconds": seconds, "params": params, "source": source})
    return {
        **passes[0],
        "repeats": sum(one["repeats"] for one in passes),
        "run_s": statistics.median(one["run_s"] for one in passes),
        "commands_s": sum(command["seconds"] for command in commands),
        "commands": commands,
    }


def _says(value: Any) -> bool:
    return any(value) if isinstance(value, list) else bool(value)


def _short(value: Any) -> Any:
    """Returns a list without the zeros that it ends with, which a reader puts there again."""
    if not isinstance(value, list):
        return value
    return value[: max(i for i, one in enumerate(value) if one) + 1]


def _relative(source: str) -> str:
    at = max((source.find(root) for root in ROOTS), default=-1)
    return source[at:] if at >= 0 else source.rpartition("/")[2]


def main() -> None:
    """Reads the command line, merges, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("passes", type=Path, nargs="+")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[float]] = {}
    for path in sorted(args.passes[0].glob("*.json")):
        found = [folder / path.name for folder in args.passes if (folder / path.name).exists()]
        profiles = [json.loads(one.read_text()) for one in found]
        text = json.dumps(merged(profiles), separators=(",", ":"))
        (args.out / path.name).write_text(text + "\n")
        runs[path.stem] = [profile["run_s"] for profile in profiles]
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in runs.items())
    (args.out / "passes.txt").write_text("{\n" + rows + "\n}\n")


if __name__ == "__main__":
    main()

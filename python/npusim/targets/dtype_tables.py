"""What a target takes over, of the one that it is like, of tables whose keys are dtypes.

Such a table is a set as much as its numbers are: `macs_per_pe_cycle = { int8 = 1 }` says that an
array multiplies nothing else. So a file that has one replaces it as a whole, and what it takes over
says nothing of dtypes that the file's machine has not.
"""

from __future__ import annotations

from typing import Any

from npusim.targets.data_file import DataFile

_TABLES = (
    ("mxu", "macs_per_pe_cycle"),
    ("mxu", "sums"),
    ("vpu", "dtype_rate"),
    ("constraints", "channel_align"),
    ("energy", "mac_pj"),
)
_NEEDED = _TABLES[0], _TABLES[2]
_OF = {("mxu", "sums"): ("mxu", "macs_per_pe_cycle")}  # other dtypes have none


def taken_over(base: DataFile, file: DataFile) -> DataFile:
    """Returns what a file takes over of another one that it is like.

    Args:
        base: the other one, whole.
        file: what it says itself; it may be malformed yet, which is told when it is read.
    """
    for path in _TABLES:
        if _at(file, path) is not None:
            base = base.without_key(path)
            continue
        limits = [_at(file, limit) for limit in (("constraints", "dtypes"), _OF.get(path)) if limit]
        sets = [limit for limit in limits if isinstance(limit, (list, dict))]
        known = _at(base, path) or {}
        strange = [dtype for dtype in known if not all(dtype in named for named in sets)]
        if path in _NEEDED and len(strange) == len(known):
            continue  # refused where it stands, as long as the file has none of its own
        for dtype in strange:
            base = base.without_key((*path, dtype))
    return base


def _at(file: DataFile, path: tuple[str, ...]) -> Any:
    """Returns what a file says under two keys; None where that is nothing."""
    table = file.data.get(path[0])
    return table.get(path[1]) if isinstance(table, dict) else None

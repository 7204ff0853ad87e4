"""What a run did on the software Metal device, for the end of pytest's report.

Each worker says how many dispatches it executed in each order; a test with the mark `seeded_fault`
shows that a check fires, so those that passed are the faults that were found.
"""

from __future__ import annotations

from collections import Counter

from tests.softmetal import metal

MARK = "seeded_fault"


def executed() -> dict[str, int]:
    """Returns the dispatches of this process by order; empty where the device was not loaded."""
    if not metal.is_loaded():
        return {}
    return {order: metal.counted(f"run {order}") for order in metal.ORDERS}


def lines(dispatches: Counter[str], faults: int) -> list[str]:
    """Returns what to print."""
    by_order = ", ".join(f"{order} {dispatches[order]}" for order in metal.ORDERS)
    return [f"dispatches executed, by order: {by_order}", f"seeded faults found: {faults}"]

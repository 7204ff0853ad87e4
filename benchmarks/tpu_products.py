"""How far the preset `tpu-v6e` is off products that were timed on the chip, all of them.

    PYTHONPATH=python:. python -m benchmarks.tpu_products

`results/tpu_v6e_products.csv` has the published times: 16-bit products [M, K] times [K, N] of up to
1,024 rows, in nanoseconds (github.com/PSAL-POSTECH/PyTorchSim, timing_mode_validation/ref_v6e.csv).
50 of them were fitted to, among 100; which ones was not written down, so that this table is of all.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from pathlib import Path

from npusim.schedule import best_schedule, product_work
from npusim.simulate.tiles import walk
from npusim.targets import TargetConfig

PRODUCTS = Path(__file__).parent / "results" / "tpu_v6e_products.csv"
GOAL = 0.25
WORST = 12


def errors() -> list[tuple[str, int, float, float]]:
    """Returns of each product its name, rows, and microseconds as published and as simulated."""
    target = TargetConfig.named("tpu-v6e")
    assert target.hardware is not None and target.hardware.npu is not None
    npu, calibration = target.hardware.npu, target.hardware.calibration
    found = []
    with PRODUCTS.open() as file:
        for row in csv.DictReader(file):
            m, k, n = (int(row[size]) for size in "mkn")
            work = product_work(m, n, k, "bfloat16")
            schedule = best_schedule(npu, work, calibration=calibration)
            cycles = walk(npu, schedule, 0, calibration).cycles + npu.dispatch.issue_cycles
            simulated = npu.dispatch.call_us + cycles / npu.clock.core_mhz
            found.append((f"{m}x{k}x{n}", m, int(row["ns"]) / 1e3, simulated))
    return found


def line(what: str, off: Sequence[float]) -> str:
    """Returns a row of the table, of signed relative errors."""
    sizes = sorted(map(abs, off))
    numbers = (statistics.mean(sizes), statistics.median(sizes), sizes[int(0.95 * len(sizes))])
    shown = " | ".join(f"{100 * x:.1f} %" for x in numbers)
    return f"| {what} | {len(off)} | {shown} | {sum(x > GOAL for x in sizes)} |"


def main() -> None:
    """Prints errors by rows, and the largest ones."""
    found = errors()
    off = [(name, m, simulated / published - 1) for name, m, published, simulated in found]
    print(f"| rows | products | mean | median | 95th percentile | beyond {100 * GOAL:.0f} % |")
    print("|---:|---:|---:|---:|---:|---:|")
    for rows in sorted({m for _, m, _ in off}):
        print(line(str(rows), [error for _, m, error in off if m == rows]))
    print(line("all", [error for _, _, error in off]))
    print(f"\nthe {WORST} largest errors, microseconds published and simulated:")
    for name, _, published, simulated in sorted(found, key=lambda x: -abs(x[3] / x[2] - 1))[:WORST]:
        off_by = 100 * (simulated / published - 1)
        print(f"{name:>16} {published:10.3f} {simulated:10.3f} {off_by:+6.1f} %")


if __name__ == "__main__":
    main()

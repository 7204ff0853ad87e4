"""`npusim simulate`: how long a described machine takes for one product."""

from __future__ import annotations

import click

import npusim
from npusim.cli.answer import Answer, Verb, amount, duration, table
from npusim.schedule import npu_of
from npusim.targets import override


@click.command(cls=Verb)
@click.option("--target", required=True, help="A machine of the kind 'npu', or a file of one.")
@click.option("--product", "sizes", required=True, metavar="M,K,N", help="[M, K] times [K, N].")
@click.option("--dtype", help="Default: the first that the array multiplies.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Change a number.")
def simulate(target: str, sizes: str, dtype: str | None, settings: tuple[str, ...]) -> Answer:
    """Say how long a machine takes for a product, and what the time is due to.

    'cycles' are those of one array whose operands are there, as SCALE-Sim publishes them;
    'simulated_cycles' those of the whole machine, with all copies from and to DRAM.
    """
    from npusim.simulate.tiles import TICKS, array_cycles, walk_product

    m, k, n = _sizes(sizes)
    npu = npu_of(override(npusim.TargetConfig.named(target), settings))
    chosen = dtype or next(iter(npu.mxu.macs_per_pe_cycle))
    cycles = array_cycles(npu, m, k, n, chosen)
    found = walk_product(npu, m, k, n, chosen)
    second = 1e6 * npu.clock.core_mhz
    causes = {name: ticks / TICKS for name, ticks in found.causes.items()}
    facts = {
        "cycles": cycles,
        "simulated_cycles": found.cycles,
        "seconds": found.cycles / second,
        "dtype": chosen,
        "causes_cycles": causes,
        "dram_read_bytes": found.dram_read,
        "dram_written_bytes": found.dram_written,
        "tiles": found.tiles,
    }
    rows = [(name, f"{c:,.0f}", f"{100 * c / found.cycles:.1f} %") for name, c in causes.items()]
    moved = amount(found.dram_read + found.dram_written)
    lines = [
        f"{m}x{k}x{n} {chosen}: {cycles:,} cycles of one array whose operands are there",
        f"with copies: {found.cycles:,.0f} cycles, {duration(found.cycles / second)}, "
        f"{found.tiles} tiles, {moved} from and to DRAM",
        table((row for row in rows if row[1] != "0"), "due to", "cycles", "share"),
    ]
    return Answer(facts, lines)


def _sizes(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(
        p.isascii() and p.isdigit() and len(p) < 9 and int(p) for p in parts
    ):
        raise click.UsageError(f"--product is three sizes of at least 1, M,K,N, not '{text}'.")
    m, k, n = map(int, parts)
    if max(m, k, n) > 2**20:  # whose cycles are whole numbers of 64 bits on any array
        raise click.UsageError("--product: no size is above 2^20.")
    return m, k, n

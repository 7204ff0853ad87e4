"""Each part of a machine by hand: what it adds to the walk of one product, to the tick."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npusim.simulate.tiles import TICKS, walk_product
from npusim.targets import TargetConfig
from npusim.targets.override import override

DOCS = Path(__file__).resolve().parents[2] / "docs" / "simulate.md"
PLAIN = ("dma.channels=1", "dram.gb_per_s=64", "dma.bytes_per_cycle=64", "sram.l1.banks=4")
LOADS, FOLDS, STORE = 2 * 32 * 64 // 64, 64 + 32 + 32 - 2, 32 * 32 // 64


def parts(*settings: str, name: str = "scale-32-os", m: int = 32) -> dict[str, float]:
    """Returns the cycles of [m, 64] times [64, 32] by cause, those of none left out."""
    config = override(TargetConfig.named(name), [*PLAIN, *settings])
    assert config.npu is not None
    found = walk_product(config.npu, m, 64, 32, "int8")
    assert sum(found.causes.values()) == found.ticks
    return {cause: ticks / TICKS for cause, ticks in found.causes.items() if ticks}


@pytest.mark.parametrize(
    ("settings", "cycles"),
    [
        ((), {"compute": FOLDS, "dma": LOADS + STORE}),
        # Half of DRAM's rate takes twice as long, and is DRAM's then.
        (("dram.efficiency=0.5",), {"compute": FOLDS, "dram": 2 * (LOADS + STORE)}),
        # A latency for each of two reads and a write, one behind the other on one channel.
        (
            ("dram.read_latency_ns=100",),
            {"compute": FOLDS, "dma": LOADS + STORE, "dram": 2 * 100},
        ),
        (("dram.write_latency_ns=70",), {"compute": FOLDS, "dma": LOADS + STORE, "dram": 70}),
        # Three copies are set up; on two channels the second read is while the first one runs.
        (("dma.setup_cycles=20",), {"compute": FOLDS, "dma": LOADS + STORE + 3 * 20}),
        (
            ("dma.setup_cycles=20", "dma.channels=2"),
            {"compute": FOLDS, "dma": 20 + STORE + 20, "dram": LOADS},
        ),
        # With fewer than three accesses at once, copies take the array's turns: 5,120 bytes.
        (("sram.l1.banks=1",), {"compute": FOLDS, "dma": LOADS + STORE, "bank": 5}),
        (
            ("sram.l1.banks=1", "sram.l1.ports_per_bank=3"),
            {"compute": FOLDS, "dma": LOADS + STORE},
        ),
    ],
)
def test_a_part_adds_what_it_takes(settings: tuple[str, ...], cycles: dict[str, float]) -> None:
    assert parts(*settings) == cycles


def test_the_next_tile_is_copied_while_one_computes() -> None:
    """Of two tiles the second one's operand and the first one's result pass unseen."""
    assert parts(m=64) == {"compute": 2 * FOLDS, "dma": LOADS + STORE}
    alone = parts("sram.l1.double_buffer=false", m=64)
    assert sum(alone.values()) > 2 * FOLDS + LOADS + STORE


def test_cores_are_some_hops_away_and_wait_for_each_other() -> None:
    """Three copies, one behind the other on one channel, go one hop; where one core is, none."""
    edge, two = "npu-edge-32x32", ("noc.hop_cycles=7", "cores.count=2", "cores.sync_cycles=50")
    assert "noc" not in parts("noc.hop_cycles=7", name=edge)
    found, near = parts(*two, name=edge), parts(*two, "noc.hop_cycles=0", name=edge)
    assert found["noc"] - near.get("noc", 0) == 3 * 7
    assert found["dependency"] == 50


def test_what_is_documented_is_tested() -> None:
    """The table of docs/simulate.md names tests that there are."""
    table = DOCS.read_text().split("<!-- audit -->")[1].split("<!-- /audit -->")[0]
    named = re.findall(r"`(tests/[\w/]+\.(?:py|cpp))::(\w+)`", table)
    assert len(named) > 20
    root = DOCS.parents[1]
    for path, name in named:
        assert re.search(rf"\b{name}\b", (root / path).read_text()), f"{path}::{name}"

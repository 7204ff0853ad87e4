"""Sweeps over machines: every combination once, the front, what cannot run, and files."""

from __future__ import annotations

import csv
import io
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest

import npusim
import npusim.simulate.sweep as module
from npusim.errors import Error, ShapeError, TargetConstraintError
from npusim.simulate.sweep import OBJECTIVES, Row, Sweep, _marked, sweep
from npusim.targets import override

from .nets import net, rows

SETTINGS = {"mxu.rows": ["8", "32"], "dram.gb_per_s": ["5", "50"]}


def test_every_machine_is_simulated() -> None:
    found = sweep(net(), SETTINGS, mode="loose")
    assert [tuple(row.settings.values()) for row in found.rows] == list(product(*SETTINGS.values()))
    for row in found.rows:
        alone = npusim.simulate(
            net(), mode="loose", overrides=[f"{k}={v}" for k, v in row.settings.items()]
        )
        assert row.objectives["seconds"] == alone.seconds and row.stalls == alone.stalls
        assert alone.energy is not None and row.objectives["energy_j"] == alone.energy["total"]
        assert row.bound == max(alone.stalls, key=alone.stalls.__getitem__) and row.why == ""
        assert row.objectives["multipliers"] == int(row.settings["mxu.rows"]) * 32
        assert row.objectives["dram_bytes_per_second"] == 1e9 * float(row.settings["dram.gb_per_s"])
    assert (found.method, found.target) == ("forward", "npu-edge-32x32")


def test_processes_find_the_same() -> None:
    calls: list[tuple[object, ...]] = []
    many = sweep(net(), SETTINGS, jobs=2, progress=lambda *call: calls.append(call))
    assert many == sweep(net(), SETTINGS)
    assert calls == [("simulating", done, 4) for done in (1, 2, 3, 4)]


class Stop(BaseException):
    """What Ctrl-C raises, or the system."""


def stopped(journal: Path, after: int, jobs: int = 1) -> None:
    """Sweeps, and stops after some rows."""

    def tell(stage: str, done: int, total: int) -> None:
        if done == after:
            raise Stop

    with pytest.raises(Stop):
        sweep(net(), SETTINGS, journal=journal, progress=tell, jobs=jobs)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_goes_on_where_it_was_stopped(tmp_path: Path, jobs: int) -> None:
    journal = tmp_path / "sweep.csv.part"
    stopped(journal, after=1, jobs=jobs)
    assert len(journal.read_text().splitlines()) == 2
    stopped(journal, after=3)
    journal.write_text(journal.read_text() + '{"settings": {"mxu')  # killed while it wrote
    simulated = []
    found = sweep(
        net(),
        SETTINGS,
        journal=journal,
        progress=lambda *told: simulated.append(told[1]),
        jobs=jobs,
    )
    assert found == sweep(net(), SETTINGS) and simulated == [1, 2, 3, 4]
    assert not journal.exists()


def test_known_rows_are_not_simulated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "part"
    stopped(journal, after=4)
    monkeypatch.setattr(module, "run", None)  # nothing is left to do
    assert len(sweep(net(), SETTINGS, journal=journal).rows) == 4


def test_rows_of_another_sweep_are_refused(tmp_path: Path) -> None:
    journal = tmp_path / "part"
    stopped(journal, after=2)
    before = journal.read_bytes()
    other = override(npusim.TargetConfig.named("npu-edge-32x32"), ["acc.kib=9"])
    for settings, given in (
        ({**SETTINGS, "mxu.rows": ["8", "16"]}, {}),
        (SETTINGS, {"mode": "loose"}),
        (
            SETTINGS,
            {"target": other},
        ),
    ):
        with pytest.raises(Error, match="another sweep"):
            sweep(net(), settings, journal=journal, **given)  # type: ignore[arg-type]
    assert journal.read_bytes() == before
    for text, why in (("a,b\n", "damaged"), ("[]\n", "no rows"), ('{"x": 1}\n', "no rows"),
                      (before.decode() + '{"x": 1}\n', "damaged")):  # fmt: skip
        journal.write_text(text)
        with pytest.raises(Error, match=why):
            sweep(net(), SETTINGS, journal=journal)
        assert journal.read_text() == text
    journal.write_bytes(b"\xff\n")
    with pytest.raises(Error, match="no text"):
        sweep(net(), SETTINGS, journal=journal)


def drawn(points: list[tuple[float, float] | None]) -> list[bool]:
    """Returns which points of (seconds, joules) are marked; None cannot run."""
    given = [
        Row({}, {}, why="no")
        if point is None
        else Row({}, dict(zip(("seconds", "energy_j"), point, strict=True)))
        for point in points
    ]
    return [row.pareto for row in _marked(given, ("seconds", "energy_j"))]


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([(1, 3), (2, 2), (3, 1), (3, 3)], [True, True, True, False]),
        ([(1, 1), (1, 1)], [True, True]),  # equals do not beat each other
        ([(1, 2), (1, 1), (2, 1)], [False, True, False]),
        ([None, (9, 9)], [False, True]),
        ([(0, 0)], [True]),
    ],
)
def test_the_front(points: list[tuple[float, float] | None], front: list[bool]) -> None:
    assert drawn(points) == front


def test_the_front_is_of_what_is_asked() -> None:
    slow, *_, fast = sweep(net(), SETTINGS, pareto=["seconds"]).rows
    assert fast.pareto and not slow.pareto
    cheap, *_, dear = sweep(net(), SETTINGS, pareto=["multipliers", "dram_bytes_per_second"]).rows
    assert cheap.pareto and not dear.pareto


def test_what_cannot_run_is_a_row_that_says_so() -> None:
    values = {"dram.capacity_mib": ["0.03125", "64"], "mxu.rows": ["0", "16"]}
    small = override(npusim.TargetConfig.named("npu-edge-32x32"), ["sram.l1.kib=32"])
    found = sweep(net(), values, small)
    whys = [row.why for row in found.rows]
    assert "at least 1" in whys[0] and "too many" in whys[1] and "at least 1" in whys[2]
    assert whys[3] == "" and [row.pareto for row in found.rows] == [False, False, False, True]
    table = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["pareto"] for row in table] == ["", "", "", "yes"]
    assert [row["why not"] for row in table] == whys and table[1]["seconds"] == ""
    assert ElementTree.fromstring(found.to_svg()) is not None


def test_a_device_of_a_roofline_has_no_energy() -> None:
    found = sweep(net("cpu"), {"roofline.memory.l2.giga_bytes_per_second": ["0.1", "100"]})
    slow, fast = found.rows
    assert slow.objectives["energy_j"] is None and slow.cycles is None
    assert slow.objectives["seconds"] > fast.objectives["seconds"]  # type: ignore[operator]
    assert fast.pareto and not slow.pareto and "dram_bytes_per_second" in found.to_svg()


def test_tables_and_charts() -> None:
    found = sweep(net(), SETTINGS)
    table = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert list(table[0])[:7] == [*SETTINGS, *OBJECTIVES]
    points = ElementTree.fromstring(found.to_svg()).findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(points) == 4
    titles = {point[0].text for point in points}
    assert "mxu.rows=8, dram.gb_per_s=5" in titles
    hostile = Sweep("<b>", "&", "t", ("seconds",), (Row({"=x": "</svg>"}, {}, why="@a\n"),))
    assert ElementTree.fromstring(hostile.to_svg()) is not None
    assert hostile.to_csv().startswith("'=x,") and "'@a" in hostile.to_csv()


def test_wrong_sweeps_are_refused() -> None:
    for settings, why in (
        ({}, "needs settings"),
        ({"mxu.rows": []}, "no values"),
        ({"mxu.rows": ["8", "8"]}, "same value twice"),
        ({"mxu.rows": [str(i) for i in range(101)], "mxu.cols": [str(i) for i in range(100)]},
         "10,100 combinations"),
    ):  # fmt: skip
        with pytest.raises(Error, match=why):
            sweep(net(), settings)
    with pytest.raises(TargetConstraintError, match="unknown key 'nothing'"):
        sweep(net(), {"nothing": ["1"], "mxu.rows": ["8"]})
    with pytest.raises(Error, match="no objective 'cost'"):
        sweep(net(), SETTINGS, pareto=["cost"])
    with pytest.raises(Error, match="0 processes"):
        sweep(net(), SETTINGS, jobs=0)
    with pytest.raises(ShapeError):
        sweep(rows(), {"mxu.rows": ["8"]}, sizes={"batch": 0})
    with pytest.raises(Error, match="no method 'x'"):
        sweep(net(), SETTINGS, method="x")

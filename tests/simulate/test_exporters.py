"""What is made from a report: trace, table, charts; names are text in each, and numbers add up."""

from __future__ import annotations

import copy
import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import npusim
from npusim.errors import Error
from npusim.pictures.chart import Axis, number
from npusim.simulate.csv_table import COLUMNS, to_csv, to_layers_csv
from npusim.simulate.gantt import LETTERS, to_gantt
from npusim.simulate.perfetto import to_trace
from npusim.simulate.saved import REPORT_CAUSES, check_report, read_report
from npusim.simulate.simulation import FILES
from npusim.simulate.svg import to_roofline_svg, to_timeline_svg

from .nets import cut, net
from .test_page import report

NAMES = ("</script>", 'a,b\n"c"\r\n\'d', "=1+1", "@x", "\0\x1b[2J", "\u2028", "-{{x}}&amp;", "é")
SVG = "{http://www.w3.org/2000/svg}"


def empty() -> dict[str, Any]:
    """Returns a report of a program without commands."""
    return {
        **report(commands=0),
        "seconds": 0.0,
        "cycles": None,
        "energy": None,
        "memories": [],
        "peaks": {"ops_per_second": 0.0, "bytes_per_second": 0.0},
    }


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """Returns the report of a small net."""
    return npusim.simulate(net()).report


# ---- reading


def test_a_report_is_read_back(tmp_path: Path, real: dict[str, Any]) -> None:
    file = tmp_path / "report.json"
    for data in (real, report(), empty(), npusim.simulate(net("cpu")).report):
        file.write_text(json.dumps(data))
        assert read_report(file) == data


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("schema",), "npusim-simulation/2", "its schema is 'npusim-simulation/2'"),
        (("schema",), None, "its schema is None"),
        (("seconds",), -1, "'seconds' of it"),
        (("seconds",), True, "'seconds' of it"),
        (("cycles",), "1", "'cycles' of it"),
        (("stalls", "dram"), None, "'dram' of stalls"),
        (("energy", "mac"), "x", "'mac' of energy"),
        (("peaks",), [], "peaks is no object"),
        (("memories", 0, "occupancy"), [[0]], r"'occupancy' of memories\[0\]"),
        (("layers",), {}, "no list of layers"),
        (("layers", 1, "index"), -1, r"'index' of layers\[1\]"),
        (("layers", 1, "node"), 3, r"'node' of layers\[1\]"),
        (("layers", 1, "stalls", "bank"), "", r"'bank' of layers\[1\].stalls"),
        (("timeline", 0, "layer"), 99, r"'layer' of timeline\[0\]"),
        (("timeline", 0, "lane"), None, r"'lane' of timeline\[0\]"),
        (("timeline", 0, "busy_s"), 1.0, r"'busy_s' of timeline\[0\]"),
    ],
)
def test_what_is_no_report_is_refused(path: tuple[Any, ...], value: object, why: str) -> None:
    data: Any = copy.deepcopy(report())
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(Error, match=why):
        check_report(data)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"schema": "npusim-simulation/1", "seconds": NaN}', "[" * 9999],
)
def test_damaged_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    with pytest.raises(Error, match=r"report.json is (not JSON|no report)"):
        read_report(file)
    with pytest.raises(Error, match="Cannot read"):
        read_report(tmp_path)


@pytest.mark.parametrize("target", ["npu-edge-32x32", "cpu"])
def test_plans_have_reports_as_programs_do(target: str) -> None:
    data = npusim.simulate(cut(target)).report
    assert check_report(json.loads(json.dumps(data)))["layers"] == data["layers"]
    texts = {name: make(data) for name, make in FILES.items()}
    assert len(rows_of(texts["layers.csv"])) == len(data["layers"])
    assert ElementTree.fromstring(texts["timeline.svg"]).tag == f"{SVG}svg"
    assert "|" in to_gantt(data) and json.loads(texts["timeline.json"])["traceEvents"]


# ---- Perfetto


def test_the_trace_has_lanes_and_counters(real: dict[str, Any]) -> None:
    trace = json.loads(to_trace(real))
    events = trace["traceEvents"]
    threads = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    lanes = {event["lane"] for event in real["timeline"]}
    assert set(threads) == {"commands", *lanes} and len(set(threads.values())) == len(threads)
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == len(real["layers"]) + len(real["timeline"])
    for lane in lanes:
        held = [e for e in spans if e["tid"] == threads[lane]]
        seconds = sum(e["seconds"] for e in real["timeline"] if e["lane"] == lane)
        assert sum(e["dur"] for e in held) == pytest.approx(1e6 * seconds)
    counted = [e for e in events if e["ph"] == "C" and e["name"] == "due to"]
    assert [e["ts"] for e in counted] == sorted(e["ts"] for e in counted)
    for event in counted[:-1]:
        assert set(event["args"]) == set(REPORT_CAUSES)
        assert sum(event["args"].values()) == pytest.approx(1)
    assert not any(counted[-1]["args"].values())
    memories = {e["name"] for e in events if e["ph"] == "C"} - {"due to", "DRAM, GB/s"}
    assert memories == {"l1, bytes in use", "dram, bytes in use"}


@pytest.mark.parametrize("call_us", [0, 10])
def test_shares_weighted_by_time_are_the_stalls(call_us: int) -> None:
    """A counter holds until the next: its integral is what the run is due to."""
    real = npusim.simulate(net(), overrides=[f"dispatch.call_us={call_us}"]).report
    events = [e for e in json.loads(to_trace(real))["traceEvents"] if e["name"] == "due to"]
    for cause in REPORT_CAUSES:
        held = itertools.pairwise(events)
        found = sum(a["args"][cause] * (b["ts"] - a["ts"]) for a, b in held)
        assert found == pytest.approx(1e6 * real["stalls"][cause], rel=1e-6, abs=1e-9)


# ---- CSV


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_the_table_has_a_row_for_each_command(real: dict[str, Any]) -> None:
    rows = rows_of(to_layers_csv(real))
    assert list(rows[0]) == list(COLUMNS) and len(rows) == len(real["layers"])
    for row, layer in zip(rows, real["layers"], strict=True):
        assert (row["Name"], int(row["Command"])) == (layer["node"], layer["index"])
        assert float(row["Op Cycles"]) == layer["cycles"]
        assert float(row["Util%"]) == pytest.approx(100 * layer["utilization"])
        due = sum(float(row[f"Due to {cause} s"]) for cause in REPORT_CAUSES)
        assert due == pytest.approx(float(row["Seconds"]))
        assert 0 <= float(row["Peak%"]) <= 100
        clock = real["cycles"] / real["seconds"]
        alone = layer["dram_bytes"] / real["peaks"]["bytes_per_second"] * clock
        assert float(row["DRAM AC"]) == pytest.approx(alone)
    assert max(float(row["Peak%"]) for row in rows) == 100
    assert sum(float(row["Network%"]) for row in rows) == pytest.approx(100, abs=0.5)


def test_what_a_machine_has_not_is_an_empty_cell() -> None:
    rows = rows_of(to_layers_csv(npusim.simulate(net("cpu")).report))
    absent = ("SRAM Usage", "Peak%", "Op Cycles", "Network%", "DRAM AC", "Energy J")
    assert all(row[name] == "" for row in rows for name in absent)
    assert all(float(row["Seconds"]) > 0 for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_no_formulas(name: str) -> None:
    rows = rows_of(to_layers_csv(report(name)))
    assert len(rows) == 12
    for row in rows:
        help_text = row["What would help"]
        assert help_text.lstrip("'") == name.replace("\0", "\ufffd").lstrip("'")
        assert not help_text.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert to_csv(["=a"], [["  =b", -1.5, None]]) == "'=a\n'  =b,-1.5,\n"


# ---- Gantt


def test_the_chart_is_of_the_width_that_is_asked(real: dict[str, Any]) -> None:
    for width in (40, 100, 333):
        lines = to_gantt(real, width).split("\n")
        drawn = [line for line in lines if line.endswith("|")]
        assert {len(line) for line in drawn} == {width}
        assert len(drawn) == 1 + len({event["lane"] for event in real["timeline"]})
        assert len(lines[0]) == width - 1
    assert len(to_gantt(real, 1).split("\n")[1]) < 40


def test_columns_show_who_works_and_why() -> None:
    """Command 0 takes the first third, due to compute, and the other two thirds are due to DRAM."""
    data = report(commands=2)
    data["layers"][1]["stalls"] = {**dict.fromkeys(REPORT_CAUSES, 0.0), "dram": 2e-6}
    data["timeline"] = [{**data["timeline"][0], "seconds": 1.5e-6}]
    lines = to_gantt(data, 30 + len("due to") + 3).split("\n")
    assert lines[0].split() == ["0", "1.5", "us", "3", "us"]
    assert lines[1] == f"due to |{'C' * 10}{'D' * 20}|"
    assert lines[2] == f"   mxu |{'#' * 15}{' ' * 15}|"
    short = to_gantt({**data, "timeline": [{**data["timeline"][0], "seconds": 1e-12}]})
    assert short.split("\n")[2].startswith("   mxu |. ")  # what works at all is seen
    half = [{**event, "busy_s": 0.5 * event["seconds"], "count": 9} for event in data["timeline"]]
    lines = to_gantt({**data, "timeline": half}, 30 + len("due to") + 3).split("\n")
    assert lines[2] == f"   mxu |{'=' * 15}{' ' * 15}|"
    assert "1,234 more" in to_gantt({**data, "timeline_dropped": 1234})


def test_charts_of_characters_hold_no_others() -> None:
    assert set(LETTERS) == set(REPORT_CAUSES)
    data = report("\x1b[2J")
    data["timeline"] = [{**event, "lane": "\x1b[31m\n"} for event in data["timeline"]]
    assert to_gantt(data).isascii() and "\x1b" not in to_gantt(data)
    assert to_gantt(empty()) == "nothing runs"


# ---- SVG


@pytest.mark.parametrize("name", NAMES)
def test_images_are_xml_whatever_names_are(name: str) -> None:
    for make in (to_timeline_svg, to_roofline_svg):
        tree = ElementTree.fromstring(make(report(name)))
        assert tree.tag == f"{SVG}svg" and tree.find(f".//{SVG}script") is None


def test_images_show_every_command(real: dict[str, Any]) -> None:
    points = ElementTree.fromstring(to_roofline_svg(real)).findall(f".//{SVG}circle")
    moving = [la for la in real["layers"] if la["operations"] and la["dram_bytes"]]
    assert len(points) == len(moving) > 0
    for point in points:  # under the roof, within the picture
        assert 0 < float(point.get("cx", "-1")) < 760 and 0 < float(point.get("cy", "-1")) < 420
    lanes = {event["lane"] for event in real["timeline"]}
    texts = {e.text for e in ElementTree.fromstring(to_timeline_svg(real)).iter(f"{SVG}text")}
    assert lanes <= texts


def test_joined_spans_are_shaded() -> None:
    data = report(commands=1)
    data["timeline"][0] |= {"busy_s": 0.2 * data["timeline"][0]["seconds"], "count": 7}
    boxes = ElementTree.fromstring(to_timeline_svg(data)).findall(f"{SVG}rect")
    assert [box.get("fill-opacity") for box in boxes].count("0.40") == 1
    (span,) = (e for e in json.loads(to_trace(data))["traceEvents"] if e.get("cat") == "mxu")
    assert span["args"]["works"] == pytest.approx(0.2) and span["args"]["spans"] == 7


def test_nothing_is_drawn_of_nothing() -> None:
    for name, make in FILES.items():
        text = make(empty())
        assert text.endswith("\n"), name
        assert "nan" not in text.lower().replace("nanos", ""), name


@pytest.mark.parametrize("name", ["report.json", "report.html", "timeline.json"])
def test_numbers_that_json_has_not_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        FILES[name]({**report(), "seconds": float("nan")})


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0, 7e-6, False), (0, 1, False), (1e-9, 1e12, True), (5, 5, True)]
)
def test_ticks_are_round_and_within(low: float, high: float, log: bool) -> None:
    axis = Axis.over("", [low or high, high], log=log)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 11
    assert all(-1e-9 <= axis.at(tick) <= 1 + 1e-9 for tick in ticks)
    assert axis.at(axis.low) == 0 and axis.at(axis.high) == 1


def test_numbers_have_a_prefix() -> None:
    shown = [number(v) for v in (0, 1500, 2e-6, 1, 999, 1e12, 0.02)]
    assert shown == ["0", "1.5k", "2u", "1", "999", "1T", "20m"]

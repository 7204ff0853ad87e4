"""The page of a simulation: what it holds, and what a browser makes of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from npusim.simulate.page import to_html

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
STALLS = ("compute", "vector", "dma", "dram", "bank", "noc", "dispatch", "dependency")


def report(name: str = "net", commands: int = 12) -> dict[str, Any]:
    """Returns a report of commands that take 1, 2, 3 … microseconds."""
    layers, timeline, start = [], [], 0.0
    for index in range(commands):
        seconds = 1e-6 * (index + 1)
        stalls = {**dict.fromkeys(STALLS, 0.0), STALLS[index % len(STALLS)]: seconds}
        layers.append(
            {
                "index": index, "node": f"{name}_{index}", "op": "aten.linear", "kernel": "linear",
                "module": f"layers.{index}.fc", "source": "/a/path/model.py:7", "start_s": start,
                "seconds": seconds, "cycles": 1000 * (index + 1), "stalls": stalls,
                "operations": 1000 * index, "dram_bytes": 64, "sram_bytes": 64,
                "utilization": 0.5, "bound": STALLS[index % len(STALLS)], "energy_j": 1e-6,
                "formula": f"{name}: 2 < 3 & 4", "advice": f"{name}",
            }
        )  # fmt: skip
        event = {"lane": "mxu", "layer": index, "name": name, "start_s": start, "seconds": seconds}
        timeline.append(event)
        start += seconds
    total = {key: sum(layer["stalls"][key] for layer in layers) for key in STALLS}
    return {
        "schema": "npusim-simulation/1", "model": name, "method": "forward", "target": "edge",
        "mode": "tight", "seconds": start, "cycles": 77999.6, "stalls": total,
        "energy": {"mac": 1e-6, "static": 1e-6, "total": 2e-6},
        "peaks": {"ops_per_second": 1e12, "bytes_per_second": 1e11},
        "memories": [{"name": "l1", "bytes": 1024, "peak_bytes": 512, "occupancy": [[0.0, 512]]}],
        "layers": layers, "timeline": timeline,
    }  # fmt: skip


def test_the_page_carries_the_report_and_needs_no_network() -> None:
    page = to_html(report())
    found = re.search(r'<script id="report" type="application/json">(.*?)</script>', page, re.S)
    assert found is not None and json.loads(found[1]) == report()
    assert not re.search(r"(src|href)=", page) and "@import" not in page
    assert page.count("http") == page.count("http://www.w3.org/2000/svg")


@pytest.mark.parametrize("name", ["</script><b>bold", "{{script}}", "<!--", "a'b\"c&d", "\u2028"])
def test_names_are_text(name: str) -> None:
    page = to_html(report(name))
    assert page.count("</script>") == 2 and "<b>bold" not in page and page.count("<!--") == 0
    found = re.search(r'application/json">(.*?)</script>', page, re.S)
    assert found is not None and json.loads(found[1])["model"] == name


def test_numbers_that_json_has_not_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_html({**report(), "seconds": float("nan")})


def dom(page: str, folder: Path) -> str:
    """Returns the document as a browser leaves it."""
    file = folder / "report.html"
    file.write_text(page, "utf-8")
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder}/browser", "--virtual-time-budget=2000", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return re.sub(r"<script.*?</script>", "", done.stdout, flags=re.S)


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed that could draw the page")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    drawn = dom(to_html(report("<b>net</b>")), tmp_path)
    assert 'data-ready="true"' in drawn  # the script ran to its end
    assert "&lt;b&gt;net&lt;/b&gt;" in drawn and "<b>net" not in drawn
    stalls = re.search(r'<section id="stalls">.*?</section>', drawn, re.S)
    assert stalls is not None and stalls[0].count("<i ") == len(STALLS)
    every = re.search(r'<section id="all">.*?</section>', drawn, re.S)
    assert every is not None and every[0].count("<tr data-layer") == 12
    ten = re.search(r'<section id="matters">.*?</section>', drawn, re.S)
    assert ten is not None
    assert re.findall(r'data-layer="(\d+)"', ten[0]) == [str(11 - i) for i in range(10)]
    assert drawn.count("<circle") == 11  # the first command computes nothing
    assert every[0].count('title="/a/path/model.py:7">model.py:7<') == 12
    assert "78,000 cycles" in drawn  # of 77,999.6
    assert "layers.*.fc" in drawn and "at most 512 B of 1.00 KiB" in drawn


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed that could draw the page")
def test_a_browser_draws_what_is_missing_as_missing(tmp_path: Path) -> None:
    bare = {**report(commands=1), "energy": None, "memories": [], "cycles": None}
    bare = {**bare, "peaks": {"ops_per_second": 0, "bytes_per_second": 0}}
    drawn = dom(to_html(bare), tmp_path)
    assert 'data-ready="true"' in drawn and " cycles" not in drawn
    for section in ("energy", "memories", "roofline"):
        assert re.search(rf'<section id="{section}" hidden', drawn)

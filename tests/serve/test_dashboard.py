"""The dashboard for Grafana shows what /metrics tells: names that exist, and all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra serve")

from npusim.serve.generation import Record
from npusim.serve.metrics import _STATS, Metrics, Outcome

FILE = Path(__file__).resolve().parents[2] / "examples" / "grafana" / "npusim.json"
DASHBOARD = json.loads(FILE.read_text("utf-8"))
NAME = re.compile(r"npusim:[a-z0-9_]+")


def told() -> set[str]:
    """Returns the names of the samples of a server that has answered a request."""
    metrics = Metrics(lambda: dict.fromkeys(_STATS, 1.0), "m")
    metrics.note_http("/v1/completions", 200)
    record = Record(first=1.0, gaps=[(0.1, 2)], finish_reasons=["stop"])
    metrics.note(Outcome.of(record, record.began + 1))
    return {m[0] for line in metrics.text().decode().splitlines() if (m := NAME.match(line))}


def shown() -> set[str]:
    return set(NAME.findall(json.dumps(DASHBOARD)))


def test_every_metric_of_the_dashboard_exists() -> None:
    assert shown() <= told()


def test_every_metric_is_shown() -> None:
    parts = ("_count", "_sum", "_created")  # of histograms and counters
    whole = {name for name in told() if not name.endswith(parts)}
    assert whole <= shown()


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    panels = DASHBOARD["panels"]
    assert len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}) == len(panels)
    assert len({p["id"] for p in panels}) == len(panels)
    assert all(p["description"] and p["fieldConfig"]["defaults"]["unit"] for p in panels)


def test_queries_take_the_variables_that_there_are() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(DASHBOARD)))
    assert used - {"__rate_interval", "__all"} <= variables

"""A simulation as one HTML page that needs no network: what `report.json` says, to look at.

The page carries the report as JSON and draws it in the browser: stalls, a timeline to move and zoom
in, the commands that matter, time by module, a roofline, memories and energy. Names come from
files: they become text, never markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from importlib import resources
from typing import Any


def to_html(report: Mapping[str, Any]) -> str:
    """Returns the page of a report, as `Simulation.report` gives it.

    Raises:
        ValueError: the report holds a number that JSON has not, such as NaN.
    """
    text = json.dumps(report, separators=(",", ":"), allow_nan=False)
    names = (report.get("model"), report.get("method"), report.get("target"))
    parts = {
        "title": escape(", ".join(str(name) for name in names if name)),
        "style": _asset("page.css"),
        "script": _asset("page.js"),
        # Within a script element, text ends at "</", whatever JSON thinks of it.
        "report": text.replace("<", "\\u003c"),
    }
    # In one sweep: a name that looks like a placeholder stays a name.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return resources.files("npusim.simulate.page").joinpath(name).read_text("utf-8")

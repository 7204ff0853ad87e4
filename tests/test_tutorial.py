"""The tutorial runs from the first cell to the last, and shows what a notebook would show."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "tutorial" / "tutorial.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> object:
    """Runs a cell; returns the value of its last line where that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
    html = getattr(value, "_repr_html_", None)
    assert len(html() if html is not None else repr(value)) < 100_000
    return value


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 10
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [run_cell("".join(cell["source"]), names) for cell in cells]
    assert all(not cell["outputs"] for cell in cells), "outputs are not kept in the repository"
    assert {"digits.html", "digits.npubin"} <= {path.name for path in tmp_path.iterdir()}
    differences = [value for value in shown if isinstance(value, float)]
    assert differences and max(differences) < 1e-4
    assert True in [flag for value in shown if isinstance(value, tuple) for flag in value]

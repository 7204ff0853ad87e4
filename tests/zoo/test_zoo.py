"""The zoo as docs/models.md says: some of every family, all of it with `--zoo`."""

from __future__ import annotations

import pytest
import torch

from tests.zoo import ENTRIES, table
from tests.zoo.measure import TOLERANCE, Row, largest_error, measure

# One of each family, one that draws random numbers, and one that cannot be extracted.
REPRESENTATIVES = (
    *("electra", "qwen3", "bart", "qwen2-moe", "mamba", "swin", "yolos", "segformer"),
    *("wav2vec2", "clip", "shufflenet_v2", "dgcnn", "reformer", "superpoint", "nanochat"),
    *("separator",),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "entry" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--zoo")
        metafunc.parametrize("entry", list(ENTRIES) if everything else REPRESENTATIVES)


def test_entry(entry: str) -> None:
    row = measure(ENTRIES[entry])
    assert table.outcome(row) == table.listed(table.PATH.read_text("utf-8"))[entry], row


def test_the_page_lists_every_entry() -> None:
    text = table.PATH.read_text("utf-8")
    assert list(table.listed(text)) == list(ENTRIES), "run python -m tests.zoo"


def test_the_goals_hold() -> None:
    outcomes = list(table.listed(table.PATH.read_text("utf-8")).values())
    accepted = len(outcomes) - outcomes.count(table.UNEXPORTABLE)
    assert outcomes.count(table.AGREES) >= 0.95 * accepted
    assert outcomes.count(table.DIFFERS) == 0


def test_a_row_of_each_outcome() -> None:
    rows = (
        Row("a", "F", nodes=4, native=4, error=1e-7),
        Row("b", "F", nodes=4, native=3, fallback=(("aten.histc.default", 1),), error=0.5),
        Row("c", "G", problem="it branches, at /x/site-packages/lib/file.py:3 (if a | b:)"),
        Row("d", "G", exportable=False, problem="no"),
    )
    page = table.render(rows)
    assert table.listed(page) == {
        "a": table.AGREES,
        "b": table.DIFFERS,
        "c": table.REFUSED,
        "d": table.UNEXPORTABLE,
    }
    assert "torch.export accepts 3. Of these, 1 (33.3 %) run and agree" in page
    assert "| 3 of 4 | 1 × aten.histc | 5.0e-01 |" in page
    assert "at lib/file.py:3 (if a \\| b:)" in page


def test_errors_that_no_tolerance_covers() -> None:
    x = torch.tensor([1.0, float("-inf"), float("nan")])
    assert largest_error([x.clone()], [x]) == 0.0
    assert largest_error([x + 0.5 * TOLERANCE], [x]) < TOLERANCE
    for wrong in (x.nan_to_num(), x.double(), x[:2], x[[2, 1, 0]]):
        assert largest_error([wrong], [x]) == float("inf")
    assert largest_error([], []) == float("inf")
    assert largest_error([torch.tensor([1, 3])], [torch.tensor([1, 2])]) == float("inf")

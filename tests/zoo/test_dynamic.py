"""Models with open batches and lengths, as docs/dynamic-models.md says: a few of them run here."""

from __future__ import annotations

import pytest
import torch

from tests.zoo import ENTRIES, dynamic, dynamic_table, table
from tests.zoo.dynamic import Row, measure, resized


@pytest.mark.parametrize("entry", ["bert-classifier", "qwen2", "marian"])
def test_entry(entry: str) -> None:
    row = measure(ENTRIES[entry])
    page = table.listed(dynamic_table.PATH.read_text("utf-8"))
    assert dynamic_table.outcome(row) == page[entry] == table.AGREES, row
    assert "batch" in row.sizes and "seq" in row.sizes and not row.problem


def test_the_page_lists_every_entry() -> None:
    text = dynamic_table.PATH.read_text("utf-8")
    assert list(table.listed(text)) == list(dynamic.NAMES), "run python -m tests.zoo --dynamic"
    assert table.DIFFERS not in table.listed(text).values()


def test_a_row_of_each_outcome() -> None:
    rows = (
        Row("a", "F", ("batch", "seq"), error=1e-7),
        Row("b", "F", ("batch",), error=0.5, problem="it branches, at /x/site-packages/l.py"),
        Row("c", "F", problem="no"),
        Row("d", "G", ("batch", "seq"), error=0.0, skipped=("batch 1, seq 1",)),
    )
    page = dynamic_table.render(rows)
    assert table.listed(page) == {
        "a": table.AGREES,
        "b": table.DIFFERS,
        "c": table.REFUSED,
        "d": table.AGREES,
    }
    assert "Of 4 models, 2 run and agree, 2 of these with batch and lengths open." in page
    assert "| b | differs | batch | it branches, at l.py | 5.0e-01 |" in page
    assert "| PyTorch refuses batch 1, seq 1 |" in page


def test_inputs_of_other_sizes_keep_their_kind() -> None:
    ids, mask = torch.tensor([[7, 8, 9]]), torch.tensor([[1, 1, 0]])
    given = resized({"input_ids": ids, "attention_mask": mask}, {"batch": 2, "seq": 4})
    assert given["input_ids"].tolist() == [[7, 8, 9, 7], [7, 7, 8, 9]]
    assert given["attention_mask"].tolist() == [[1, 1, 0, 1]] * 2

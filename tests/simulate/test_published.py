"""Numbers that others publish, with npusim's beside them; docs/simulate.md has the same table."""

from __future__ import annotations

import pytest

from tests.simulate.documented import documented
from tests.simulate.published import Row, rows, table

ROWS = list(rows())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.group.name}: {row.what}")
def test_row(row: Row) -> None:
    if row.within == 0:
        assert row.found == row.published
    assert abs(row.off) <= row.within


def test_few_rows_miss_their_goal() -> None:
    """Those that do are known, and a row is given no more room than that takes."""
    missing = [row for row in ROWS if abs(row.off) > max(row.group.goal, 1e-5)]
    assert len(ROWS) == 74 and len(missing) == 4
    assert all(row.within > row.group.goal for row in missing)
    assert all(row.within <= max(row.group.goal, 1e-5) for row in ROWS if row not in missing)


def test_the_table_is_documented(request: pytest.FixtureRequest) -> None:
    documented("published", table(ROWS), request.config.getoption("--update-golden"))

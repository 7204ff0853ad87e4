"""What is left out of quick runs is cases alone, never a kind of them."""

from __future__ import annotations

import pytest

from tests.softmetal.conftest import one_of_every


@pytest.mark.parametrize("size", [1, 2, 4, 5])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9, 100])
def test_each_block_has_one_case(size: int, count: int) -> None:
    for turn in range(5):
        kept = one_of_every(size, count, turn)
        assert [case // size for case in kept] == list(range(-(-count // size)))
        assert all(0 <= case < count for case in kept)


@pytest.mark.parametrize("entries", [2, 4])
def test_lists_of_few_entries_take_turns(entries: int) -> None:
    within = one_of_every(4, 16, 0)  # of one test
    assert {case % entries for case in within} == set(range(entries))
    apart = [one_of_every(4, entries, turn)[0] for turn in range(4)]  # of tests of few cases
    assert set(apart) == set(range(entries))


def test_all_cases_are_run_where_all_are_asked_for() -> None:
    assert one_of_every(1, 7, 3) == list(range(7))

"""The soak of docs/reliability.md, small: see tests/soak."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from tests.soak import inside, verbs
from tests.soak.__main__ import FLAT_KIB

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


Result = TypeVar("Result")


def alone(work: Callable[..., Result], *args: object) -> Result:
    """Returns what a new process returns: what an old one has freed would hide growth."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(work, *args).result()


def grown(scale: float, name: str) -> list[tuple[str, int, int]]:
    return list(inside.run(scale, name))


def kept() -> int:
    """Returns the growth by 18 MiB that are kept."""
    pieces: list[bytes] = []
    return inside.growth_kib(20, lambda _: pieces.append(bytes(range(256)) * 4096))


@pytest.mark.parametrize("name", [name for name in inside.SECTIONS if "forked beside" not in name])
def test_memory_stays_flat(name: str) -> None:
    for _, count, growth in alone(grown, 0.002, name):
        assert count >= 20
        assert growth < FLAT_KIB


@pytest.mark.parametrize(
    "wanted", ["clients of two front ends that vanish", pytest.param("", marks=pytest.mark.long)]
)
def test_a_server_stays_flat(wanted: str) -> None:
    for package in ("starlette", "uvicorn", "prometheus_client", "transformers"):
        pytest.importorskip(package, reason="needs the extras serve and llm")
    from tests.soak import served

    sections = list(served.run(0.002, wanted))
    assert len(sections) == sum(wanted in name for name in served.SECTIONS) > 0
    for name, _, growth in sections:
        assert growth < FLAT_KIB, name


def test_growth_is_seen() -> None:
    assert alone(kept) > FLAT_KIB


def test_a_verb_without_room_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    found = {}
    for condition in ("as it should be", "no room"):
        for name, count, problems in verbs.run(0, condition, tmp_path):
            found[name] = (count, problems)
    assert found == {"as it should be": (2, []), "no room for a file": (2, [])}

"""The fuzzer of the C interface calls every function there is, and so do its tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _declared() -> set[str]:
    header = (ROOT / "include/npusim/npusim.h").read_text()
    return set(re.findall(r"^NPUSIM_API [^;(]*?\b(npusim_\w+)\(", header, re.MULTILINE))


def _not_called(*sources: str) -> set[str]:
    text = "".join((ROOT / source).read_text() for source in sources)
    return {name for name in _declared() if f"{name}(" not in text}


def test_the_fuzzer_calls_every_function() -> None:
    assert len(_declared()) > 70
    assert _not_called("cpp/fuzz/c_api_fuzzer.cpp") == set()


def test_the_tests_call_every_function() -> None:
    """With what they compute or say: the fuzzer only sees that nothing breaks."""
    tests = [f"tests/cpp/{name}" for name in ("c_api_case.h", "test_c_header.c")]
    cases = ("test_c_api", "test_c_api_facts", "test_c_api_engine")
    tests += [f"tests/cpp/{name}.cpp" for name in cases]
    assert _not_called(*tests) == set()

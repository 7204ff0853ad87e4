"""The generated header is the one the Python description generates now."""

from __future__ import annotations

from pathlib import Path

from npusim.abi.header import header

HEADER = Path(__file__).resolve().parents[1] / "kernels" / "shared" / "abi.h"


def test_abi_header_is_up_to_date() -> None:
    assert HEADER.read_text("utf-8") == header(), (
        "kernels/shared/abi.h is stale: python -m npusim.abi.header > kernels/shared/abi.h"
    )

"""npusim simulate: a product without a model."""

from __future__ import annotations

import pytest

from .conftest import Cli


def test_a_product_has_the_cycles_that_are_published(cli: Cli) -> None:
    outcome = cli("simulate", "--target", "scale-32-os", "--product", "256,256,128", "--json")
    facts = outcome.json
    assert outcome.code == 0 and facts["cycles"] == 10_176
    assert sum(facts["causes_cycles"].values()) == facts["simulated_cycles"]
    assert "10,176 cycles" in cli("simulate", "--target=scale-32-os", "--product=256,256,128").out


@pytest.mark.parametrize(
    "sizes", ["1,2", "0,1,1", "a,b,c", "1,-1,1", "1048577,1,1", "1.5,1,1", "9" * 5000 + ",1,1"]
)
def test_wrong_sizes_are_refused(cli: Cli, sizes: str) -> None:
    cli("simulate", "--target", "gemmini-8", f"--product={sizes}").refused("--product")


def test_wrong_machines_are_refused(cli: Cli) -> None:
    cli("simulate", "--target", "cpu", "--product", "1,1,1").refused("describes no machine")
    cli("simulate", "--target", "gemmini-8", "--product", "1,1,1", "--dtype", "float32").refused(
        "does not multiply float32"
    )

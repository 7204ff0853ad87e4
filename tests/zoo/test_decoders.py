"""Generating as docs/models.md says: one decoder of each kind of state, all with `--zoo`."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.zoo import decoder_table, table
from tests.zoo.decoder_models import NAMES
from tests.zoo.decoding import DTYPES, NEW, Row, measure
from tests.zoo.isolated import isolated

# Rows; a scan in blocks; one that is refused. With `--long` a scan step by step, a hybrid, a state
# of a form of its own, the text alone, experts.
REPRESENTATIVES = (("mpt", "float32"), ("mamba2", "float32"), ("xlm", "float32"))
LONG = (
    *(("mamba", "bfloat16"), ("jamba", "float32"), ("rwkv", "float32"), ("openai-gpt", "float32")),
    *(("qwen3_moe", "float32"), ("cpmant", "float32")),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "decoder" in metafunc.fixturenames:
        every = [(name, dtype) for name in NAMES for dtype in DTYPES]
        some = [*REPRESENTATIVES, *(pytest.param(row, marks=pytest.mark.long) for row in LONG)]
        everything = metafunc.config.getoption("--zoo")
        metafunc.parametrize("decoder", every if everything else some, ids="-".join)


def page() -> str:
    return table.PATH.read_text("utf-8")


def test_decoder(decoder: tuple[str, str]) -> None:
    row = measure(*decoder)
    assert decoder_table.outcome(row) == decoder_table.listed(page())[decoder[0]][decoder[1]], row


def test_the_page_lists_every_decoder() -> None:
    assert list(decoder_table.listed(page())) == list(NAMES), "run python -m tests.zoo --decoders"


def test_the_goals_hold() -> None:
    outcomes = decoder_table.listed(page()).values()
    for dtype in DTYPES:
        counts = Counter(words[dtype] for words in outcomes)
        measured = counts.total() - counts[decoder_table.NO_GENERATION]
        measured -= counts[decoder_table.NOT_RUN]
        assert counts[table.AGREES] >= 0.95 * measured
        assert counts[table.DIFFERS] == 0


def test_a_row_of_each_outcome() -> None:
    rows = [
        Row("a-b", "float32", state="rows", tokens=NEW, error=1e-7),
        Row("a-b", "bfloat16", state="rows", tokens=3, excused=True, error=1e-2),
        Row("c_d", "float32", state="rows", tokens=3, excused=False, error=1e-7),
        Row("c_d", "bfloat16", state="rows", tokens=NEW, error=0.5),
        Row("e", "float32", problem="it branches, at /x/site-packages/lib/file.py:3 (a | b)"),
        Row("g", "float32", state="rows", tokens=NEW, error=1e-7),
        Row("g", "bfloat16", state="rows", tokens=3, excused=True, error=0.3, bound=0.4),
        Row("h", "float32", state="rows", tokens=NEW, error=1e-7),
        Row("h", "bfloat16", state="rows", tokens=3, excused=True, error=0.4, bound=0.3),
        Row("f", "float32", generates=False, problem="no"),
        Row("f", "bfloat16", generates=False, problem="no"),
    ]
    text = decoder_table.put("# Models\n\n| a-b | refused | x |\n", decoder_table.render(rows, "5"))
    agrees, differs, refused = table.AGREES, table.DIFFERS, table.REFUSED
    nothing, not_run = decoder_table.NO_GENERATION, decoder_table.NOT_RUN
    assert decoder_table.listed(text) == {
        "a-b": {"float32": agrees, "bfloat16": agrees},
        "c_d": {"float32": differs, "bfloat16": differs},
        "e": {"float32": refused, "bfloat16": not_run},
        "g": {"float32": agrees, "bfloat16": agrees},
        "h": {"float32": agrees, "bfloat16": differs},
        "f": {"float32": nothing, "bfloat16": nothing},
    }
    assert "at lib/file.py:3 (a \\| b)" in text
    assert (
        "Of 6 architectures, transformers generates with 5 here; of these, 3 of 5 (60.0 %)" in text
    )
    assert table.listed(text) == {"a-b": "refused"}
    assert decoder_table.put(text, decoder_table.section(text)) == text


def _job(name: str) -> str:
    if name == "slow":
        time.sleep(60)
    if name == "dies":
        raise SystemExit(3)
    if name == "fails":
        raise ValueError("a  reason")
    return name.upper()


def test_measurements_that_end_badly_have_a_row() -> None:
    jobs = ["slow", "fails", "fine", "dies"]
    results = isolated(_job, jobs, workers=2, seconds=3.0, memory=1 << 40)
    assert {job: (result, why) for job, result, why in results} == {
        "slow": (None, "it took more than 3 s"),
        "fails": (None, "ValueError: a reason"),
        "fine": ("FINE", ""),
        "dies": (None, "the process died"),
    }

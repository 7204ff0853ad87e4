"""npusim bench --llm: a row for each context that fits, a picture, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import save_file

from tests.runtime import toy_language_model as toy
from tests.runtime.test_text import table_of

from .conftest import Cli


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_file({"table": table_of({})}, folder / "model.safetensors")
    toy.program().save(folder / "model.npubin")
    return folder


def test_a_row_for_each_context_that_fits(cli: Cli, folder: Path) -> None:
    command = ("bench", folder / "model.npubin", "--weights", folder, "--llm", "--runs", 1)
    data = cli(*command, "--contexts", "3,1,1000000", "--json").json
    assert [row["context"] for row in data["rows"]] == [1, 3]
    for row in data["rows"]:
        assert row["time_to_first_token_s"] > 0 and row["tokens_per_second"] > 0
        assert row["p10_s"] <= row["p90_s"]
    outcome = cli(*command, "--contexts", "1")
    assert outcome.code == 0 and "tokens/s" in outcome.out and "peak memory" in outcome.out


def test_draws(cli: Cli, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs the extra plot")
    command = ("bench", folder / "model.npubin", "--weights", folder, "--llm", "--runs", 1)
    outcome = cli(*command, "--contexts", "1,2", "--plot", tmp_path / "speed.png")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "speed.png").read_bytes()[:4] == b"\x89PNG"
    outcome = cli(*command, "--contexts", "1", "--plot", tmp_path / "speed.nonsense")
    assert outcome.code != 0 and "cannot be written" in outcome.err


@pytest.mark.parametrize("contexts", ["0", "a,b", ""])
def test_refuses_what_is_no_length(cli: Cli, folder: Path, contexts: str) -> None:
    outcome = cli("bench", folder / "model.npubin", "--llm", "--contexts", contexts)
    assert outcome.code == 2


def test_says_when_nothing_fits(cli: Cli, folder: Path) -> None:
    command = ("bench", folder / "model.npubin", "--weights", folder, "--llm")
    outcome = cli(*command, "--contexts", "1000000")
    assert outcome.code != 0 and "No length fits" in outcome.err

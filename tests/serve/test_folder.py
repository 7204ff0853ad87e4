"""From a model's folder to a program with the method `step`, and to a server, by one command."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.cli.language import LanguageOptions, open_to_serve
from npusim.errors import ExportError

from ..cli.conftest import Cli, cli  # noqa: F401
from .conftest import Running
from .model import VOCABULARY, save_tokenizer

SMALL: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 1}
SIZES = ("--page-tokens", 16, "--pages", 24, "--max-requests", 4, "--max-step-tokens", 40)


def save(model: Any, folder: Path) -> Path:
    folder.mkdir()
    model.eval().save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    import transformers as hf

    torch.manual_seed(0)
    config = hf.LlamaConfig(
        **SMALL, intermediate_size=96, num_attention_heads=4, max_position_embeddings=96
    )
    return save(hf.LlamaForCausalLM(config), tmp_path_factory.mktemp("of") / "llama")


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers as hf

    model = hf.MambaForCausalLM(hf.MambaConfig(**SMALL))
    return save(model, tmp_path_factory.mktemp("of") / "mamba")


def served(program: npusim.CompiledProgram) -> Any:
    facts: Any = program.metadata["language_model"]
    return facts["serve"]


def test_a_folder_is_compiled_with_steps(llama: Path, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    made = tmp_path / "made.npubin"
    outcome = cli("compile", llama, "-o", made, *SIZES, "--max-context", 64)
    assert outcome.code == 0, outcome.err
    facts = served(npusim.CompiledProgram.load(made))
    assert (facts["page_tokens"], facts["max_requests"], facts["max_step_tokens"]) == (16, 4, 40)


def test_a_folder_is_extracted_with_steps_and_without(
    llama: Path,
    cli: Cli,  # noqa: F811
    tmp_path: Path,
) -> None:
    graphs = tmp_path / "model.json"
    assert "step" in cli("extract", llama, "-o", graphs, "--serve", "--json").json["methods"]
    outcome = cli("compile", graphs)
    assert outcome.code == 0, outcome.err
    assert served(npusim.CompiledProgram.load(tmp_path / "model.npubin"))["page_tokens"] == 64
    assert "step" not in cli("extract", llama, "-o", graphs, "--json").json["methods"]


def test_options_of_language_models_are_refused_elsewhere(
    llama: Path,
    cli: Cli,  # noqa: F811
    tmp_path: Path,
) -> None:
    graph = tmp_path / "net.json"
    assert cli("extract", "npusim.demo.digits:network", "-o", graph).code == 0
    cli("compile", graph, "--serve", "--pages", 3).refused("--serve, --pages", "net.json")
    other = ("extract", "npusim.demo.digits:network", "-o", graph)
    cli(*other, "--max-context", 3).refused("--max-context", "npusim.demo.digits:network")
    cli("extract", llama, "-o", graph, "--dynamic", "x:0=b:3").refused("--dynamic")
    cli("compile", llama, "--weights", graph).refused("stay where they are")
    cli("compile", llama, "--page-tokens", 129).refused("129")


@pytest.mark.parametrize("quantize", [(), ("--quantize", "int8")])
def test_a_folder_is_served_by_one_command(
    llama: Path, tmp_path: Path, quantize: tuple[str, ...]
) -> None:
    kept = tmp_path / "kept.npubin"
    server = Running(llama, "--threads", 1, "--save", kept, *SIZES, *quantize)
    try:
        assert server.wait_for("ready", 300)["model"] == "llama"
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc)
        body = {"model": "llama", "prompt": "Hi", "max_tokens": 5, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = json.loads(connection.getresponse().read())
        assert answer["usage"]["completion_tokens"] == 5
        connection.close()
        assert server.stop() == 0
    finally:
        server.kill()
    assert served(npusim.CompiledProgram.load(kept))["max_requests"] == 4


def test_a_decoder_without_pages_is_served_by_sessions_and_says_so(mamba: Path) -> None:
    options = LanguageOptions(max_context=32)
    found = open_to_serve(mamba, None, options, None, None, lambda *_: None)
    assert found.weights == mamba
    assert found.remark is not None and "recurrent" in found.remark
    assert "step" not in [method.name for method in found.program.methods]


def test_sizes_of_steps_that_there_cannot_be_are_refused(mamba: Path) -> None:
    options = LanguageOptions(max_context=32, pages=4)
    with pytest.raises(ExportError, match="recurrent"):
        open_to_serve(mamba, None, options, None, None, lambda *_: None)


def test_a_program_takes_no_options_of_extraction(llama: Path, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    made = tmp_path / "made.npubin"
    assert cli("compile", llama, "-o", made).code == 0
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    base = ("batch", rows, made, "--weights", llama, "-o", tmp_path / "answers.jsonl")
    cli(*base, "--pages", 4).refused("--pages", "made.npubin")
    cli(*base, "--quantize", "int8").refused("--quantize", "one already")

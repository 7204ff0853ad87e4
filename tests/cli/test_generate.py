"""npusim generate: text and tokens as they are made, what is reported, interruption, refusals."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from npusim.language_model.tokenizer import Tokenizer
from tests.runtime import toy_language_model as toy
from tests.runtime.test_text import SPOKEN, save_tokenizer, table_of

from .conftest import Cli


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program, its weights and its tokenizer, that say a fixed text."""
    folder = tmp_path_factory.mktemp("model")
    tokens = [*Tokenizer(save_tokenizer(folder)).encode(SPOKEN), toy.EOS]
    successors = dict(itertools.pairwise(tokens))
    save_file({"table": table_of(successors)}, folder / "model.safetensors")
    toy.program().save(folder / "model.npubin")
    return folder


def test_text_goes_to_stdout_and_the_rest_to_stderr(cli: Cli, folder: Path) -> None:
    outcome = cli("generate", folder / "model.npubin", "--weights", folder, "--prompt", "h")
    assert outcome.code == 0, outcome.err
    assert outcome.out == SPOKEN[1:] + "\n"
    for words in ("14 tokens after 1", "first after", "tokens/s", "peak memory"):
        assert words in outcome.err


def test_json(cli: Cli, folder: Path) -> None:
    base = ("generate", folder / "model.npubin", "--weights", folder, "--json")
    data = cli(*base, "--prompt", "h", "--stop", ".").json
    assert data["ok"] and data["text"] == "😀é 世" and data["finish_reason"] == "stop"
    assert data["stats"]["prompt_tokens"] == 1 and data["peak_rss_bytes"] > 0
    data = cli(*base, "--prompt", "h", "--max-new-tokens", 4).json
    assert data["tokens"] == [1, 2, 3, 4] and data["finish_reason"] == "length"


def test_tokens_need_no_tokenizer(cli: Cli, folder: Path) -> None:
    weights = folder / "model.safetensors"
    (folder.parent / "alone").mkdir(exist_ok=True)
    alone = folder.parent / "alone" / "model.safetensors"
    alone.write_bytes(weights.read_bytes())
    outcome = cli(
        *("generate", folder / "model.npubin", "--weights", alone),
        *("--token-ids", "0,1", "--max-new-tokens", 3),
    )
    assert outcome.code == 0 and outcome.out.split() == ["2", "3", "4"]


def test_the_same_seed_says_the_same(cli: Cli, folder: Path) -> None:
    def say(seed: int) -> str:
        return cli(
            *("generate", folder / "model.npubin", "--weights", folder, "--prompt", "h"),
            *("--temperature", 8, "--top-k", 20, "--top-p", 0.99, "--seed", seed, "--ignore-eos"),
        ).out

    assert say(1) == say(1) != say(2)


def test_ctrl_c_keeps_what_was_generated(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npusim.cli import generate

    put, pieces = generate._put, []

    def interrupted(text: str) -> None:
        put(text)
        pieces.append(text)
        if len(pieces) == 3:
            raise KeyboardInterrupt

    base = ("generate", folder / "model.npubin", "--weights", folder, "--prompt", "h")
    monkeypatch.setattr(generate, "_put", interrupted)
    outcome = cli(*base)
    assert outcome.code == 130 and outcome.out == SPOKEN[1:4] + "\n"
    assert "tokens after 1" in outcome.err and "Traceback" not in outcome.err
    pieces.clear()
    outcome = cli(*base, "--json")
    assert outcome.code == 130
    assert outcome.json["finish_reason"] == "interrupted" and not outcome.json["ok"]


def test_control_characters_do_not_reach_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from npusim.cli.generate import _put

    _put("a\x1b[2Jb\n")
    assert capsys.readouterr().out == "a\N{REPLACEMENT CHARACTER}[2Jb\n"


def test_bad_input(cli: Cli, folder: Path, tmp_path: Path) -> None:
    program = folder / "model.npubin"
    base = ("generate", program, "--weights", folder)
    cli(*base).refused("--prompt", "--token-ids")
    cli(*base, "--prompt", "h", "--token-ids", "1").refused("either")
    cli(*base, "--token-ids", "1,x").refused("1,x", "commas")
    cli(*base, "--token-ids", "99").refused("Token 99")
    cli(*base, "--prompt", "h", "--top-p", "7").refused("top_p is 7")
    cli(*base, "--prompt", "h" * 30).refused("holds 24 tokens", "30 more")
    cli("generate", program, "--prompt", "h").refused("needs weights", "--weights")
    cli("generate", tmp_path / "none", "--prompt", "h").refused("no file")
    cli("generate", tmp_path, "--prompt", "h").refused("config.json")


def test_a_folder_of_transformers(cli: Cli, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=48,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "model", max_shard_size="8KB")
    assert (tmp_path / "model" / "model.safetensors.index.json").is_file()
    expected = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=6, do_sample=False)
    base = ("--token-ids", "5,6,7", "--max-new-tokens", 6)
    saved = tmp_path / "model.npubin"
    outcome = cli(
        "generate", tmp_path / "model", *base, "--prefill-chunk", 4, "--save", saved, "--json"
    )
    assert outcome.code == 0, outcome.err
    assert outcome.json["tokens"] == expected[0, 3:].tolist()
    again = cli("generate", saved, "--weights", tmp_path / "model", *base)
    assert [int(token) for token in again.out.split()] == expected[0, 3:].tolist()
    first, *_ = sorted((tmp_path / "model").glob("model-*.safetensors"))
    first.unlink()
    cli("generate", saved, "--weights", tmp_path / "model", *base).refused(
        "shards", first.name, "beside the index"
    )


def test_a_chat_and_a_conversation(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ("generate", folder / "model.npubin", "--weights", folder, "--max-new-tokens", 2)
    cli(*base, "--prompt", "h", "--chat").refused("no chat template")
    cli(*base, "--token-ids", "1", "--chat").refused("--token-ids")
    cli(*base, "--prompt", "h", "-i").refused("leave --prompt out")
    (tmp_path / "model").symlink_to(folder)
    for file in ("tokenizer.json", "model.safetensors"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    base = ("generate", folder / "model.npubin", "--weights", tmp_path, "--max-new-tokens", 2)
    assert cli(*base, "--prompt", "h", "--chat", "--json").json["tokens"] == [1, 2]
    monkeypatch.setattr("sys.stdin", io.StringIO("h\n\nh\n"))
    data = cli(*base, "-i", "--json").json
    assert [turn["prompt"] for turn in data["turns"]] == ["h", "h"]
    assert data["tokens"] == 4
    monkeypatch.setattr("sys.stdin", io.StringIO("\ud83d\nh\n"))
    outcome = cli(*base, "-i", "--json")
    assert "lone surrogate" in outcome.err, "one bad turn ends only itself"
    assert len(outcome.json["turns"]) == 1

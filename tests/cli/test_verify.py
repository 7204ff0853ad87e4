"""npusim verify: yes, no, and input that cannot be verified."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim
from npusim.abi.scalar import OPCODES
from tests.runtime.test_text import SPOKEN, save_tokenizer
from tests.verify.faults import plant

from .conftest import FACTORIES, Cli, Compiled


@pytest.mark.parametrize("factory", ["mlp", "two_inputs", "tied", "large_buffer"])
def test_a_faithful_model_passes(cli: Cli, factory: str) -> None:
    outcome = cli("verify", f"{FACTORIES}:{factory}", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["ok"] is True
    assert outcome.json["graph"]["ok"] is True
    assert outcome.json["program"]["ok"] is True


def test_the_text_names_every_output(cli: Cli) -> None:
    outcome = cli("verify", f"{FACTORIES}:two_inputs")
    assert outcome.code == 0
    assert "total" in outcome.out
    assert "largest" in outcome.out


def test_a_model_that_computes_something_else_is_a_no(cli: Cli) -> None:
    outcome = cli("verify", f"{FACTORIES}:unrepeatable", "--json")
    assert outcome.code == 1
    assert outcome.json["ok"] is False


def test_weights_can_come_from_a_checkpoint(cli: Cli, mlp: Compiled) -> None:
    source = f"{FACTORIES}:mlp"
    assert cli("verify", source, "--weights", mlp.weights).code == 0


def test_a_meta_model_needs_weights(cli: Cli) -> None:
    cli("verify", f"{FACTORIES}:meta_mlp").refused("meta device")


def test_bad_input_is_refused(cli: Cli, two_inputs: Compiled, tmp_path: Path) -> None:
    cli("verify", "nowhere").refused("MODULE:FACTORY")
    cli("verify", f"{FACTORIES}:unsupported").refused("linalg_inv_ex")
    cli("verify", f"{FACTORIES}:mlp", "--target", "abacus").refused("abacus")
    cli("verify", f"{FACTORIES}:mlp", "--weights", tmp_path / "none").refused("no file")
    cli("verify", f"{FACTORIES}:mlp", "--weights", two_inputs.weights).refused("0.weight")


def test_quant_measures_every_layer(cli: Cli) -> None:
    outcome = cli("verify", f"{FACTORIES}:wide_mlp", "--quant", "int4-g32", "--json")
    assert outcome.code == 0, outcome.err
    first, last = outcome.json["quantization"]["layers"]
    assert first["format"] == "int4-g32" and first["shape"] == [128, 96]
    assert 18 < first["weight_db"] < 30 and 15 < first["output_db"] < 30
    assert last["format"] == "int8" and last["output_db"] > 35  # it makes the output
    assert [first["name"], last["name"]] == ["0", "2"], "by the keys of the checkpoint"
    assert first["code_bits"] == 4 < first["bits"]
    text = cli("verify", f"{FACTORIES}:wide_mlp", "--quant", "int8").out
    assert "2 layers" in text and "dB" in text and "8 of code" in text


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (["fc.weight"], "fc"),
        (["l.0.q.weight", "l.0.k.weight", "l.0.v.weight"], "l.0.q+k+v"),
        (["a.weight", "b.c.weight"], "a+b.c"),
        (["a.b.weight", "a.b.weight"], "a.b+b"),
        (["add_6"], "add_6"),
    ],
)
def test_layers_are_named_by_their_weights(keys: list[str], name: str) -> None:
    from npusim.verify_quantization import _named

    assert _named(keys) == name


def test_quant_of_a_model_without_large_layers_is_a_no(cli: Cli) -> None:
    outcome = cli("verify", f"{FACTORIES}:mlp", "--quant", "int8")
    assert outcome.code == 1
    assert "no linear is large enough" in outcome.out


def test_text_is_scored_with_and_without_quantization(cli: Cli, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    # It knows fewer positions than are scored by default, and than a chunk has.
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=96,
    )  # fmt: skip
    folder = tmp_path / "model"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    save_tokenizer(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text(SPOKEN, "utf-8")
    options = ("--text", text, "--tokenizer", tmp_path, "--quant", "int8", "--json")
    outcome = cli("verify", folder, *options)
    assert outcome.code == 0, outcome.err
    found = outcome.json["perplexity"]
    assert found["before"] > 1
    assert found["after"] == pytest.approx(found["before"], rel=0.02)
    assert found["after"] != found["before"]
    assert found["tokens"] > 8
    outcome = cli("verify", folder, *options, "--max-context", 8)
    assert outcome.json["perplexity"]["tokens"] == 8


def test_what_quant_cannot_measure_is_refused(cli: Cli, tmp_path: Path) -> None:
    cli("verify", f"{FACTORIES}:wide_mlp", "--quant", "int3").refused("int3", "int4-g32")
    cli("verify", f"{FACTORIES}:mlp", "--quant", "int8", "--text", tmp_path).refused("folder")


def test_bisect_names_a_fault_in_a_stored_program(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    wrong, index = plant(
        npusim.CompiledProgram.load(mlp.program), "gemm", 0, act=OPCODES["tanh"][0]
    )
    path = tmp_path / "wrong.npubin"
    wrong.save(path)
    outcome = cli("verify", f"{FACTORIES}:mlp", "--program", path, "--bisect", "--json")
    assert outcome.code == 1, outcome.err
    first = outcome.json["program"]["first_divergence"]
    assert (first["command"], first["kernel"], first["cause"]) == (index, "gemm", "command")
    assert cli("verify", f"{FACTORIES}:mlp", "--program", mlp.program, "--bisect").code == 0
    cli("verify", f"{FACTORIES}:mlp", "--program", tmp_path / "none").refused("no file")


def test_fallback_runs_what_the_target_lacks_in_pytorch(cli: Cli) -> None:
    outcome = cli("verify", f"{FACTORIES}:unsupported", "--fallback", "--json")
    assert outcome.code == 0, outcome.err
    assert "partitions" in outcome.json["program"]["subject"]


def test_reduce_writes_what_reproduce_runs(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "repro"
    outcome = cli("reduce", f"{FACTORIES}:soft", "-o", folder, "--tolerance", "1e-12", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["failure"]["kind"] == "differs"
    assert outcome.json["nodes"] < outcome.json["of"]
    assert cli("reproduce", folder).code == 1
    cli("reduce", f"{FACTORIES}:mlp", "-o", tmp_path / "none").refused("does not fail")
    cli("reproduce", tmp_path).refused("graph.json")


def test_a_precision_is_reported_by_product_and_output(cli: Cli) -> None:
    outcome = cli("verify", f"{FACTORIES}:wide_mlp", "--precision", "bfloat16", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json["precision"]
    assert {layer["dtype"] for layer in found["layers"]} >= {"bfloat16"}
    assert 0 < found["outputs"][0]["max_rel"] < 0.02
    assert outcome.json["program"]["ok"]
    cli("verify", f"{FACTORIES}:mlp", "--precision", "half").refused("half", "bfloat16")

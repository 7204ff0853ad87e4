"""npusim extract: MODULE:FACTORY in, a graph and a checkpoint out."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim

from .conftest import FACTORIES, Cli


def test_writes_a_graph_without_weights(cli: Cli, tmp_path: Path) -> None:
    output = tmp_path / "model.json"
    outcome = cli("extract", f"{FACTORIES}:meta_mlp", "-o", output)
    assert outcome.code == 0
    graph = npusim.IR.load(output)
    assert graph.name == "meta_mlp"
    assert {weight.key for weight in graph.weights} == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_json_describes_the_graph(cli: Cli, tmp_path: Path) -> None:
    output = tmp_path / "model.json"
    facts = cli("extract", f"{FACTORIES}:mlp", "-o", output, "--name", "net", "--json").json
    assert facts["ok"] is True
    assert facts["output"] == str(output)
    assert facts["graph"]["name"] == "net"
    assert facts["graph"]["parameters"] == {"tensors": 4, "elements": 212, "bytes": 848}


def test_weights_hold_what_the_graph_names(cli: Cli, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    graph, weights = tmp_path / "g.json", tmp_path / "w.safetensors"
    assert cli("extract", f"{FACTORIES}:large_buffer", "-o", graph, "--weights", weights).code == 0
    tensors = load_file(weights)
    assert {name: t.shape for name, t in tensors.items()} == {"table": (512, 1024)}
    assert {weight.key for weight in npusim.IR.load(graph).weights} == {"table"}


def test_tied_weights_are_written_once(cli: Cli, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    graph, weights = tmp_path / "g.json", tmp_path / "w.safetensors"
    assert cli("extract", f"{FACTORIES}:tied", "-o", graph, "--weights", weights).code == 0
    assert sum(name.endswith("weight") for name in load_file(weights)) == 1


def test_what_a_factory_prints_stays_out_of_the_json(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("extract", f"{FACTORIES}:talkative", "-o", tmp_path / "g.json", "--json")
    assert outcome.json["ok"] is True
    assert "hello from the factory" in outcome.err


def test_a_module_is_found_from_the_working_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_models.py").write_text(FACTORIES.read_text("utf-8"), "utf-8")
    monkeypatch.chdir(tmp_path)
    assert cli("extract", "my_models:mlp", "-o", "g.json").code == 0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("no_colon", ["not MODULE:FACTORY"]),
        (":mlp", ["not MODULE:FACTORY"]),
        ("no_such_module_anywhere:mlp", ["no module 'no_such_module_anywhere'"]),
        ("missing.py:mlp", ["no file missing.py"]),
        (f"{FACTORIES}:nothing", ["no function 'nothing'", "mlp"]),
        (f"{FACTORIES}:not_a_function", ["no function 'not_a_function'"]),
        (f"{FACTORIES}:broken", ["RuntimeError: no checkpoint here", "factories.py:"]),
        (f"{FACTORIES}:only_a_model", ["returned Sequential", "(model, example_args)"]),
        (f"{FACTORIES}:data_dependent", ["error: "]),
    ],
)
def test_a_bad_factory_is_refused(cli: Cli, tmp_path: Path, spec: str, words: list[str]) -> None:
    cli("extract", spec, "-o", tmp_path / "g.json").refused(*words)
    assert list(tmp_path.iterdir()) == []


def test_a_module_that_does_not_parse_is_refused(cli: Cli, tmp_path: Path) -> None:
    source = tmp_path / "half.py"
    source.write_text("def model(:\n")
    cli("extract", f"{source}:model", "-o", tmp_path / "g.json").refused("SyntaxError")


def test_a_module_that_needs_another_one_says_which(cli: Cli, tmp_path: Path) -> None:
    source = tmp_path / "needy.py"
    source.write_text("import a_module_nobody_has\n")
    cli("extract", f"{source}:f", "-o", tmp_path / "g.json").refused("'a_module_nobody_has'")


def test_weights_of_a_meta_model_are_refused(cli: Cli, tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    outcome = cli(
        "extract", f"{FACTORIES}:meta_mlp", "-o", tmp_path / "g.json", "--weights", weights
    )
    outcome.refused("meta device")
    assert not weights.exists()


def test_an_unwritable_output_is_refused(cli: Cli, nowhere: Path) -> None:
    cli("extract", f"{FACTORIES}:mlp", "-o", nowhere).refused("does not exist")


def test_sizes_that_calls_choose(cli: Cli, tmp_path: Path) -> None:
    output = tmp_path / "g.json"
    dynamic = ("--dynamic", "x:0=batch:8", "--dynamic", "y:0=batch:8")
    assert cli("extract", f"{FACTORIES}:two_inputs", "-o", output, *dynamic).code == 0
    graph = npusim.IR.load(output)
    assert [str(v.type) for v in graph.inputs] == ["float32[batch, 8]", "float32[batch, 4]"]
    facts = cli("info", output, "--json").json
    assert facts["inputs"][0]["shape"] == ["batch", 8]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (("x:0",), "is not INPUT:AXIS=SIZE:MAX"),
        (("z:0=batch:8",), "the model's arguments are x, y"),
        (("x:0=batch:8", "y:0=batch:9"), "batch ranges from 1 to 9"),
        (("x:0=batch:9:8",), "batch ranges from 9 to 8"),
        (("x:0=batch:8",), "fix a size that dynamic_shapes leaves open"),
    ],
)
def test_sizes_that_are_malformed(
    cli: Cli, tmp_path: Path, items: tuple[str, ...], words: str
) -> None:
    options = [text for item in items for text in ("--dynamic", item)]
    outcome = cli("extract", f"{FACTORIES}:two_inputs", "-o", tmp_path / "g.json", *options)
    outcome.refused(words)

"""npusim compile: a graph in, a program out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import npusim
import npusim.codegen.cuda.nvrtc

from .conftest import FACTORIES, Cli, Compiled


def test_writes_a_program_and_says_what_is_in_it(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    output = tmp_path / "model.npubin"
    facts = cli("compile", mlp.graph, "-o", output, "--json").json
    program = npusim.CompiledProgram.load(output)
    assert facts["ok"] is True
    assert facts["bytes"] == output.stat().st_size
    assert facts["program"]["target"] == "cpu"
    assert facts["program"]["methods"][0]["commands"] == len(program.methods[0].commands)


def test_output_is_named_after_the_graph(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    graph = tmp_path / "net.json"
    graph.write_bytes(mlp.graph.read_bytes())
    outcome = cli("compile", graph)
    assert outcome.code == 0
    assert (tmp_path / "net.npubin").exists()
    assert "net.npubin" in outcome.out


def test_dump_passes_writes_the_graph_after_each(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    from npusim.passes import PIPELINE

    folder = tmp_path / "passes"
    code = cli("compile", mlp.graph, "-o", tmp_path / "m.npubin", "--dump-passes", folder).code
    assert code == 0
    assert len(list(folder.iterdir())) >= len(PIPELINE)


def test_an_unknown_quantization_names_those_that_exist(
    cli: Cli, mlp: Compiled, tmp_path: Path
) -> None:
    options = ("compile", mlp.graph, "-o", tmp_path / "m.npubin", "--quantize")
    assert cli(*options, "int4-g32").code == 0
    cli(*options, "int3").refused("int3", "int4-g128-asymmetric")


def test_every_unsupported_op_is_listed(cli: Cli, tmp_path: Path) -> None:
    graph = tmp_path / "g.json"
    assert cli("extract", f"{FACTORIES}:unsupported", "-o", graph).code == 0
    outcome = cli("compile", graph)
    outcome.refused("linalg_inv", "linalg_cholesky", "factories.py")
    assert not (tmp_path / "g.npubin").exists()


def test_an_unknown_target_is_refused(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    outcome = cli("compile", mlp.graph, "-o", tmp_path / "m.npubin", "--target", "abacus")
    outcome.refused("abacus", "cpu")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{}", '{"format": "npusim.ir", "version": [99, 0]}', "{", "[]"])
def test_a_file_that_is_no_graph_is_refused(cli: Cli, tmp_path: Path, text: str) -> None:
    graph = tmp_path / "g.json"
    graph.write_text(text)
    cli("compile", graph).refused()
    assert list(tmp_path.iterdir()) == [graph]


def test_missing_and_unwritable_files_are_refused(
    cli: Cli, mlp: Compiled, tmp_path: Path, nowhere: Path
) -> None:
    cli("compile", tmp_path / "none.json").refused("no file", "none.json")
    cli("compile", tmp_path).refused("has no config.json")
    cli("compile", mlp.graph, "-o", nowhere).refused("does not exist")
    cli("compile", mlp.graph, "-o", tmp_path).refused("is a folder")


def _open_mlp(cli: Cli, folder: Path) -> Path:
    graph = folder / "g.json"
    made = cli("extract", f"{FACTORIES}:mlp", "-o", graph, "--dynamic", "input:0=batch:8")
    assert made.code == 0, made.err
    return graph


@pytest.mark.skipif(sys.platform != "linux", reason="NVRTC is there on Linux alone")
def test_sizes_to_prepare_are_combined(cli: Cli, tmp_path: Path) -> None:
    graph, output = _open_mlp(cli, tmp_path), tmp_path / "m.npubin"
    outcome = cli("compile", graph, "-o", output, "--target", "cuda:sm_90", "--sizes", "batch=1,3")
    assert outcome.code == 0, outcome.err
    assert "device code for batch = 8; batch = 1; batch = 3" in outcome.out
    prepared = cli("info", output, "--json").json["prepared_sizes"]
    assert prepared == [{"batch": 8}, {"batch": 1}, {"batch": 3}]


def test_device_code_needs_a_compiler(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, output = _open_mlp(cli, tmp_path), tmp_path / "m.npubin"
    monkeypatch.setattr(npusim.codegen.cuda.nvrtc, "_candidates", lambda: iter(()))
    npusim.codegen.cuda.nvrtc.load.cache_clear()
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path / "cache"))
    options = ("compile", graph, "-o", output, "--target", "cuda:sm_90")
    cli(*options).refused("libnvrtc was not found")
    assert not output.exists()


def test_sizes_that_there_are_not(cli: Cli, tmp_path: Path) -> None:
    graph, output = _open_mlp(cli, tmp_path), tmp_path / "m.npubin"
    cli("compile", graph, "-o", output, "--sizes", "batch=9").refused("batch is 9", "batch 1 … 8")
    cli("compile", graph, "-o", output, "--sizes", "b=1").refused("no symbolic size 'b'")
    for wrong in ("batch", "batch=", "=1", "batch=1,x", "batch=-1"):
        cli("compile", graph, "-o", output, "--sizes", wrong).refused("SYMBOL=SIZE")


def test_a_precision_is_one_of_those_there_are(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    options = ("compile", mlp.graph, "-o", tmp_path / "m.npubin", "--precision")
    assert cli(*options, "mixed").code == 0
    cli(*options, "half").refused("half", "bfloat16")

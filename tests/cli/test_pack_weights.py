"""npusim pack-weights: --weights takes what it writes, and it writes over nothing it reads."""

from __future__ import annotations

from pathlib import Path

from .conftest import Cli, Compiled


def test_packed_weights_stand_for_the_checkpoint(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    output = tmp_path / "net.npuw"
    outcome = cli("pack-weights", mlp.program, "--weights", mlp.weights, "-o", output)
    assert outcome.code == 0 and str(output) in outcome.out
    facts = cli("pack-weights", mlp.program, "--weights", mlp.weights, "-o", output, "--json").json
    assert facts["bytes"] == output.stat().st_size and facts["device"].startswith("cpu, ")
    results = []
    for weights in (mlp.weights, output):
        folder = tmp_path / f"of_{weights.name}"
        run = cli("run", mlp.program, "--weights", weights, "--input", mlp.x, "-o", folder)
        assert run.code == 0 and "prepared anew" not in run.err
        results.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert results[0] == results[1]


def test_refusals(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    output = tmp_path / "net.npuw"
    cli("pack-weights", mlp.program, "-o", output).refused("missing")
    cli("pack-weights", mlp.program, "--weights", mlp.program, "-o", output).refused("safetensors")
    cli("pack-weights", mlp.program, "--weights", mlp.weights, "-o", mlp.weights).refused(
        "would be overwritten"
    )
    cli("pack-weights", mlp.program, "--weights", mlp.weights, "-o", tmp_path).refused("folder")
    assert not output.exists()

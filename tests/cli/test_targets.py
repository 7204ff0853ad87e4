"""npusim targets: the list, and a file that can be written to disk and read again."""

from __future__ import annotations

from pathlib import Path

from npusim.targets import TargetConfig, override, target_names

from .conftest import Cli


def test_every_target_is_listed(cli: Cli) -> None:
    outcome = cli("targets", "--json")
    assert outcome.code == 0
    rows = {row["name"]: row for row in outcome.json["targets"]}
    assert tuple(rows) == target_names()
    assert rows["cuda"]["kind"] == "backend" and rows["cuda"]["sram_bytes"] is None
    assert rows["h200"]["kind"] == "roofline" and rows["h200"]["arch"] == "sm_90a"
    edge = rows["npu-edge-32x32"]
    assert (edge["kind"], edge["device"], edge["array"]) == ("npu", "cpu", "32x32 ws")
    assert edge["operations_per_second"]["int8"] == 2 * 32 * 32 * 1e9
    assert edge["sram_bytes"] == 2**21 and edge["memory_bytes_per_second"] == 102.4e9
    assert rows["tpu-v3"]["array"] == "4 x 128x128 ws"
    text = cli("targets").out
    for name in target_names():
        assert name in text


def test_one_target_is_printed_as_a_file(cli: Cli, tmp_path: Path) -> None:
    for name in ("npu-edge-32x32", "cpu", "metal"):
        path = tmp_path / "own.toml"
        path.write_text(cli("targets", name).out, encoding="utf-8")
        assert TargetConfig.named(str(path)) == TargetConfig.named(name)
    changed = cli("targets", "npu-edge-32x32", "--set", "mxu.rows=16", "--set", "acc.kib=8")
    path.write_text(changed.out, encoding="utf-8")
    expected = override(TargetConfig.named("npu-edge-32x32"), ["mxu.rows=16", "acc.kib=8"])
    assert TargetConfig.named(str(path)) == expected
    as_json = cli("targets", str(path), "--json")
    assert as_json.json["file"]["mxu"]["rows"] == 16
    assert as_json.json["array"] == "16x32 ws"


def test_wrong_names_and_settings_are_refused(cli: Cli, tmp_path: Path) -> None:
    cli("targets", "vax").refused("vax", "npu-edge-32x32")
    cli("targets", "npu-edge-32x32", "--set", "mxu.rowz=1").refused("mxu.rowz", "rows, cols")
    cli("targets", "--set", "mxu.rows=1").refused("name it")
    broken = tmp_path / "own.toml"
    broken.write_text('like = "tpu-v3"\nname = "own"\n[mxu]\nrows = 0.5\n', encoding="utf-8")
    cli("targets", broken).refused("own.toml:4", "mxu.rows")

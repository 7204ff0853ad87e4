"""Older files are rewritten, whole or not at all, and compute what they did; newer ones say what to
install."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.cli import main
from npusim.ir import json as graph_json
from npusim.ir import module as module_json
from npusim.partition.plan_file import LAYOUT, write_plan
from npusim.program.container import MAJOR, MINOR
from npusim.upgrade import upgrade
from tests.compatibility.test_corpus import hold
from tests.compatibility.write import CORPUS
from tests.format.readers import READERS

ROOT = Path(__file__).parents[2]
_CALLS = sorted(CORPUS.glob("*/*.calls.json"))
_DENSE = CORPUS / "0.1.0" / "dense.npubin"


def _beside(calls: Path, ending: str) -> Path:
    return calls.with_name(calls.name.replace(".calls.json", ending))


def _older(graph: Path) -> bytes:
    tree = json.loads(graph.read_text())
    tree["version"] = [1, 0]
    del tree["states"], tree["updates"]  # there were none in 1.0
    return json.dumps(tree).encode()


def _stale(program: npusim.CompiledProgram, **changes: Any) -> npusim.CompiledProgram:
    """Returns a program whose kernels took another parameter once."""
    kernels = tuple(replace(k, schema=f"{k.schema} i64 gone") for k in program.kernels)
    return replace(program, kernels=kernels, **changes)


@pytest.mark.parametrize("calls", _CALLS, ids=lambda p: f"{p.parent.name}-{p.name.split('.')[0]}")
def test_the_corpus(calls: Path, tmp_path: Path) -> None:
    older = _older(_beside(calls, ".json"))
    (tmp_path / "graph.json").write_bytes(older)
    made = upgrade(older)
    assert made.kind == "graph" and upgrade(made.content).content == made.content != older
    (tmp_path / "new.json").write_bytes(made.content)
    graph = npusim.IR.load(tmp_path / "new.json")
    assert graph == npusim.IR.load(tmp_path / "graph.json")
    hold(npusim.compile(graph), calls)
    current = _beside(calls, ".npubin").read_bytes()
    program = npusim.CompiledProgram.from_bytes(upgrade(current).content)
    hold(program, calls)
    stale = _stale(program)
    with pytest.raises(npusim.ProgramFormatError, match="with other parameters"):
        hold(stale, calls)
    again = upgrade(stale.to_bytes())
    assert set(again.compiled) == {kernel.name for kernel in program.kernels}
    hold(npusim.CompiledProgram.from_bytes(again.content), calls)


def test_the_first_format_is_current() -> None:
    golden = (ROOT / "tests/format/golden/v1.0.npubin").read_bytes()
    with pytest.raises(npusim.Error, match="carries no graph"):  # its kernels were made up
        upgrade(golden)
    program = npusim.CompiledProgram.from_bytes(golden)
    assert npusim.CompiledProgram.from_bytes(golden).to_bytes() == golden
    coded = replace(program, kernels=tuple(replace(k, image=b"code") for k in program.kernels))
    assert upgrade(coded.to_bytes()).content == coded.to_bytes()


def test_modules_and_plans() -> None:
    graph = npusim.IR.load(_DENSE.with_suffix(".json"))
    module = npusim.Module("two", {"first": graph, "second": graph}, {"fact": 1})
    tree = json.loads(module.to_text())
    assert (
        upgrade(json.dumps(tree, indent=1).encode()).content == json.dumps(tree, indent=1).encode()
    )
    tree["methods"]["second"]["version"] = [1, 0]
    assert upgrade(json.dumps(tree).encode()).content == module.to_text().encode()
    tree["methods"]["second"]["version"] = [1, 99]
    with pytest.raises(npusim.GraphError, match="newer version"):
        upgrade(json.dumps(tree).encode())
    plan = npusim.partition(graph)
    assert upgrade(write_plan(plan)).content == write_plan(plan)
    parts = [
        replace(p, program=None if p.program is None else _stale(p.program))
        for p in plan.partitions
    ]
    made = upgrade(write_plan(replace(plan, partitions=tuple(parts))))
    assert made.compiled and made.content == write_plan(plan)


def test_what_cannot_be_compiled_again_is_refused() -> None:
    program = npusim.CompiledProgram.load(_DENSE)
    facts = {key: value for key, value in program.metadata.items() if key != "graph"}
    with pytest.raises(npusim.Error, match="carries no graph"):
        upgrade(_stale(program, metadata=facts).to_bytes())
    text = json.dumps(program.metadata["graph"]).replace('"0.bias"', '"other.bias"')
    with pytest.raises(npusim.Error, match="other inputs, outputs, weights or states"):
        upgrade(_stale(program, metadata={**facts, "graph": json.loads(text)}).to_bytes())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\x89PNG", b"PK\x03\x04"])
def test_what_is_no_file_of_ours_is_refused(content: bytes) -> None:
    with pytest.raises(npusim.Error):
        upgrade(content)


def _sealed(data: bytearray) -> bytes:
    (count,) = struct.unpack_from("<I", data, 12)
    table = bytes(data[64 : 64 + 32 * count])
    struct.pack_into("<I", data, 60, zlib.crc32(table, zlib.crc32(bytes(data[:60]))))
    return bytes(data)


def _numbered(image: bytes, major: int, minor: int, reader: tuple[int, ...] = (0, 0, 0)) -> bytes:
    data = bytearray(image)
    struct.pack_into("<HH", data, 8, major, minor)
    struct.pack_into("<HHH", data, 32, *reader)
    return _sealed(data)


def test_newer_files_are_left_alone(tmp_path: Path) -> None:
    """They may hold what this version would drop."""
    program = _numbered(_DENSE.read_bytes(), MAJOR, MINOR + 1, (0, 4, 0))
    assert npusim.CompiledProgram.from_bytes(program).target == "cpu"
    with pytest.raises(npusim.ProgramFormatError, match="newer version"):
        upgrade(program)
    tree = {**json.loads(_DENSE.with_suffix(".json").read_text()), "version": [1, 9], "news": 1}
    with pytest.raises(npusim.GraphError, match="newer version"):
        upgrade(json.dumps(tree).encode())


@pytest.mark.parametrize("reader", READERS)
def test_programs_say_which_version_to_install(reader: str) -> None:
    read: Callable[[bytes], object] = READERS[reader]
    image = _DENSE.read_bytes()
    for content in (_numbered(image, MAJOR + 1, 0, (0, 4, 12)), _needing_features(image)):
        with pytest.raises(npusim.ProgramFormatError, match=r"Install npusim 0\.4\.12 or later"):
            read(content)
    with pytest.raises(npusim.ProgramFormatError, match="Upgrade npusim, or compile"):
        read(_numbered(image, MAJOR + 1, 0))
    read(_numbered(image, MAJOR, MINOR + 1, (0, 4, 12)))
    with pytest.raises(npusim.ProgramFormatError, match="reserved"):
        read(_numbered(image, MAJOR, MINOR, (0, 4, 12)))


def _needing_features(image: bytes) -> bytes:
    data = bytearray(_numbered(image, MAJOR, MINOR + 1, (0, 4, 12)))
    data[16] = 1
    return _sealed(data)


def test_graphs_modules_and_plans_say_which_version_to_install(tmp_path: Path) -> None:
    path = tmp_path / "future.json"
    for kind in (graph_json.FORMAT, module_json.FORMAT):
        tree: dict[str, Any] = {"format": kind, "version": [2, 0], "npusim": "1.2.3"}
        path.write_text(json.dumps(tree))
        load = npusim.IR.load if kind == graph_json.FORMAT else npusim.Module.load
        with pytest.raises(npusim.GraphError, match=r"version 2\.0.*pip install 'npusim>=1\.2\.3'"):
            load(path)
        for strange in (None, 7, "", "new", "1.2.3; rm", "1.2"):
            path.write_text(json.dumps({**tree, "npusim": strange}))
            with pytest.raises(npusim.GraphError, match=r"Upgrade npusim, or extract"):
                load(path)
    path.write_text(json.dumps({"format": graph_json.FORMAT, "version": [0, 9]}))
    with pytest.raises(npusim.GraphError, match=r"version 0\.9.*Extract it again"):
        npusim.IR.load(path)
    plan = write_plan(npusim.partition(npusim.IR.load(_DENSE.with_suffix(".json"))))
    (tmp_path / "plan").write_bytes(_numbered(plan, 2, 0, (1, 0, 0)))
    with pytest.raises(npusim.ProgramFormatError, match=r"Install npusim 1\.0\.0 or later"):
        npusim.PartitionPlan.load(tmp_path / "plan")


def test_target_files_say_which_version_to_install(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('npusim = "99.0.0"\nlike = "cpu"\nname = "mine"\n[news]\nx = 1\n')
    with pytest.raises(npusim.TargetConstraintError, match=r"mine\.toml:1: .*npusim>=99\.0\.0"):
        npusim.TargetConfig.named(str(path))
    for needed in (npusim.__version__, "0.0.1"):
        path.write_text(f'npusim = "{needed}"\nlike = "cpu"\nname = "mine"\n')
        assert npusim.TargetConfig.named(str(path)).name == "mine"
    for strange in ("1", '"1"', '"1.2.3.4"', "[]", "true"):
        path.write_text(f'npusim = {strange}\nlike = "cpu"\nname = "mine"\n')
        with pytest.raises(npusim.TargetConstraintError, match=r"mine\.toml:1: npusim is"):
            npusim.TargetConfig.named(str(path))


def test_the_command_rewrites_all_or_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, broken = tmp_path / "a.json", tmp_path / "b.json"
    older = _older(_DENSE.with_suffix(".json"))
    graph.write_bytes(older)
    broken.write_bytes(older.replace(b'"linear"', b'"lin', 1))
    assert main(["upgrade", str(graph), str(broken)]) == 2
    assert "b.json" in capsys.readouterr().err
    assert graph.read_bytes() == older
    output = tmp_path / "new.json"
    assert main(["upgrade", str(graph), "-o", str(output)]) == 0
    assert graph.read_bytes() == older and output.read_bytes() == upgrade(older).content
    assert main(["upgrade", str(graph), str(graph), "-o", str(output)]) == 2
    assert (
        main(["upgrade", str(graph), "-o", str(graph)]) == 2
    )  # it is read; without -o it is meant
    capsys.readouterr()
    assert main(["upgrade", str(graph), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["files"]
    assert row == {"path": str(graph), "kind": "graph", "changed": True, "compiled": []}
    before = graph.stat().st_mtime_ns
    assert main(["upgrade", str(graph)]) == 0
    assert "current" in capsys.readouterr().out and graph.stat().st_mtime_ns == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json", "new.json"]


def test_the_docs_name_the_first_reader_of_every_format() -> None:
    text = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
    rows = dict(
        re.findall(r"^\| ([a-z ]+)(?: \([^|]*\))? \| ([\d., …]+) \| 0\.1\.0 \|", text, re.M)
    )
    newest = {name: versions.split()[-1] for name, versions in rows.items()}
    assert newest == {
        "graph": ".".join(map(str, graph_json.VERSION)),
        "module": ".".join(map(str, module_json.VERSION)),
        "program": f"{MAJOR}.{MINOR}",
        "partition plan": f"{LAYOUT.major}.{LAYOUT.minor}",
        "session": "1",
    }
    source = (ROOT / "cpp/runtime/language_session_file.cpp").read_text()
    assert '"npusim session 1"' in source

"""A plan's file: what is saved comes back, and what is not sound is refused."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.errors import Error, ProgramFormatError, UnsupportedOpError
from npusim.partition.plan_file import LAYOUT, PlanSection, read_plan, write_plan
from npusim.program.container import pack_blobs, pack_container, unpack_blobs, unpack_sections
from npusim.program.format import write_program

from .models import EAGER_DEVICE, agree, stray


class Net(nn.Module):
    """Everything a plan's file can hold: load, rounds of both kinds, states, shared weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.add_(1)
        y = stray(self.first(x).relu()) @ stray(self.last.weight)
        return self.last(y), torch.fft.fft(y).abs() + self.calls


@pytest.fixture(scope="module")
def plan() -> npusim.PartitionPlan:
    graph = npusim.extract_ir(Net().eval(), torch.ones(2, 4))
    return npusim.partition(graph, costs=EAGER_DEVICE)


def test_what_is_saved_comes_back(plan: npusim.PartitionPlan, tmp_path: Path) -> None:
    path = tmp_path / "model.npuplan"
    plan.save(path)
    loaded = npusim.PartitionPlan.load(path)
    assert loaded == plan
    assert loaded.summary() == plan.summary()
    loaded.save(tmp_path / "again.npuplan")
    assert path.read_bytes() == (tmp_path / "again.npuplan").read_bytes()
    model = Net().eval()
    agree(loaded, model, torch.randn(2, 4))


def test_it_is_written_whole_or_not_at_all(plan: npusim.PartitionPlan, tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"the folder .* does not exist"):
        plan.save(tmp_path / "missing" / "model.npuplan")
    draft = npusim.PartitionPlan(
        plan.graph,
        plan.target,
        plan.device,
        tuple(type(p)(p.index, p.executor, p.at_load, p.graph) for p in plan.partitions),
        plan.transfers,
        plan.verdicts,
        plan.cut,
    )
    with pytest.raises(Error, match="not compiled"):
        draft.save(tmp_path / "draft.npuplan")
    assert not list(tmp_path.iterdir())


def test_files_of_other_kinds_and_versions(plan: npusim.PartitionPlan, tmp_path: Path) -> None:
    data = bytearray(write_plan(plan))
    with pytest.raises(ProgramFormatError, match="not a partition plan file"):
        read_plan(write_program(next(p.program for p in plan.partitions if p.program)))
    with pytest.raises(ProgramFormatError, match="it is empty"):
        read_plan(b"")
    for major, hint in ((9, "Upgrade npusim, or partition the model again here"), (0, "Partition")):
        data[8:10] = struct.pack("<H", major)
        with pytest.raises(ProgramFormatError, match=rf"format {major}\.0.*reads 1\.0.*{hint}"):
            read_plan(data)
    path = tmp_path / "old.npuplan"
    path.write_bytes(data)
    with pytest.raises(ProgramFormatError, match=r"old\.npuplan: "):
        npusim.PartitionPlan.load(path)
    with pytest.raises(Error, match="Cannot read"):
        npusim.PartitionPlan.load(tmp_path / "none")


def test_every_truncation_is_refused(plan: npusim.PartitionPlan) -> None:
    data = write_plan(plan)
    for size in (*range(0, 200, 7), len(data) // 2, len(data) - 1):
        with pytest.raises(ProgramFormatError):
            read_plan(data[:size])


def test_every_changed_byte_is_noticed(plan: npusim.PartitionPlan) -> None:
    data = write_plan(plan)
    rng = random.Random(0)
    for at in rng.sample(range(len(data)), 150):
        changed = bytearray(data)
        changed[at] ^= 1 << rng.randrange(8)
        with pytest.raises(ProgramFormatError):
            read_plan(changed)


def _with_manifest(plan: npusim.PartitionPlan, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The file with another manifest, and checksums that are right."""
    sections = unpack_sections(memoryview(write_plan(plan)), LAYOUT)
    tree = json.loads(bytes(sections[PlanSection.MANIFEST].data))
    change(tree)
    raw = {PlanSection(s): bytes(chunk.data) for s, chunk in sections.items()}
    raw[PlanSection.MANIFEST] = json.dumps(tree).encode()
    return pack_container(raw, LAYOUT)


def _swap(tree: dict[str, Any]) -> None:
    tree["rounds"][0], tree["rounds"][-1] = tree["rounds"][-1], tree["rounds"][0]


def _claim(tree: dict[str, Any]) -> None:
    for group in tree["rounds"]:
        group["native"] = not group["native"]


def _lose(tree: dict[str, Any]) -> None:
    tree["rounds"][0]["nodes"].pop()


def _promote(tree: dict[str, Any]) -> None:
    tree["fixed"].append(tree["rounds"][0]["nodes"].pop())


def _relabel(tree: dict[str, Any]) -> None:
    next(iter(tree["verdicts"].values()))[0] = "wonderful"


def _forget_load(tree: dict[str, Any]) -> None:
    tree["load"], tree["shared"] = [], []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("graph"), r"\$.graph is missing"),
        (lambda t: t.update(load="all"), r"\$.load is missing or of another type"),
        (lambda t: t["rounds"].append(3), r"\$.rounds\[.\] is missing or of another type"),
        (lambda t: t["rounds"][0].update(native=1), "native is missing or of another type"),
        (lambda t: t["rounds"][0].update(nodes=[1]), r"nodes\[0\] is missing"),
        (lambda t: t["graph"].update(version=[7, 0]), "version 7.0"),
        (lambda t: t["graph"]["nodes"][0].update(inputs=["nothing"]), "not defined before it"),
        (lambda t: t.update(verdicts={}), "not about the nodes"),
        (lambda t: t.update(target="a\n"), "cannot be printed"),
        (lambda t: t.update(device="abacus"), "is for 'cpu', not 'abacus'"),
        (_relabel, "is no verdict"),
        (_lose, "hold every node once"),
        (_swap, "runs before what it reads"),
        (_promote, "depends on more than weights"),
        (_forget_load, "takes other inputs"),
        (_claim, "none before it makes|programs"),
    ],
)
def test_a_manifest_that_lies_is_refused(
    plan: npusim.PartitionPlan, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    with pytest.raises(ProgramFormatError, match=words):
        read_plan(_with_manifest(plan, change))


def test_programs_must_be_those_of_their_partitions(plan: npusim.PartitionPlan) -> None:
    sections = unpack_sections(memoryview(write_plan(plan)), LAYOUT)
    images = unpack_blobs(sections[PlanSection.PROGRAMS], 64)
    manifest = bytes(sections[PlanSection.MANIFEST].data)
    assert len(images) > 1

    def file(programs: list[bytes]) -> bytes:
        table = pack_blobs(programs, 64)
        return pack_container({PlanSection.MANIFEST: manifest, PlanSection.PROGRAMS: table}, LAYOUT)

    with pytest.raises(ProgramFormatError, match=r"takes other inputs|gives other outputs"):
        read_plan(file(images[::-1]))
    with pytest.raises(ProgramFormatError, match="native partitions have"):
        read_plan(file(images[:-1]))
    with pytest.raises(ProgramFormatError, match=r"\.npubin"):
        read_plan(file([b"nonsense", *images[1:]]))


def test_operators_of_a_file_are_not_trusted(plan: npusim.PartitionPlan) -> None:
    def change(tree: dict[str, Any]) -> None:
        node = next(n for n in tree["graph"]["nodes"] if "stray" in n["op"])
        node["op"] = "aten.from_file.default"

    loaded = read_plan(_with_manifest(plan, change))
    with pytest.raises(UnsupportedOpError, match=r"aten\.from_file\.default: it opens a file"):
        npusim.DAGExecutor(loaded)


_STRANGE = ("", "\0", "x", "complex64", "int64", "aten.relu.default", "aten.rand.default", None, -1)


def _disturb(tree: Any, rng: random.Random) -> None:
    """Changes, repeats or removes one thing somewhere in a tree of JSON."""
    while isinstance(tree, (dict, list)) and tree:
        key = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
        if isinstance(tree[key], (dict, list)) and tree[key] and rng.random() < 0.9:
            tree = tree[key]
            continue
        change = rng.random()
        if change < 0.2:
            del tree[key]
        elif change < 0.4 and isinstance(tree, list):
            tree.insert(key, tree[key])
        else:
            tree[key] = rng.choice((*_STRANGE, 2**40, True, [], {}))
        return


@pytest.mark.parametrize("seed", range(4))
def test_a_manifest_that_is_disturbed_is_refused_or_runs(
    plan: npusim.PartitionPlan, seed: int
) -> None:
    rng, state = random.Random(seed), Net().eval().state_dict()
    for _ in range(25):
        try:
            loaded = read_plan(_with_manifest(plan, lambda tree: _disturb(tree, rng)))
        except ProgramFormatError:
            continue
        with contextlib.suppress(Error):
            npusim.DAGExecutor(loaded, summary=False).load_weights(state)(torch.ones(2, 4))

"""What does not fit is refused by name: which tensor, which memory, by how much."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import npusim
from npusim.errors import TargetConstraintError, UnsupportedOpError
from npusim.targets import TargetConfig, override

EDGE = TargetConfig.named("npu-edge-32x32")
SMALL = ["sram.l1.kib=8", "sram.l1.align_bytes=8"]


@pytest.fixture(scope="module")
def graph() -> npusim.IR:
    model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Softmax(-1)).eval()
    return npusim.extract_ir(model, (torch.zeros(2, 64),))


def test_dram(graph: npusim.IR) -> None:
    with pytest.raises(TargetConstraintError) as refused:
        npusim.compile(graph, override(EDGE, ["dram.capacity_mib=2"]))
    found = re.search(
        r"takes (\d+) bytes, and 'dram.capacity_mib' is 2 \(2097152 bytes\): (\d+) too many\. "
        r"The largest are (\d+) bytes: ",
        str(refused.value),
    )
    assert found, refused.value
    needed, over, largest = map(int, found.groups())
    assert needed - over == 2 * 2**20
    assert largest >= 4 * 64 * 4096


def test_the_nearest_memory() -> None:
    """Softmax needs whole rows: 4096 numbers, twice, in two buffers, are more than 8 KiB."""
    graph = npusim.extract_ir(nn.Softmax(-1).eval(), (torch.zeros(2, 4096),))
    with pytest.raises(TargetConstraintError) as refused:
        npusim.compile(graph, override(EDGE, SMALL))
    text = str(refused.value)
    found = re.search(
        r"^Node '(\w+)' \((\S+)\).*takes (\d+) bytes of memory 'l1', which has (\d+): (\d+) too "
        r"many\. Most is '(\w+)', (\d+) bytes of operand (\d+), in 2 buffers\. Its tensors: (.*)\.",
        text,
        re.S,
    )
    assert found, text
    needed, room, over, most = (int(found[i]) for i in (3, 4, 5, 7))
    assert (room, needed - room, most) == (8192, over, 4 * 4096)
    assert f"operand {found[8]} is " in found[9]
    assert "of 32768 bytes" in found[9]  # two rows


def test_sums() -> None:
    model = nn.Linear(64, 64).eval()
    graph = npusim.extract_ir(model, (torch.zeros(64, 64),))
    npusim.compile(graph, override(EDGE, ["acc.kib=4"]))
    # A machine whose smallest tile has no room for its sums contradicts itself.
    with pytest.raises(TargetConstraintError, match=r"tile_multiple.*sums take 8192 bytes, 'acc'"):
        override(EDGE, ["acc.kib=4", "constraints.tile_multiple={m = 64, n = 32, k = 32}"])


def test_ranks_are_named_with_their_limit() -> None:
    class Deep(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flip(0) + 1

    graph = npusim.extract_ir(Deep().eval(), (torch.zeros((2,) * 7),))
    with pytest.raises(UnsupportedOpError, match=r"at most 6 dimensions, not 7 \('constraints.max"):
        npusim.compile(graph, override(EDGE, ["constraints.fallback=refuse"]))

"""Exchanges between ranks without a GPU: the kernels' own text, a process a rank.

Processes share the memory of mailboxes, as GPUs do; each runs its kernels one after another, so
that rounds of different messages, sizes and ways follow each other as in a program.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from npusim.abi.kernels import KERNELS
from npusim.binding import kernel_root
from npusim.codegen.cuda import ranks as rules
from npusim.codegen.cuda.ranks import Way, reduce_config, way_of
from npusim.codegen.cuda.rules import RULES
from npusim.errors import TargetConstraintError
from npusim.ir.types import dtype_code
from tests.codegen import host

pytestmark = pytest.mark.skipif(
    host.COMPILER is None or sys.platform != "linux", reason="needs a host compiler, and fork"
)

# Of kernels/cuda/ranks/exchange.h.
MOST_RANKS, BLOCKS, FLAG_STRIDE, LINES, CHUNK = 8, 32, 32, 256, 128 << 10
FLAG_BYTES = 4 * BLOCKS * MOST_RANKS * FLAG_STRIDE
LINE_BYTES = 16 * 2 * BLOCKS * MOST_RANKS * LINES
PATIENCE_NS = 60 * 10**9

# The same in Python, C++ and the kernels; only this holds them to each other.
_SIZES = {"MostRanks": MOST_RANKS, "FlagStride": FLAG_STRIDE, "Lines": LINES, "Chunk": CHUNK}

Message = tuple[str, int, str, bool, Way]  # stem, elements, dtype, whether a residual, way


class Link(ctypes.Structure):
    """A rank's link."""

    _fields_ = (
        ("rank", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32),
        ("patience", ctypes.c_uint64),
        ("epochs", ctypes.c_void_p),
        ("stop", ctypes.c_void_p),
        ("lost", ctypes.c_void_p),
        ("mailboxes", ctypes.c_void_p * MOST_RANKS),
        ("gathered", ctypes.c_void_p),
    )


class Shared:
    """Memory that all ranks' processes have, zeros at first."""

    def __init__(self, bytes: int) -> None:
        self.map = mmap.mmap(-1, bytes)
        self.array: NDArray[np.uint8] = np.frombuffer(self.map, np.uint8)
        self.address = self.array.ctypes.data


class Ranks:
    """Mailboxes, counts and notes of so many ranks."""

    def __init__(self, ranks: int, patience: int = PATIENCE_NS) -> None:
        self.ranks = ranks
        self.mailboxes = [
            Shared(FLAG_BYTES + LINE_BYTES + 2 * BLOCKS * ranks * CHUNK) for _ in range(ranks)
        ]
        self.epochs = Shared(ranks * 4 * BLOCKS)
        self.notes = Shared(16 * ranks + 4)
        self.patience = patience

    def link(self, rank: int) -> Link:
        boxes = (ctypes.c_void_p * MOST_RANKS)(*[box.address for box in self.mailboxes])
        at = self.notes.address
        own = self.epochs.address + rank * 4 * BLOCKS
        stop = at + 16 * self.ranks
        return Link(rank, self.ranks, self.patience, own, stop, at + 16 * rank, boxes, None)

    def run(self, of_rank: Callable[[int], None], absent: Sequence[int] = ()) -> None:
        """Runs a function on every rank, each in a process of its own."""
        children = []
        for rank in set(range(self.ranks)) - set(absent):
            child = os.fork()
            if child == 0:
                try:
                    of_rank(rank)
                    os._exit(0)
                finally:
                    os._exit(1)
            children.append(child)
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)


def params_of(message: Message, ranks: int) -> bytes:
    stem, elements, dtype, residual, _ = message
    size = np.dtype(dtype).itemsize
    if stem == "all_gather":
        return KERNELS[stem].pack({"bytes": elements * size, "ranks": ranks})
    fields = {"elements": elements, "ranks": ranks, "dtype": dtype_code(dtype)}
    return KERNELS[stem].pack({**fields, "residual": int(residual)})


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[host.HostKernel]:
    """The kernel of each message, which goes its way."""
    made: dict[Way, dict[host.Key, host.HostKernel]] = {}
    for way in Way:
        keys = [(m[0], params_of(m, RANKS)) for m in MESSAGES if m[4] is way]
        with pytest.MonkeyPatch.context() as patch:
            rule = partial(reduce_config, way=way)
            patch.setitem(RULES, "all_reduce", rule)  # type: ignore[arg-type]
            made[way] = host.build(keys, tmp_path_factory.mktemp(way.name))
        for (stem, _), kernel in made[way].items():
            assert stem != "all_reduce" or kernel.config.defines["WAY"] == way
    return [made[m[4]][m[0], params_of(m, RANKS)] for m in MESSAGES]


def sent(message: Message, index: int, rank: int) -> NDArray[np.generic]:
    """Returns what a rank sends in a message: numbers whose sums need rounding."""
    chance = np.random.default_rng([index, rank])
    if message[2].startswith("int"):
        return chance.integers(-(10**6), 10**6, message[1]).astype(message[2])
    return (chance.standard_normal(message[1]) * 10).astype(message[2])


def wanted(message: Message, index: int, ranks: int) -> NDArray[np.generic]:
    """Returns what every rank gets."""
    parts = [sent(message, index, rank) for rank in range(ranks)]
    if message[0] == "all_gather":
        return np.concatenate(parts)
    wide = np.float32 if message[2] == "float16" else np.dtype(message[2])
    total = parts[0].astype(wide)
    for part in parts[1:]:
        total = total + part.astype(wide)
    total = total.astype(message[2])
    if not message[3]:
        return total
    residual = sent(message, index, 99)
    result: NDArray[np.generic] = (total.astype(wide) + residual.astype(wide)).astype(message[2])
    return result


RANKS = 3
MESSAGES: list[Message] = [
    ("all_reduce", 1100, "float16", True, Way.LINES),
    ("all_gather", 4099, "float16", False, Way.ONE_SHOT),
    ("all_reduce", 8000, "float16", True, Way.ONE_SHOT),
    ("all_reduce", 8001, "float32", True, Way.TWO_SHOT),
    # Several packs a thread, in pieces that end in the midst of them.
    ("all_reduce", 2_000_040, "float16", True, Way.TWO_SHOT),
    ("all_reduce", 1_000_008, "float16", False, Way.ONE_SHOT),
]


def test_every_rank_gets_the_sums_in_the_order_of_ranks(kernels: list[host.HostKernel]) -> None:
    chance = random.Random(0)
    order = [chance.randrange(len(MESSAGES)) for _ in range(12)]
    together = Ranks(RANKS)

    def of_rank(rank: int) -> None:
        link = together.link(rank)
        for index, which in enumerate(order):
            message = MESSAGES[which]
            operands = [sent(message, index, rank)]
            if message[3]:
                operands.append(sent(message, index, 99))
            size = message[1] * (RANKS if message[0] == "all_gather" else 1)
            operands.append(np.full(size, 77, message[2]))
            at = [o.ctypes.data for o in operands] + [ctypes.addressof(link)]
            kernels[which].run((ctypes.c_void_p * len(at))(*at))
            expected = wanted(message, index, RANKS)
            assert operands[-1].tobytes() == expected.tobytes(), (rank, index, message)

    together.run(of_rank)
    assert not together.notes.array.any()


@pytest.mark.parametrize("which", range(len(MESSAGES)))
def test_what_others_have_gathered_makes_the_same_bits(
    kernels: list[host.HostKernel], which: int
) -> None:
    """As NCCL brings it: nobody waits, and no mailbox is touched."""
    message = MESSAGES[which]
    together = Ranks(RANKS)
    parts = np.concatenate([sent(message, which, rank) for rank in range(RANKS)])
    for rank in range(RANKS):
        link = together.link(rank)
        link.gathered = parts.ctypes.data
        operands = [sent(message, which, r) for r in (rank, 99)][: 1 + message[3]]
        expected = wanted(message, which, RANKS)
        operands.append(np.full_like(expected, 77))
        at = [o.ctypes.data for o in operands] + [ctypes.addressof(link)]
        kernels[which].run((ctypes.c_void_p * len(at))(*at))
        assert operands[-1].tobytes() == expected.tobytes()
    boxes = [*together.mailboxes, together.epochs, together.notes]
    assert not any(box.array.any() for box in boxes)


@pytest.mark.parametrize("which", [0, 2])
def test_who_waits_in_vain_says_for_whom(kernels: list[host.HostKernel], which: int) -> None:
    together = Ranks(RANKS, patience=10**8)

    def of_rank(rank: int) -> None:
        link = together.link(rank)
        operands = [sent(MESSAGES[which], 0, r) for r in (rank, 99)]
        operands = [*operands[: 1 + MESSAGES[which][3]], np.zeros_like(operands[0])]
        at = [o.ctypes.data for o in operands] + [ctypes.addressof(link)]
        kernels[which].run((ctypes.c_void_p * len(at))(*at))

    together.run(of_rank, absent=[1])
    *lost, stop = together.notes.array.view(np.uint32).tolist()
    assert stop == 1
    # 1 + the other rank, the block, the round it waited for, and what it saw.
    assert [2, 0, 1, 0] in (lost[:4], lost[8:])


def test_ways_by_size() -> None:
    assert way_of(8 << 10, 2) is Way.LINES and way_of(64 << 10, 2) is Way.LINES
    assert way_of((64 << 10) + 2, 2) is Way.ONE_SHOT and way_of(1 << 20, 2) is Way.ONE_SHOT
    assert way_of(4 << 20, 2) is Way.ONE_SHOT and way_of(8 << 20, 2) is Way.TWO_SHOT
    assert way_of(64 << 10, 4) is Way.LINES and way_of(64 << 10, 8) is Way.ONE_SHOT
    assert way_of(512 << 10, 4) is Way.ONE_SHOT and way_of((512 << 10) + 2, 4) is Way.TWO_SHOT
    assert way_of(256 << 10, 8) is Way.TWO_SHOT
    for bytes in (2, 8, 4096, 65536, 65538, 1 << 20, (1 << 24) + 2):
        for ranks in (2, 3, 8):
            p = {"elements": bytes // 2, "ranks": ranks, "dtype": 2, "residual": 1}
            config = rules.RULES["all_reduce"](p)
            (launch,) = config.launches
            assert launch.grid[0] <= BLOCKS and config.exchange
            if config.defines["WAY"] == Way.LINES:
                assert launch.block[0] <= LINES
                assert launch.grid[0] * launch.block[0] * 8 >= bytes
            else:
                assert config.defines["PART"] <= CHUNK and config.defines["PART"] % 16 == 0
    assert not rules.RULES["all_gather"]({"bytes": 0, "ranks": 2}).launches


def test_more_ranks_than_mailboxes_have_room_for_are_refused() -> None:
    with pytest.raises(TargetConstraintError, match="at most 8 ranks, not 9"):
        rules.RULES["all_gather"]({"bytes": 16, "ranks": 9})


def test_all_sides_have_the_same_sizes() -> None:
    assert (*(MOST_RANKS, BLOCKS, LINES, CHUNK),) == (
        rules._RANKS,
        rules._BLOCKS,
        rules._LINES,
        rules._CHUNK,
    )
    root = kernel_root().parent
    for blocks, files in (
        ("ExchangeBlocks", ("kernels/cuda/ranks/exchange.h",)),
        ("Blocks", ("cpp/cuda/exchange.h", "cpp/cuda/exchange.cpp")),
    ):
        text = "".join((root / file).read_text("utf-8") for file in files)
        for name, size in {**_SIZES, blocks: BLOCKS}.items():
            found = re.search(rf"\bk{name} = (\d+)(?: << (\d+))?[,;]", text)
            assert found is not None, (name, files)
            assert int(found[1]) << int(found[2] or 0) == size, (name, files)

"""The machine that a target describes: what a schedule has to fit into and a timing model walks.

A target's file holds these dataclasses as tables beside its capabilities (`TargetConfig`). Units
stand in names: `_mhz`, `_ns`, `_us`, `_cycles` (of the core's clock), `kib` (1024 bytes), `mib`,
`gb_per_s` (1e9 bytes a second), `_pj`, `_w`. Operations are counted as multiply-adds in `mxu`, and
one by one elsewhere. Mappings by dtype have npusim's names of dtypes ("float32", "int8") as keys.
A machine is either an `Npu`, whose parts are modelled one by one, or a `Roofline`, of which only
peaks and what commands reach of them are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from npusim.abi.scalar import OPCODES
from npusim.ir.types import DTYPES, dtype_size
from npusim.targets.checks import at_least_1, by_dtype, is_power_of_2, power_of_2
from npusim.targets.records import INFINITE, Contradiction
from npusim.targets.roofline import Roofline

# Kernels that only move elements, of any dtype that a machine's memories take.
_PACKS = ("pack_b", "pack_int8", "winograd_weights")
_MOVES = ("copy", "fill", "index", *_PACKS)
_SUM_BYTES = 4  # of a partial sum: int32 or float32
LEAST_RATE = 1 / 16  # bytes a cycle, below which the walk counts no rate (cpp/simulate/walk.h)


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock that `_cycles` count."""

    core_mhz: float


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores of one chip, each with the `mxu`, `vpu` and memories of scope "core" described.

    Attributes:
        count: of cores.
        sync_cycles: that all of them take to wait for each other.
    """

    count: int = 1
    sync_cycles: int = 0

    def __post_init__(self) -> None:
        at_least_1(self, "count")
        if self.count > 2**16:
            raise Contradiction("no chip has more than 65536 of them.", "count")


@dataclass(frozen=True, slots=True)
class Mxu:
    """A systolic array that multiplies matrices.

    Attributes:
        rows, cols: of processing elements.
        per_core: arrays of a core, which take tiles of one product side by side.
        dataflow: what stays in the array: weights ("ws"), sums ("os") or inputs ("is").
        fold_overlap: "none": each fold fills and drains the array by itself. "weights": the next
            fold's weights are loaded while one computes.
        min_stream_rows: rows that a fold streams at least, shorter ones as long.
        min_rows: products of fewer rows are the vector unit's.
        macs_per_pe_cycle: by dtype, multiply-adds of a processing element in a cycle. A dtype that
            is not named is not multiplied here; {}: there is no array, and the vector unit
            multiplies.
        sums: by dtype, the dtype in which its products are added up: "int32" of integers,
            "float32" of floats. Others have no kernels, which give programs their values.
    """

    rows: int
    cols: int
    dataflow: Literal["ws", "os", "is"]
    fold_overlap: Literal["none", "weights"]
    macs_per_pe_cycle: Mapping[str, float] = field(hash=False)
    per_core: int = 1
    min_stream_rows: int = 1
    min_rows: int = 1
    sums: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        at_least_1(self, "rows", "cols", "per_core", "min_stream_rows", "min_rows")
        for key in ("rows", "cols"):
            if getattr(self, key) > 2**16:
                raise Contradiction("no array has more than 65536 of them.", key)
        by_dtype(self.macs_per_pe_cycle, "macs_per_pe_cycle", empty=True, above_0=True)
        for dtype, sums in self.sums.items():
            if dtype not in self.macs_per_pe_cycle:
                raise Contradiction("the array does not multiply that dtype.", "sums", dtype)
            if sums != (own := _sums_of(dtype)):
                raise Contradiction(f'products of {dtype} are added up in "{own}".', "sums", dtype)

    def sum_dtype(self, dtype: str) -> str:
        """Returns the dtype in which products of a dtype are added up."""
        return self.sums.get(dtype) or _sums_of(dtype)

    @property
    def elements(self) -> int:
        """Processing elements of an array."""
        return self.rows * self.cols


@dataclass(frozen=True, slots=True)
class Requantize:
    """How sums of products of bytes become bytes (`abi/requantization.py` has the arithmetic).

    Attributes:
        scale: "float32": the sum times a float32. "fixed": times a multiplier of 31 bits, and
            shifted, so that biases and sums with other bytes are integers, too.
        rounding: what becomes of what lies between two integers; of "float32" it is "half_even".
    """

    scale: Literal["float32", "fixed"] = "float32"
    rounding: Literal["half_even", "half_up", "half_away", "floor", "double"] = "half_even"

    def __post_init__(self) -> None:
        if self.scale == "float32" and self.rounding != "half_even":
            raise Contradiction("products of float32 are rounded 'half_even'.", "rounding")

    @property
    def rule(self) -> str:
        """The attribute `requantize` of products of bytes."""
        return self.scale if self.scale == "float32" else self.rounding


@dataclass(frozen=True, slots=True)
class Vpu:
    """The vector unit of a core.

    Attributes:
        lanes: elements of the widest dtype that it takes in a cycle.
        dtype_rate: by dtype, elements a lane takes at once. Dtypes that are not named can be moved
            and chosen by, not computed with.
        cycles_per_op: by scalar opcode (`abi/scalar.py`), cycles of `lanes` elements.
        other_cycles_per_op: of opcodes that are not named.
        reduce: lanes are added up as a "tree", in log2(lanes) steps, or one by one ("serial").
    """

    lanes: int
    dtype_rate: Mapping[str, float] = field(hash=False)
    cycles_per_op: Mapping[str, float] = field(default_factory=dict, hash=False)
    other_cycles_per_op: float = 1.0
    reduce: Literal["tree", "serial"] = "tree"

    def __post_init__(self) -> None:
        at_least_1(self, "lanes")
        by_dtype(self.dtype_rate, "dtype_rate", above_0=True)
        for op, cycles in self.cycles_per_op.items():
            if op not in OPCODES:
                known = ", ".join(OPCODES)
                raise Contradiction(f"no scalar operation is called that. {known}.", *_op(op))
            if not cycles > 0:
                raise Contradiction("an operation takes more than 0 cycles.", *_op(op))
        if not self.other_cycles_per_op > 0:
            raise Contradiction("an operation takes more than 0 cycles.", "other_cycles_per_op")

    def cycles(self, opcode: str) -> float:
        """Returns the cycles in which `lanes` elements pass a scalar operation."""
        return self.cycles_per_op.get(opcode, self.other_cycles_per_op)

    def sum_cycles(self, addends: int) -> tuple[int, float]:
        """Returns how many sums of so many elements the lanes make at once, and the cycles.

        Elements that do not fit side by side were added to the lanes before, as others are; what
        takes these cycles is adding up the lanes.
        """
        lanes = min(self.lanes, addends)
        steps = (lanes - 1).bit_length() if self.reduce == "tree" else lanes - 1
        return self.lanes // lanes, steps * self.cycles("add")


@dataclass(frozen=True, slots=True)
class Sram:
    """A memory on the chip.

    Attributes:
        name: of the level, such as "l1".
        scope: whose it is: of each "core", or of the "chip".
        kib: of one.
        bytes_per_cycle: that it reads or writes, all banks together.
        banks, ports_per_bank: accesses to one bank at once.
        align_bytes: of a tile's begin, and of a bank's width.
        double_buffer: half of it is filled while the other half is used.
        whole_kib: a command that fits, and none of whose operands is larger, is computed once all
            of them are there; others tile by tile, while copies go on.
    """

    name: str
    kib: float
    bytes_per_cycle: float
    scope: Literal["core", "chip"] = "core"
    banks: int = 1
    ports_per_bank: int = 1
    align_bytes: int = 1
    double_buffer: bool = True
    whole_kib: float = 0.0

    def __post_init__(self) -> None:
        at_least_1(self, "banks", "ports_per_bank")
        power_of_2(self, "align_bytes")
        if not self.name:
            raise Contradiction("a memory has a name.", "name")
        if self.align_bytes * self.banks > self.bytes:
            raise Contradiction(
                f"{self.banks} banks of {self.align_bytes} bytes are more than {self.bytes} bytes.",
                "banks",
            )

    @property
    def bytes(self) -> int:
        """Bytes of one."""
        return int(self.kib * 1024)

    @property
    def tile_bytes(self) -> int:
        """Bytes that the tiles in use may take: half of a memory with two buffers."""
        return self.bytes // 2 if self.double_buffer else self.bytes


@dataclass(frozen=True, slots=True)
class Acc:
    """The memory that partial sums of a core's arrays are added up in."""

    kib: float
    bytes_per_cycle: float

    @property
    def bytes(self) -> int:
        """Bytes of one."""
        return int(self.kib * 1024)


@dataclass(frozen=True, slots=True)
class Dma:
    """What copies between DRAM and memories on the chip.

    Attributes:
        channels: copies at once, of a core.
        bytes_per_cycle: of one channel.
        setup_cycles: before a copy begins.
        burst_bytes: that DRAM is read or written in; shorter rows take as long.
        max_dims: dimensions of one copy; more are several copies.
    """

    channels: int
    bytes_per_cycle: float
    setup_cycles: int = 0
    burst_bytes: int = 64
    max_dims: int = 4

    def __post_init__(self) -> None:
        at_least_1(self, "channels", "max_dims")
        if self.channels > 2**12:
            raise Contradiction("no core has more than 4096 of them.", "channels")
        power_of_2(self, "burst_bytes")


@dataclass(frozen=True, slots=True)
class Dram:
    """Memory off the chip, which all cores share.

    Attributes:
        channels: of it, among which addresses go round every `interleave_bytes`.
        gb_per_s: of all channels together.
        efficiency: of that rate, the share that long copies reach.
        read_latency_ns, write_latency_ns: of an access.
        capacity_mib: what weights, state and buffers have to fit into.
    """

    gb_per_s: float
    capacity_mib: float
    channels: int = 1
    efficiency: float = 1.0
    read_latency_ns: float = 0.0
    write_latency_ns: float = 0.0
    interleave_bytes: int = 4096

    def __post_init__(self) -> None:
        at_least_1(self, "channels")
        power_of_2(self, "interleave_bytes")


@dataclass(frozen=True, slots=True)
class Noc:
    """What cores reach each other and memories of the chip by."""

    topology: Literal["bus", "ring", "mesh"] = "bus"
    gb_per_s: float = 256.0
    hop_cycles: int = 1


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How commands reach the machine.

    Attributes:
        mode: "loose": the host rings a doorbell for each command and polls until it has ended.
            "tight": commands wait in a queue, and one follows the other.
        overhead_ns: of the host, for each command that it starts.
        doorbell_cycles, poll_cycles: of a register's write, and of reading it.
        issue_cycles: to take a command from the queue.
        queue_depth: commands that wait.
        call_us: of a run, once.
    """

    mode: Literal["loose", "tight"] = "tight"
    overhead_ns: float = 0.0
    doorbell_cycles: int = 0
    poll_cycles: int = 0
    issue_cycles: int = 0
    queue_depth: int = 1024
    call_us: float = 0.0

    def __post_init__(self) -> None:
        at_least_1(self, "queue_depth")


@dataclass(frozen=True, slots=True)
class TileMultiple:
    """What sizes of a product's tiles are multiples of: rows, columns and depth."""

    m: int = 1
    n: int = 1
    k: int = 1

    def __post_init__(self) -> None:
        at_least_1(self, "m", "n", "k")


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a program for the machine has to keep to.

    Attributes:
        dtypes: that its memories and units take. Nodes of others go to the host.
        channel_align: by dtype, what the channels of a tensor in memory are padded to.
        tile_multiple: of products.
        max_rank: most dimensions of a tensor; 0: any number.
        layouts: how images lie, "NHWC" or "NCHW".
        fallback: nodes that break a constraint run on the "host", or compiling is refused
            ("refuse").
    """

    dtypes: tuple[str, ...]
    channel_align: Mapping[str, int] = field(default_factory=dict, hash=False)
    tile_multiple: TileMultiple = TileMultiple()
    max_rank: int = 0
    layouts: tuple[Literal["NHWC", "NCHW"], ...] = ("NHWC",)
    fallback: Literal["host", "refuse"] = "host"

    def __post_init__(self) -> None:
        if not self.dtypes:
            raise Contradiction("a machine without dtypes runs nothing.", "dtypes")
        for at, dtype in enumerate(self.dtypes):
            if dtype not in DTYPES:
                raise Contradiction(f"no dtype is called that. {', '.join(DTYPES)}.", "dtypes", at)
        if not self.layouts:
            raise Contradiction("images lie in some layout.", "layouts")
        by_dtype(self.channel_align, "channel_align", empty=True)
        for dtype, align in self.channel_align.items():
            if dtype not in self.dtypes:
                raise Contradiction("'dtypes' does not name it.", "channel_align", dtype)
            if not is_power_of_2(align):
                raise Contradiction(f"{align} is no power of two.", "channel_align", dtype)


@dataclass(frozen=True, slots=True)
class Energy:
    """Picojoules of what is done, and the power of doing nothing.

    Attributes:
        mac_pj: by dtype, of a multiply-add.
        vec_op_pj: of a scalar operation on one element.
        sram_pj_per_byte: read or written.
        dram_pj_per_bit: likewise, and `dram_row_act_pj` of opening one row of `dram_row_bytes`.
        noc_pj_per_byte_hop: of a byte that goes one hop.
        static_w: watts, whatever is done.
    """

    mac_pj: Mapping[str, float] = field(default_factory=dict, hash=False)
    vec_op_pj: float = 0.0
    sram_pj_per_byte: float = 0.0
    dram_pj_per_bit: float = 0.0
    dram_row_act_pj: float = 0.0
    dram_row_bytes: int = 2048
    noc_pj_per_byte_hop: float = 0.0
    static_w: float = 0.0

    def __post_init__(self) -> None:
        by_dtype(self.mac_pj, "mac_pj", empty=True)
        power_of_2(self, "dram_row_bytes")


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was fitted to measured times; by default nothing was.

    Attributes:
        mxu_eff, dram_eff: shares of the peaks that products and copies reach.
        overlap_p: how computing (a) and copying (b) overlap: (a^p + b^p)^(1/p); inf: the longer.
        source: what was measured, and where.
        held_out: the error on what the fit has not seen.
    """

    mxu_eff: float = 1.0
    dram_eff: float = 1.0
    overlap_p: float = field(default=math.inf, metadata=INFINITE)
    source: str = ""
    held_out: str = ""

    def __post_init__(self) -> None:
        if self.overlap_p < 1:
            raise Contradiction("below 1 is slower than one after the other.", "overlap_p")


@dataclass(frozen=True, slots=True)
class Npu:
    """A machine whose parts are modelled one by one."""

    clock: Clock
    mxu: Mxu
    vpu: Vpu
    sram: tuple[Sram, ...]
    acc: Acc
    dma: Dma
    dram: Dram
    dispatch: Dispatch
    constraints: Constraints
    cores: Cores = Cores()
    noc: Noc = Noc()
    requantize: Requantize = Requantize()
    energy: Energy = field(default_factory=Energy)

    def __post_init__(self) -> None:
        self._check_memories()
        self._check_dtypes()
        row = self.mxu.cols * _SUM_BYTES
        if self.has_array and self.acc.bytes < row:
            raise Contradiction(
                f"{self.acc.bytes} bytes hold no row of {self.mxu.cols} sums ({row} bytes).",
                *("acc", "kib"),
            )
        self._check_tile()
        self._check_rates()

    def _check_memories(self) -> None:
        if not self.sram:
            raise Contradiction("a machine has at least one memory on the chip.", "sram")
        names = [level.name for level in self.sram]
        for at, name in enumerate(names):
            if name in names[:at]:
                raise Contradiction(f"{name!r} is another memory's name.", "sram", at, "name")
        if self.dram.capacity_mib * 2**20 < max(level.bytes for level in self.sram):
            raise Contradiction("less than a memory on the chip.", "dram", "capacity_mib")

    def _check_dtypes(self) -> None:
        for table, key in (
            ("mxu", "macs_per_pe_cycle"),
            ("vpu", "dtype_rate"),
            ("energy", "mac_pj"),
        ):
            for dtype in getattr(getattr(self, table), key):
                if dtype not in self.constraints.dtypes:
                    raise Contradiction("'constraints.dtypes' does not name it.", table, key, dtype)

    def _check_rates(self) -> None:
        """Copies are not slower than is counted; `calibration.dram_eff` is heeded by the walk."""
        noc = self.noc.gb_per_s * 1e3 / self.clock.core_mhz if self.cores.count > 1 else math.inf
        for rate, *path in (
            (self.dram_bytes_per_cycle / self.dram.channels, "dram", "gb_per_s"),
            (self.dma.bytes_per_cycle, "dma", "bytes_per_cycle"),
            (self.level.bytes_per_cycle, "sram", 0, "bytes_per_cycle"),
            (noc, "noc", "gb_per_s"),
        ):
            if rate < LEAST_RATE:
                each = " of a channel" if path[0] == "dram" and self.dram.channels > 1 else ""
                raise Contradiction(
                    f"{rate:.3g} bytes a cycle{each}; 1/16 is the least that is counted.", *path
                )

    def _check_tile(self) -> None:
        """The smallest tile of a product has to fit somewhere."""
        tile, room = self.constraints.tile_multiple, max(s.tile_bytes for s in self.sram)
        size = min(dtype_size(d) for d in self.multiplied)
        needed = size * (tile.m * tile.k + tile.k * tile.n)
        if needed > room:
            raise Contradiction(
                f"tiles of {tile.m}x{tile.n}x{tile.k} take {needed} bytes, and no memory has room "
                f"for more than {room}.",
                *("constraints", "tile_multiple"),
            )
        sums = tile.m * tile.n * _SUM_BYTES if self.has_array else 0
        if sums > self.acc.bytes:
            raise Contradiction(
                f"tiles of {tile.m}x{tile.n} sums take {sums} bytes, 'acc' has {self.acc.bytes}.",
                *("constraints", "tile_multiple"),
            )

    @property
    def level(self) -> Sram:
        """The memory that tiles of a product are streamed from: the first of the list."""
        return self.sram[0]

    def sram_named(self, name: str) -> Sram:
        """Returns a memory by its name; KeyError for one that is not there."""
        return next((s for s in self.sram if s.name == name), None) or _missing(name)

    def refusal(self, stem: str, operands: Sequence[tuple[str, int]]) -> str | None:
        """Returns what of a kernel's operands breaks a constraint, or None.

        Args:
            operands: (dtype, number of dimensions) of each, inputs first.
        """
        if why := _dtype_refusal(stem, operands, self.constraints.dtypes, "constraints.dtypes"):
            return why
        computed = {*self.mxu.macs_per_pe_cycle, *self.vpu.dtype_rate}
        if operands and stem not in _MOVES and operands[0][0] not in computed:
            known = " or ".join(sorted(computed))
            return f"takes dtype {known} to compute '{stem}' with, not {operands[0][0]}"
        most = self.constraints.max_rank
        for _, rank in operands:
            if most and rank > most:
                return f"takes at most {most} dimensions, not {rank} ('constraints.max_rank')"
        return None

    @property
    def has_array(self) -> bool:
        """Whether an array multiplies; else the vector unit does."""
        return bool(self.mxu.macs_per_pe_cycle)

    @property
    def multiplied(self) -> Mapping[str, float]:
        """The dtypes that are multiplied, by what a lane or element takes of each in a cycle."""
        return self.mxu.macs_per_pe_cycle if self.has_array else self.vpu.dtype_rate

    @property
    def multipliers(self) -> float:
        """What all units multiply and add in a cycle, of the dtype that they take most of."""
        each = self.mxu.elements * self.mxu.per_core if self.has_array else self.vpu.lanes
        return self.cores.count * each * max(self.multiplied.values())

    def peak_ops_per_second(self, dtype: str) -> float:
        """Returns what all arrays compute of a dtype; a multiply-add is two operations.

        Without an array, what the vector units do.
        """
        rate = self.multiplied.get(dtype, 0.0)
        macs = rate * self.mxu.elements * self.mxu.per_core
        if not self.has_array:
            macs = rate * self.vpu.lanes / self.vpu.cycles("fma")
        return 2e6 * macs * self.cores.count * self.clock.core_mhz

    @property
    def dram_bytes_per_cycle(self) -> float:
        """Bytes that DRAM moves in a cycle of the core, by what long copies reach."""
        return self.dram.gb_per_s * 1e3 * self.dram.efficiency / self.clock.core_mhz


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine that a target describes.

    Attributes:
        name: of the target.
        npu: its parts, where they are modelled one by one.
        roofline: what it reaches, where that is all that is known.
        calibration: what was fitted to measured times.
    """

    name: str
    npu: Npu | None = None
    roofline: Roofline | None = None
    calibration: Calibration = Calibration()

    def refusal(self, stem: str, operands: Sequence[tuple[str, int]]) -> str | None:
        """Returns what of a kernel's operands the machine does not take, or None.

        Args:
            operands: (dtype, number of dimensions) of each, inputs first.
        """
        if self.npu is not None:
            return self.npu.refusal(stem, operands)
        held = () if self.roofline is None else self.roofline.dtypes
        return _dtype_refusal(stem, operands, held, "roofline.dtypes") if held else None


NPU_TABLES = tuple(f.name for f in fields(Npu))


def _dtype_refusal(
    stem: str, operands: Sequence[tuple[str, int]], held: Sequence[str], key: str
) -> str | None:
    """Returns which operand is of none of the dtypes that `key` of a file lists, or None.

    What is computed with, the first operand, and what is made, the last one, are held to them;
    vectors beside them and packed weights, whatever packs them, are the units' own affair.
    """
    own = (operands[0], *(() if stem in _PACKS else operands[-1:])) if operands else ()
    for dtype, _ in own:
        if dtype not in held:
            return f"takes dtype {' or '.join(held)}, not {dtype} ('{key}')"
    return None


def _sums_of(dtype: str) -> str:
    return "float32" if "float" in dtype else "int32"


def _op(op: str) -> tuple[str, str]:
    return ("cycles_per_op", op)


def _missing(name: str) -> Sram:
    raise KeyError(name)

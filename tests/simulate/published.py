"""Numbers that others publish of accelerators, and what npusim says of the same.

`ROWS` are the table of docs/simulate.md. A row's `within` is what npusim is held to; a row that
misses the goal of its group says by how much it may, and stands in the table like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from textwrap import wrap

from npusim.schedule import best_schedule, conv_work, product_work
from npusim.simulate.roofline import command_time, run_time, work_of
from npusim.simulate.tiles import array_cycles, walk
from npusim.targets import TargetConfig, override
from npusim.targets.hardware import Hardware


@dataclass(frozen=True)
class Group:
    """Rows of one source.

    Attributes:
        says: what was published, where, and what of npusim is compared.
        goal: relative error; 0: exact.
    """

    name: str
    says: str
    goal: float


@dataclass(frozen=True)
class Row:
    """A published number: `what` it is of, npusim's, and how far it may be off."""

    group: Group
    what: str
    published: float
    found: float
    within: float

    @property
    def off(self) -> float:
        """Relative to what was published."""
        return self.found / self.published - 1


SCALE_SIM = Group(
    "SCALE-Sim",
    "github.com/scalesim-project/SCALE-Sim, test/general, golden_trace_user_*/COMPUTE_REPORT.csv: "
    "cycles less stalls, and one more, since it prints the last cycle's number, from 0. Beside it: "
    "the formula.",
    0.0,
)
LLMCOMPASS = Group(
    "LLMCompass",
    "github.com/PrincetonUniversity/LLMCompass, systolic_array_model/look_up_table_*.csv: cycles, "
    "of stationary sums, and one more, likewise. Beside it: the formula.",
    0.0,
)
GEMMINI = Group(
    "Gemmini, products",
    "github.com/PSAL-POSTECH/ONNXim, tests/operatons/GemmWSTest.cc: cycles of Gemmini's "
    "register-transfer-level model, 8x8, int8. Beside it: the walk of the schedule that npusim "
    "chooses, from the first copy to the last.",
    0.02,
)
GEMMINI_CONV = Group(
    "Gemmini, convolutions",
    "The same, tests/operatons/ConvWSTest.cc. Beside it: the walk of npusim's own schedule, which "
    "streams pixels across the ends of rows.",
    0.25,
)
GEMMINI_TILES = Group(
    "Gemmini, convolutions in its own tiles",
    "The same. Beside it: the formula over the tiles that Gemmini's library takes, as the file "
    "lists them; an instruction streams at most 8 pixels of one row of a tile.",
    0.05,
)
TIMELOOP = Group(
    "Timeloop",
    "github.com/Accelergy-Project/timeloop-accelergy-exercises, reference outputs of its designs: "
    "cycles of a convolution 3 to 32, 3x3, stride 2, of "
    "112x112 pixels. Beside it: what no schedule is below (`Schedule.least_cycles`).",
    0.0,
)
VELA = Group(
    "Vela, Ethos-U55-256",
    "Arm's ethos-u-vela, PERFORMANCE.md: utilization of a network of 99,090,432 multiply-adds in "
    "1,889,913 cycles, and inferences a second of one of 114,098 cycles. Beside it: the peak and "
    "the clock of the target.",
    1e-5,
)
ANE = Group(
    "Apple M1's neural engine",
    "arXiv:2606.22283: operations of float16 a byte from which on arithmetic bounds, and "
    "microseconds of any dispatch. Beside it: the peaks of the target, and the time of a run of "
    "the product 1x1x1. It has no numbers of single products that say their sizes.",
    0.01,
)
TPU = Group(
    "TPU v6e",
    "github.com/PSAL-POSTECH/PyTorchSim, timing_mode_validation/ref_v6e.csv: microseconds on the "
    "chip, bfloat16. Beside it: the walk with the target's calibration, and a run's fixed time. "
    "Of 100 of its products 50 were fitted to; the others were off by 5.1 % in the mean.",
    0.25,
)


def hardware(name: str, *settings: str) -> Hardware:
    """Returns a target's machine, some of its numbers changed."""
    found = override(TargetConfig.named(name), settings).hardware
    assert found is not None
    return found


def formula(target: Hardware, m: int, k: int, n: int) -> int:
    """Returns the array's cycles of a product whose operands are there."""
    assert target.npu is not None
    return array_cycles(target.npu, m, k, n, "int8")


def rows() -> Iterator[Row]:
    """Yields all of them, in the order of the table."""
    yield from _systolic()
    yield from _gemmini()
    yield from _identities()
    yield from _ane()
    yield from _tpu()


# M, K, N are sizes of [M, K] times [K, N].

_SCALE = (("ws", 11_199), ("os", 10_175), ("is", 14_207))  # of 256, 256, 128
_LLMCOMPASS = (  # M, N, K, rows and columns, cycles
    (16, 16, 4, 8, 71), (8, 32, 64, 8, 311), (16, 32, 4, 8, 143), (4, 64, 32, 8, 367),
    (32, 16, 256, 16, 571), (16, 16, 512, 16, 541), (32, 32, 128, 16, 631), (8, 32, 256, 16, 571),
    (32, 16, 1024, 32, 1085), (32, 32, 512, 32, 573), (8, 16, 128, 64, 253),
    (64, 32, 2048, 128, 2301), (256, 256, 192, 128, 1783), (1, 256, 192, 128, 891),
)  # fmt: skip
_PRODUCTS = (  # M, K, N, cycles, and how far a miss may be off
    (1, 512, 1000, 66_360, 0.02),
    # Weights of 2 MB: more than the 512 KiB of the system's second cache, which 512x1000 fit into.
    # The target knows no cache between DRAM and the scratchpad.
    (1, 2048, 1000, 270_431, 0.04),
    (512, 1024, 2, 67_553, 0.02),
    (512, 512, 768, 3_171_978, 0.02),
    (512, 512, 1024, 4_227_300, 0.02),
    (512, 768, 512, 3_170_315, 0.02),
    (512, 768, 768, 4_756_894, 0.02),
    (512, 768, 2304, 14_266_861, 0.02),
    (512, 1024, 512, 4_228_207, 0.02),
    (512, 1024, 1024, 8_458_619, 0.02),
    (512, 1024, 3072, 25_390_266, 0.02),
    (512, 1024, 4096, 33_912_072, 0.02),
    (512, 4096, 1024, 33_912_533, 0.02),
)
_CONVOLUTIONS = (  # channels in, size, channels out, kernel, stride, cycles, and Gemmini's tiles:
    # channels in and out, rows and columns of pixels
    (3, 224, 64, 7, 2, 5_887_961, (3, 8, 15, 17), 0.05),
    (64, 56, 64, 3, 1, 2_133_641, (64, 8, 15, 17), 0.05),
    (64, 56, 128, 3, 2, 1_052_613, (24, 8, 15, 17), 0.05),
    (64, 56, 128, 1, 2, 118_304, (64, 8, 15, 17), 0.05),
    # As if its tiles had 17 columns like those above, and not the 14 that are listed.
    (128, 28, 128, 3, 1, 2_103_568, (80, 8, 17, 14), 0.15),
    (128, 28, 256, 3, 2, 914_287, (32, 8, 14, 14), 0.05),
    (256, 14, 256, 3, 1, 1_828_936, (96, 8, 14, 14), 0.05),
    (128, 28, 256, 1, 2, 101_763, (128, 8, 14, 14), 0.05),
    (256, 14, 512, 3, 2, 1_040_621, (51, 40, 7, 7), 0.05),
    (256, 14, 512, 1, 2, 102_703, (256, 40, 7, 7), 0.05),
    (512, 7, 512, 3, 1, 2_051_216, (73, 40, 7, 7), 0.05),
)
_TIMELOOP = (  # design, rows and columns that compute, cycles
    ("eyeriss_like", 9, 14, 86_016), ("simba_like", 6, 8, 225_792),
    ("simple, stationary sums", 4, 4, 677_376), ("simple, stationary weights", 3, 4, 903_168),
)  # fmt: skip
_TPU = (  # M, K, N, microseconds, and how far a miss may be off
    (1, 384, 384, 2.044, 0.25), (1, 4096, 28672, 160.913, 0.25), (32, 3072, 3072, 17.839, 0.25),
    (128, 8192, 8192, 97.078, 0.25), (512, 4096, 4096, 49.861, 0.25),
    (512, 28672, 8192, 374.302, 0.25), (1024, 8192, 8192, 183.802, 0.25),
    (2048, 1024, 1024, 13.206, 0.25), (1, 4096, 4096, 25.157, 0.25), (1, 768, 3072, 6.936, 0.28),
    (32, 14336, 4096, 83.351, 0.25), (512, 3072, 16384, 134.768, 0.25),
    (512, 8192, 3072, 77.302, 0.25), (1024, 3072, 16384, 196.202, 0.27),
)  # fmt: skip


def _systolic() -> Iterator[Row]:
    for dataflow, published in _SCALE:
        found = formula(hardware(f"scale-32-{dataflow}"), 256, 256, 128)
        yield Row(SCALE_SIM, f"256x256x128, 32x32 {dataflow}", published + 1, found, 0.0)
    for m, n, k, array, published in _LLMCOMPASS:
        sides = (f"mxu.rows={array}", f"mxu.cols={array}", "acc.kib=64")
        found = formula(hardware("scale-32-os", *sides), m, k, n)
        yield Row(LLMCOMPASS, f"{m}x{k}x{n}, {array}x{array} os", published + 1, found, 0.0)


def _gemmini() -> Iterator[Row]:
    npu = hardware("gemmini-8").npu
    assert npu is not None
    for m, k, n, published, within in _PRODUCTS:
        found = walk(npu, best_schedule(npu, product_work(m, n, k, "int8"))).cycles
        yield Row(GEMMINI, f"{m}x{k}x{n}", published, found, within)
    for k, size, n, kernel, stride, published, _, _ in _CONVOLUTIONS:
        work = conv_work((k, size, size), n, (kernel, kernel), "int8", stride, kernel // 2)
        found = walk(npu, best_schedule(npu, work)).cycles
        yield Row(GEMMINI_CONV, _conv(k, size, n, kernel, stride), published, found, 0.25)
    for k, size, n, kernel, stride, published, tile, within in _CONVOLUTIONS:
        found = _in_tiles((k, n, size // stride, size // stride), tile, kernel**2)
        yield Row(GEMMINI_TILES, _conv(k, size, n, kernel, stride), published, found, within)


def _conv(k: int, size: int, n: int, kernel: int, stride: int) -> str:
    return f"{k} to {n}, {kernel}x{kernel}, stride {stride}, {size}x{size}"


def _in_tiles(sizes: tuple[int, ...], tile: tuple[int, ...], taps: int) -> int:
    """Returns the cycles of a convolution in tiles of channels in and out, rows and columns.

    Pixels of a row of a tile go in instructions of as many as the array has rows, of which a
    short one takes `min_stream_rows`; a fold streams all of a tile.
    """
    npu = hardware("gemmini-8").npu
    assert npu is not None
    rows, least = npu.mxu.rows, npu.mxu.min_stream_rows
    ins, outs, lines, columns = map(_parts, sizes, tile)
    folds = sum(ceil(k / rows) for k in ins) * sum(ceil(n / npu.mxu.cols) for n in outs) * taps
    streamed = [
        line * sum(max(b, least) for b in _parts(c, rows)) for line in lines for c in columns
    ]
    return sum(array_cycles(npu, pixels, rows, npu.mxu.cols, "int8", folds) for pixels in streamed)


def _parts(size: int, tile: int) -> list[int]:
    return [min(tile, size - at) for at in range(0, size, tile)]


def _identities() -> Iterator[Row]:
    work = conv_work((3, 224, 224), 32, (3, 3), "int8", 2, 1)
    fast = ("dram.gb_per_s=1000", "dma.bytes_per_cycle=1000")  # Timeloop's memories do not bound it
    for design, lines, columns, published in _TIMELOOP:
        sides = (f"mxu.rows={lines}", f"mxu.cols={columns}")
        npu = hardware("scale-32-ws", *sides, *fast).npu
        assert npu is not None
        what = f"{design}, {lines * columns} multipliers"
        yield Row(TIMELOOP, what, published, best_schedule(npu, work).least_cycles, 0.0)
    ethos = hardware("ethos-u55-256").npu
    assert ethos is not None
    hertz = 1e6 * ethos.clock.core_mhz
    macs_per_cycle = ethos.peak_ops_per_second("int8") / 2 / hertz
    used = round(100 * 99_090_432 / 1_889_913 / macs_per_cycle, 2)
    yield Row(VELA, "utilization, %", 20.48, used, 1e-5)
    yield Row(VELA, "inferences a second", 4382.18, hertz / 114_098, 1e-5)


def _ane() -> Iterator[Row]:
    device = hardware("ane-m1").roofline
    assert device is not None
    peak = 1e12 * device.peak("float16").product_tera_ops_per_second
    yield Row(ANE, "ridge", 141, peak / (1e9 * device.memory[-1].giga_bytes_per_second), 0.01)
    fields = {"m": 1, "n": 1, "k": 1, "x_dtype": 1, "w_dtype": 1}
    command = command_time(work_of("linear", fields, 2, 6), "linear", device)
    yield Row(ANE, "a dispatch", 230, 1e6 * run_time([command], device), 0.01)


def _tpu() -> Iterator[Row]:
    target = hardware("tpu-v6e")
    npu = target.npu
    assert npu is not None
    for m, k, n, published, within in _TPU:
        work = product_work(m, n, k, "bfloat16")
        schedule = best_schedule(npu, work, calibration=target.calibration)
        cycles = walk(npu, schedule, 0, target.calibration).cycles + npu.dispatch.issue_cycles
        found = npu.dispatch.call_us + cycles / npu.clock.core_mhz
        yield Row(TPU, f"{m}x{k}x{n}", published, found, within)


def table(found: list[Row]) -> str:
    """Returns the rows as Markdown, each group under what it is."""
    lines: list[str] = []
    for group in dict.fromkeys(row.group for row in found):
        goal = "exact" if group.goal < 1e-4 else f"within {100 * group.goal:g} %"
        lines += ["", *wrap(f"**{group.name}** (goal: {goal}). {group.says}", 100), ""]
        lines += ["| | published | npusim | off |", "|---|---:|---:|---:|"]
        for row in (r for r in found if r.group is group):
            numbers = (f"{x:,.0f}" if x >= 1e4 else f"{x:,.6g}" for x in (row.published, row.found))
            miss = " (misses)" if abs(row.off) > max(group.goal, 1e-5) else ""
            lines.append(f"| {row.what} | {' | '.join(numbers)} | {100 * row.off:+.1f} %{miss} |")
    return "\n".join(lines[1:])

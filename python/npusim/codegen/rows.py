"""Launch configurations of what works along rows: softmax, norms, reductions, scans, sorts.

The same decisions on every GPU of 32 lanes a warp (Metal: a SIMD group) and 1,024 threads a block,
between limits that the device's own module gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from npusim.abi.kernels import Params
from npusim.codegen.launch_config import LANES, MAX_THREADS, Launch, LaunchConfig, Rule, blocks
from npusim.ir.types import CODE_SIZES
from npusim.targets.measured import Rows

_BLOCK = 256
_HELD = 32  # numbers of a row that a thread keeps in registers
_SLICE = 256  # elements, at least, of a slice of neighbouring outputs
_PIECE = 2048  # elements of a scan's lane that a block takes of several
_TOTAL_BYTES = 8  # of a piece's total
_SHARED_ITEMS = 2048  # of a sort in shared memory: 12 bytes each, of 32 KiB
_ITEM_BYTES = 12
_SECTOR_BYTES = 32  # of memory, that are read at once
_COLUMN_ELEMENTS = 8  # of a column, that a thread has at least where several share it
_STATE_BYTES = 16  # of the widest running value: an extreme with its position
_VAR, _STD, _LOG_SUM_EXP = 9, 10, 14  # op of `reduce` (abi/kernels.py)
_TWO_PASSES = frozenset((_VAR, _STD, _LOG_SUM_EXP))  # where blocks share nothing
_SHORT_ELEMENTS = 8  # of what is reduced, that a thread has at least where there are many outputs
_SLICE_ELEMENTS = 16  # of a slice of a softmax, that a thread has at least
_FEWEST_SLICES = 16  # of a softmax; of fewer, what a launch takes is not won back


@dataclass(frozen=True)
class RowRules:
    """The rules of stems that work along rows, for one kind of device.

    Attributes:
        fit: sizes between which they choose.
        processors: that a grid should fill.
        resident: threads that fill them.
        shares_lanes: blocks may share a scan's lane, a softmax's, or neighbouring outputs of a
            reduction, and reductions read what they reduce once.
    """

    fit: Rows
    processors: int
    resident: int
    shares_lanes: bool = False

    @property
    def rules(self) -> Mapping[str, Rule]:
        """By stem."""
        return {
            "softmax": self._softmax,
            "norm": self._norm,
            "group_norm": self._group_norm,
            "reduce": self._reduce,
            "scan": self._scan,
            "sort": _sort,
        }

    def _lanes(self, rows: int, size: int, pack: int) -> int:
        """Returns how many threads share a row: a warp, a part of one, or a block."""
        if size <= self.fit.warp_elements and (
            rows > self.processors or size <= self.fit.short_elements
        ):
            return self._lanes_of_warp(rows, size // pack, pack)
        if size <= self.fit.block_elements:
            return _BLOCK
        return MAX_THREADS

    def _lanes_of_warp(self, rows: int, packs: int, pack: int) -> int:
        """Returns the fewest lanes of which none idles, if rows so long fill the device."""
        best, best_share = LANES, packs / (blocks(packs, LANES) * LANES)
        for lanes in (16, 8, 4):
            rounds = blocks(packs, lanes)
            share = packs / (rounds * lanes)
            fits = rounds * pack <= _HELD and rows * lanes >= self.resident // 2
            if fits and share >= best_share:
                best, best_share = lanes, share
        return best

    def _row_kernel(
        self, rows: int, size: int, pack: int, lanes: int = 0, **defines: int
    ) -> LaunchConfig:
        if rows == 0 or size == 0:
            return LaunchConfig(())
        lanes = lanes or self._lanes(rows, size, pack)
        block = max(lanes, LANES * 4)
        launch = Launch((blocks(rows * lanes, block), 1, 1), (block, 1, 1))
        constants = {"BLOCK": block, "LANES": lanes, "PACK": pack, **defines}
        return LaunchConfig((launch,), defines=constants)

    def _softmax(self, p: Params) -> LaunchConfig:
        widest = max(CODE_SIZES[p["x_dtype"]], CODE_SIZES[p["y_dtype"]])
        columns = p["outer"] * p["inner"] if p["size"] else 0
        if columns == 0:
            return LaunchConfig(())
        split = self._split_softmax(p, columns)
        if split is not None:
            return split
        if p["inner"] == 1:
            pack = _pack(p["size"], (), widest)
            return self._row_kernel(p["outer"], p["size"], pack, PARTS=1, **self._one_slice)
        block, parts = 64 if columns < self.resident else _BLOCK, 1
        beside = _SECTOR_BYTES // CODE_SIZES[p["x_dtype"]]  # columns that are read at once
        wanted = _power_of_two(blocks(self.resident, columns))  # threads a column
        longest = _power_of_two(blocks(p["size"], _COLUMN_ELEMENTS))
        if min(wanted, longest) > 1:
            parts = min(wanted, longest, MAX_THREADS // beside)
            block = max(parts * beside, LANES * 4)
        launch = Launch((blocks(columns, block // parts), 1, 1), (block, 1, 1))
        defines = {"BLOCK": block, "LANES": LANES, "PACK": 1, "PARTS": parts, **self._one_slice}
        return LaunchConfig((launch,), defines=defines)

    @property
    def _one_slice(self) -> dict[str, int]:
        return {"SPLIT": 1} if self.shares_lanes else {}

    def _split_softmax(self, p: Params, columns: int) -> LaunchConfig | None:
        """Few long columns, or rows: a block for each slice finds its sums, then all write."""
        beside = min(_SECTOR_BYTES // CODE_SIZES[p["x_dtype"]], _power_of_two(p["inner"]))
        groups, parts = blocks(columns, beside), _BLOCK // beside
        fewest = parts * _SLICE_ELEMENTS
        split = min(self.resident // _BLOCK // groups, p["size"] // fewest)
        if not self.shares_lanes or split < _FEWEST_SLICES:
            return None
        launches = tuple(
            Launch((groups * split, 1, 1), (_BLOCK, 1, 1), entry=entry)
            for entry in ("npusim_kernel", "npusim_write")
        )
        defines = {"BLOCK": _BLOCK, "LANES": LANES, "PACK": 1, "PARTS": parts, "SPLIT": split}
        scratch = columns * split * _STATE_BYTES
        return LaunchConfig(launches, scratch=scratch, defines=defines)

    def _norm(self, p: Params, lanes: int = 0) -> LaunchConfig:
        widest = max(CODE_SIZES[p["x_dtype"]], CODE_SIZES[p["y_dtype"]])
        pack = _pack(p["size"], (p["x_row_stride"], p["y_row_stride"]), widest)
        vectors = p["has_weight"] + p["has_bias"]
        return self._row_kernel(p["rows"], p["size"], pack, lanes, VECTORS=vectors)

    def norm_in_one_order(self, p: Params) -> LaunchConfig:
        """The rule of `norm` with as many lanes a row for any number of rows as for one."""
        return self._norm(p, self._lanes(1, p["size"], 1))

    def _group_norm(self, p: Params) -> LaunchConfig:
        count = p["batch"] * p["groups"]
        elements = p["channels"] // max(p["groups"], 1) * p["spatial"]
        if count == 0 or elements == 0:
            return LaunchConfig(())
        block = MAX_THREADS if elements >= self.fit.block_elements else _BLOCK
        launch = Launch((count, 1, 1), (block, 1, 1))
        vectors = p["has_weight"] + p["has_bias"]
        return LaunchConfig((launch,), defines={"BLOCK": block, "VECTORS": vectors})

    def _reduce(self, p: Params) -> LaunchConfig:
        shape, reduced = p["shape"][: p["rank"]], p["reduced"][: p["reduced_rank"]]
        outputs, elements = prod(shape), prod(reduced)
        if outputs == 0:
            return LaunchConfig(())
        out_step = _innermost(shape, p["x_strides"])
        in_step = _innermost(reduced, p["reduced_strides"])
        fewest = 2 if self.shares_lanes else LANES
        across = int(outputs >= fewest and out_step < in_step)
        wide = min(_power_of_two(outputs), LANES)  # neighbours that are read at once
        wanted = _power_of_two(
            blocks(self.resident, outputs)
        )  # threads an output, to fill the device
        block = _BLOCK
        if across:
            split = self._split_across(outputs, elements, wide)
            if split > 1:
                return _split_reduce(outputs, split, across=wide)
            block = MAX_THREADS if wanted > _BLOCK // LANES and elements >= _BLOCK else _BLOCK
            parts = min(wanted, block // wide)
        else:
            block = MAX_THREADS if wanted >= MAX_THREADS and elements >= 8 * MAX_THREADS else _BLOCK
            few = _power_of_two(blocks(elements, _SHORT_ELEMENTS))  # of a short row
            parts = min(max(wanted, min(few, LANES)), block)
            one_pass = self.shares_lanes or p["op"] not in _TWO_PASSES
            if one_pass and elements >= 4 * self.fit.split_elements:
                split = min(
                    blocks(elements, self.fit.split_elements),
                    blocks(self.resident // _BLOCK, outputs),
                )
                if split > 1:
                    return _split_reduce(outputs, split)
        parts = min(parts, _power_of_two(max(elements, 1)))
        launch = Launch((blocks(outputs, block // parts), 1, 1), (block, 1, 1))
        defines = {"BLOCK": block, "PARTS": parts, "ACROSS": across, "SPLIT": 1}
        return LaunchConfig((launch,), defines=defines)

    def _split_across(self, outputs: int, elements: int, wide: int) -> int:
        """Returns how many slices of the elements have blocks of their own, `wide` outputs each."""
        if not self.shares_lanes or elements < 8 * _SLICE:
            return 1
        return min(
            blocks(elements, _SLICE * LANES // wide),
            blocks(self.resident // _BLOCK, blocks(outputs, wide)),
        )

    def _scan(self, p: Params) -> LaunchConfig:
        lanes = p["outer"] * p["inner"]
        if lanes == 0 or p["size"] == 0:
            return LaunchConfig(())
        few = p["inner"] == 1 or lanes < self.fit.scan_lanes
        together = p["size"] > self.fit.scan_elements and few
        if together and self.shares_lanes and p["size"] >= 4 * _PIECE and lanes < self.processors:
            return _split_scan(lanes, blocks(p["size"], _PIECE))
        threads = _BLOCK if together else 1
        launch = Launch((blocks(lanes * threads, _BLOCK), 1, 1), (_BLOCK, 1, 1))
        return LaunchConfig((launch,), defines={"BLOCK": _BLOCK, "LANES": threads, "PIECES": 1})


def _pack(size: int, strides: tuple[int, ...], bytes_each: int) -> int:
    """Returns the widest pack that divides a row and the distances between rows."""
    pack = 16 // bytes_each
    while any(n % pack for n in (size, *strides)):
        pack //= 2
    return pack


def _power_of_two(n: int) -> int:
    """Returns the smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def _split_reduce(outputs: int, split: int, across: int = 1) -> LaunchConfig:
    """Few outputs of many elements: a block for each of `split` slices, of as many neighbouring
    outputs as `across` says, then one an output."""
    launches = (
        Launch((blocks(outputs, across) * split, 1, 1), (_BLOCK, 1, 1)),
        Launch((outputs, 1, 1), (_BLOCK, 1, 1), entry="npusim_combine"),
    )
    parts = _BLOCK // across
    defines = {"BLOCK": _BLOCK, "PARTS": parts, "ACROSS": int(across > 1), "SPLIT": split}
    return LaunchConfig(launches, scratch=outputs * split * _STATE_BYTES, defines=defines)


def _split_scan(lanes: int, pieces: int) -> LaunchConfig:
    """Few long lanes: a block for each piece tells its total, then each scans behind others."""
    launches = tuple(
        Launch((lanes * pieces, 1, 1), (_BLOCK, 1, 1), entry=entry)
        for entry in ("npusim_kernel", "npusim_scan")
    )
    defines = {"BLOCK": _BLOCK, "LANES": _BLOCK, "PIECES": pieces, "PIECE": _PIECE}
    return LaunchConfig(launches, scratch=lanes * pieces * _TOTAL_BYTES, defines=defines)


def _innermost(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Returns the stride of the last dimension that moves; a large one when none does."""
    steps = [abs(s) for n, s in zip(shape, strides, strict=False) if n > 1]
    return steps[-1] if steps else 1 << 62


def _sort(p: Params) -> LaunchConfig:
    lanes = p["outer"] * p["inner"]
    if lanes == 0 or p["k"] == 0:
        return LaunchConfig(())
    width = max(_power_of_two(p["size"]), 2)
    block = min(max(width // 2, LANES), MAX_THREADS)
    shared = width <= _SHARED_ITEMS
    return LaunchConfig(
        (Launch((lanes, 1, 1), (block, 1, 1)),),
        scratch=0 if shared else lanes * width * _ITEM_BYTES,
        defines={"BLOCK": block, "WIDTH": width, "SCRATCH": int(not shared)},
    )

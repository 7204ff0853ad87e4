"""The timing model of cpp/simulate again, as plainly as it can be said: lists of everything, no
windows, no shortcuts. Slow, and to the tick what the native walk has to answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import ceil, floor, isinf
from typing import Any

TICKS, UNITS = 1024, 2**20
CAUSES = ("compute", "vector", "bank", "dram", "noc", "dma", "dispatch", "dependency")
Place = tuple[int, ...]
Interval = tuple[int, int, str]


def up(a: int, b: int) -> int:
    return -(-a // b)


def rate(bytes_per_cycle: float) -> int:
    return max(1, floor(min(bytes_per_cycle, 1e12) * (UNITS // TICKS)))


def fold(array: dict[str, Any], m: int, n: int, k: int) -> tuple[int, int, int, int, int, int]:
    """Returns folds, steps, rows that are loaded, and elements of x, w and sums that pass."""
    rows, cols = array["rows"], array["cols"]
    if array["dataflow"] == "ws":
        return up(k, rows) * up(n, cols), m, rows, m * k * up(n, cols), k * n, m * n * up(k, rows)
    if array["dataflow"] == "os":
        return up(m, rows) * up(n, cols), k, 0, m * k * up(n, cols), k * n * up(m, rows), m * n
    return up(k, rows) * up(m, cols), n, rows, m * k, k * n * up(m, cols), m * n * up(k, rows)


def array_cycles(array: dict[str, Any], m: int, n: int, k: int, repeats: int) -> int:
    folds, steps, loads, *_ = fold(array, m, n, k)
    folds = up(folds * repeats, array["per_core"])
    rows, cols = array["rows"], array["cols"]
    steps = ceil(steps / array["macs_per_pe_cycle"])
    if array["overlaps"]:
        return folds * max(steps, rows, array["min_stream_rows"]) + 2 * rows + cols - 2
    return int(folds * (steps + rows + cols - 2 + loads))


@dataclass
class Tile:
    at: Place
    compute: int = 0
    bank: int = 0
    vector: int = 0
    sram: int = 0
    result: int = 0
    finishes: bool = False
    loads: list[Copy] = field(default_factory=list)
    stores: list[Copy] = field(default_factory=list)
    compute_end: int | None = None
    vector_end: int | None = None


@dataclass
class Copy:
    core: int
    tile: Tile
    step: int
    write: bool
    nbytes: int
    units: int
    cap: int
    by_dma: bool
    channel: int = 0
    setups: int = 1
    end: int | None = None


class Reference:
    """One walk; `run` answers what `_runtime.walk_tiles` does."""

    def __init__(self, machine: dict[str, Any], work: dict[str, Any]) -> None:
        self.machine, self.memory, self.work = machine, machine["memory"], work
        self.cores = range(machine["cores"])
        pairs = list(zip(work["sizes"], work["tile"], strict=True))
        self.trips = [up(size, tile) for size, tile in pairs]
        self.intervals: list[Interval] = []
        self.moved = {True: 0, False: 0}
        self.hops = 0
        places = list(self.places())
        self.tiles: list[list[Tile]] = [[] for _ in self.cores]
        result = 0
        for at in places:
            self.tiles[result % len(self.cores)].append(self.tile(at))
            result += at[3] == self.trips[3] - 1
        once = [self.volumes(places, o) for o in range(len(work["operands"]))]
        for core in self.cores:
            for index, tile in enumerate(self.tiles[core]):
                tile.result = index // self.trips[3]
                tile.finishes = tile.at[3] == self.trips[3] - 1
            if len(self.tiles[core]):
                self.copies_of(core, once)
        self.order = list(self.in_order())

    # ---- tiles and what is copied for them

    def places(self) -> Iterator[Place]:
        loops = self.work["loops"]
        for turn in product(*(range(self.trips[axis]) for axis in loops)):
            at = [0, 0, 0, 0]
            for axis, index in zip(loops, turn, strict=True):
                at[axis] = index
            yield tuple(at)

    def extent(self, at: Place) -> list[int]:
        rows = zip(self.work["sizes"], self.work["tile"], at, strict=True)
        return [min(tile, size - i * tile) for size, tile, i in rows]

    def volume(self, at: Place, axes: int) -> int:
        volume = 1
        for axis, size in enumerate(self.extent(at)):
            volume *= size if axes >> axis & 1 else 1
        return volume

    def transfers(self, places: list[Place], operand: tuple[Any, ...]) -> list[int]:
        """Returns the numbers of the places whose tile of an operand is copied."""
        axes, write, moved, resident, total, _ = operand
        if not moved or not total:
            return []
        keys = [tuple(i for a, i in enumerate(at) if axes >> a & 1) for at in places]
        if write:
            return [i for i in range(len(keys)) if i + 1 == len(keys) or keys[i] != keys[i + 1]]
        changes = [i for i in range(len(keys)) if i == 0 or keys[i] != keys[i - 1]]
        met = {key: i for i, key in reversed(list(enumerate(keys)))}
        return [i for i in changes if not resident or met[keys[i]] == i]

    def volumes(self, places: list[Place], number: int) -> int:
        operand = self.work["operands"][number]
        moved = self.transfers(places, operand)
        return sum(self.volume(places[i], operand[0]) for i in moved)

    def copies_of(self, core: int, once: list[int]) -> None:
        memory, tiles = self.memory, self.tiles[core]
        channel = max(1, rate(memory["dram_bytes_per_cycle"]) // memory["dram_channels"])
        dma = min(rate(memory["dma_bytes_per_cycle"]), rate(memory["sram_bytes_per_cycle"]))
        for whole, operand in zip(once, self.work["operands"], strict=True):
            for step in self.transfers([tile.at for tile in tiles], operand):
                axes, write, _, _, total, row = operand
                tile = tiles[step]
                nbytes = up(self.volume(tile.at, axes) * total, whole)
                row = min(max(row, 1), nbytes)
                bursts = up(nbytes, row) * up(row, memory["burst_bytes"]) * memory["burst_bytes"]
                touched = min(memory["dram_channels"], up(nbytes, memory["interleave_bytes"]))
                cap = min(dma, touched * channel)
                by_dma = dma <= touched * channel
                copy = Copy(core, tile, step, write, nbytes, bursts * UNITS, cap, by_dma)
                rows, dims = up(nbytes, row), memory["max_dims"]
                items = self.extent(tile.at)[0] if axes & 1 else 1
                if rows > 1:
                    copy.setups = {1: rows, 2: items}.get(dims, 1)
                (tile.stores if write else tile.loads).append(copy)
                self.hops += nbytes * memory["hops"][core]
                if self.work["on_array"] and memory["sram_accesses"] < 3:
                    tile.bank += ceil(nbytes / memory["sram_bytes_per_cycle"] * TICKS)
        for write in (True, False):
            for whole, operand in zip(once, self.work["operands"], strict=True):
                if operand[1] == write and operand[2] and operand[4]:
                    moved = self.transfers([tile.at for tile in tiles], operand)
                    volume = sum(self.volume(tiles[i].at, operand[0]) for i in moved)
                    self.moved[write] += volume * operand[4] / whole  # type: ignore[assignment]

    def tile(self, at: Place) -> Tile:
        work, array, (b, m, n, k) = self.work, self.machine["array"], self.extent(at)
        sizes = work["sizes"]
        on_array = work["on_array"]  # then sums are whole before they pass
        part = float(1 if on_array else k) * b * m * n
        whole = float(1 if on_array else sizes[3]) * sizes[0] * sizes[1] * sizes[2]
        vector = 0.0
        for count, cycles in work["vector"]:
            vector += ceil(count * part / whole / work["vector_rate"]) * cycles
        assert part <= whole
        tile = Tile(at)
        tile.vector = ceil(vector * TICKS)
        if not work["on_array"]:
            return tile
        if at[3] < self.trips[3] - 1:
            tile.vector = 0
        repeats = work["taps"] * b
        if work["depthwise"] and array["dataflow"] == "is":
            n, k, repeats = 1, work["taps"], n
        elif work["depthwise"]:
            n, k, repeats = n * array["cols"], work["taps"], 1
        cycles = array_cycles(array, m, n, k, repeats) / self.machine["array_share"]
        tile.compute = ceil(cycles * TICKS)
        _, _, _, x, w, sums = fold(array, m, n, k)
        tile.sram = (x + w) * work["element_bytes"] * repeats
        added = 4.0 * (sums * repeats) / max(1.0, array["macs_per_pe_cycle"])
        memory = self.memory
        needed = max(
            tile.sram / memory["sram_bytes_per_cycle"], added / memory["acc_bytes_per_cycle"]
        )
        tile.bank = max(0, ceil(needed * TICKS) - tile.compute)
        return tile

    def in_order(self) -> Iterator[Copy]:
        behind = 2 if self.work["double_buffer"] else 0
        count = [0 for _ in self.cores]
        for slot in range(max(map(len, self.tiles)) + behind):
            for which, at in (("loads", slot), ("stores", slot - behind)):
                for core in self.cores:
                    if 0 <= at < len(self.tiles[core]):
                        for copy in getattr(self.tiles[core][at], which):
                            copy.channel = count[core] % self.memory["dma_channels"]
                            count[core] += 1
                            yield copy

    # ---- times; each is a greatest of others, and a time more

    def run(self) -> dict[str, Any]:
        memory = self.memory
        channel = max(1, rate(memory["dram_bytes_per_cycle"]) // memory["dram_channels"])
        whole = channel * memory["dram_channels"]
        by_noc = memory["noc_bytes_per_cycle"] > 0 and rate(memory["noc_bytes_per_cycle"]) < whole
        whole = rate(memory["noc_bytes_per_cycle"]) if by_noc else whole
        begun = served = 0
        free: dict[tuple[int, int], int] = {}
        for copy in self.order:
            key = copy.core, copy.channel
            begun = max(begun, free.get(key, 0), self.ready(copy))
            set_up = begun + copy.setups * memory["setup_cycles"] * TICKS
            hopped = set_up + memory["hops"][copy.core] * memory["hop_cycles"] * TICKS
            latency = memory["write_latency_ticks" if copy.write else "read_latency_ticks"]
            start = hopped + latency
            alone = start + up(copy.units, copy.cap)
            served = max(served, start) + up(copy.units, whole)
            copy.end = free[key] = max(alone, served)
            if served > alone:
                cause = "noc" if by_noc else "dram"
            else:
                cause = "dma" if copy.by_dma else "dram"
            self.intervals += [
                (begun, set_up, "dma"), (set_up, hopped, "noc"), (hopped, start, "dram"),
                (start, copy.end, cause),
            ]  # fmt: skip
        for tiles in self.tiles:
            if tiles:
                self.times(tiles, len(tiles) - 1)
        return self.answer(max((copy.end for copy in self.order if copy.end), default=0))

    def times(self, tiles: list[Tile], index: int) -> Tile:
        """Fixes the times of a tile, and of those before it, whose copies are known."""
        for at in range(index + 1):
            if tiles[at].vector_end is None:
                self.settle(tiles, at, tiles[at])
        return tiles[index]

    def settle(self, tiles: list[Tile], index: int, tile: Tile) -> None:
        waits, passed = [copy.end for copy in tile.loads], 0
        gone = tile.result - (2 if self.work["double_buffer"] else 1)
        if gone >= 0:
            other = next(t for t in tiles if t.finishes and t.result == gone)
            waits += [other.vector_end, *(copy.end for copy in other.stores)]
        if index:
            before = tiles[index - 1]
            assert before.vector_end is not None
            waits.append(before.compute_end)
            passed = before.vector_end
        assert None not in waits, "copies come in an order in which none waits for a later one"
        start = max((w for w in waits if w is not None), default=0)
        computed = start + tile.compute
        end = computed + tile.bank
        tile.vector_end = max(end, passed) + tile.vector
        tile.compute_end = end if self.work["on_array"] else tile.vector_end
        self.intervals += [
            (start, computed, "compute"),
            (computed, end, "bank"),
            (tile.vector_end - tile.vector, tile.vector_end, "vector"),
        ]

    def ready(self, copy: Copy) -> int:
        tiles, double = self.tiles[copy.core], self.work["double_buffer"]
        before = copy.step if copy.write else copy.step - (2 if double else 1)
        if before < 0:
            return 0
        tile = self.times(tiles, before)
        assert tile.vector_end is not None and tile.compute_end is not None
        if copy.write:
            return tile.vector_end
        if double:
            return tile.compute_end
        ends = [tile.vector_end, *(store.end for store in tile.stores)]
        assert None not in ends
        return max(end for end in ends if end is not None)

    def answer(self, now: int) -> dict[str, Any]:
        ends = [tile.vector_end for tiles in self.tiles for tile in tiles]
        assert None not in ends
        ticks = max(now, *(end for end in ends if end is not None))
        causes = dict.fromkeys(CAUSES, 0)
        marks = sorted({0, ticks, *(t for a, b, _ in self.intervals for t in (a, b))})
        for start, end in pairwise(marks):
            active = {c for a, b, c in self.intervals if a <= start and end <= b and a < b}
            causes[next((c for c in CAUSES[:-1] if c in active), "dependency")] += end - start
        if len(self.cores) > 1:
            sync = self.machine["sync_cycles"] * TICKS
            causes["dependency"] += sync
            ticks += sync
        every = [tile for tiles in self.tiles for tile in tiles]
        return {
            "ticks": ticks,
            "causes": list(causes.values()),
            "tiles": len(every),
            "copies": len(self.order),
            "array_ticks": sum(tile.compute + tile.bank for tile in every),
            "vector_ticks": sum(tile.vector for tile in every),
            "hop_bytes": self.hops,
        }


def with_unhidden(answer: dict[str, Any], machine: dict[str, Any], nbytes: int) -> dict[str, Any]:
    """Returns an answer with what copies of so many bytes do not hide behind what computes."""
    p = machine["overlap_p"]
    computed = (answer["array_ticks"] + answer["vector_ticks"]) / machine["cores"]
    copied = nbytes / machine["memory"]["dram_bytes_per_cycle"] * TICKS
    most = max(computed, copied)
    if isinf(p) or not most:
        return answer
    least = ceil(most * ((computed / most) ** p + (copied / most) ** p) ** (1 / p))
    missing = max(0, least - answer["ticks"])
    causes = [*answer["causes"][:-1], answer["causes"][-1] + missing]
    return {**answer, "ticks": answer["ticks"] + missing, "causes": causes}

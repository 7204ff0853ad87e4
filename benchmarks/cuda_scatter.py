"""Times scatters with indices that only running reveals, beside PyTorch on the same GPU.

    PYTHONPATH=python:. python -m benchmarks.cuda_scatter [--quick] [--walk] [--json FILE]

E items of F columns go to N rows. Every case is run twice over fresh operands: both must give the
same bits, which are those of row-major order (NumPy's `ufunc.at`, one item after another) where
E * F is small, else of small integers, whose sums are exact in any order. Times are medians of
launches in one CUDA graph, microseconds; `walk`: with --walk also as one thread a column has it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.cuda_driver import Driver, Kernel, compile_kernel, microseconds
from npusim.abi.kernels import INDEX_TENSORS, KERNELS, RANK
from npusim.codegen.cuda.rules import RULES
from npusim.codegen.indexed import scatter_walk
from npusim.codegen.launch_config import LaunchConfig
from npusim.ir.types import DTYPES

_CHECKED = 1 << 22  # elements of src, up to which the order is checked
_WALKED = 50_000  # items, up to which they are walked, too
_SET, _ADD, _MUL, _MAX, _MIN = range(5)
_SKEWS = ("uniform", "power law", "all equal")


@dataclass(frozen=True)
class Case:
    """A scatter of [items, columns] into [rows, columns]."""

    op: str
    items: int
    columns: int
    rows: int
    dtype: str = "float32"
    skew: str = "uniform"

    @property
    def mode(self) -> int:
        """Of the kernel's parameters."""
        return {"amax": _MAX, "set": _SET}.get(self.op, _ADD)

    @property
    def each(self) -> bool:
        """Whether each element has an index of its own."""
        return self.op == "scatter_add"


def cases(quick: bool) -> Iterator[Case]:
    """Yields what is timed."""
    sizes = (1000, 100_000) if quick else (1000, 10_000, 100_000, 1_000_000)
    for items in sizes:
        for columns in (1, 64) if quick else (1, 16, 64, 256):
            for rows in (10_000,) if quick else (100, 10_000, 100_000):
                yield Case("index_add", items, columns, rows)
    for items in sizes:
        for skew in _SKEWS[1:]:
            for columns in (1, 64):
                yield Case("index_add", items, columns, 10_000, skew=skew)
        for op in ("scatter_add", "amax", "put", "set"):
            yield Case(op, items, 16, 10_000)
        yield Case("set", items, 16, 10_000, skew="all equal")
        yield Case("index_add", items, 64, 10_000, "float16")
        for dtype in ("int64", "int32"):
            yield Case("index_add", items, 1, 256, dtype)  # a histogram
            yield Case("amax", items, 1, 256, dtype)


def indices(case: Case) -> Tensor:
    """Returns [items] indices, or [items, columns]."""
    shape = (case.items, case.columns) if case.each else (case.items,)
    if case.skew == "all equal":
        return torch.full(shape, case.rows // 2, device="cuda")
    spread = torch.rand(shape, device="cuda", dtype=torch.float64)
    return (case.rows * (spread**6 if case.skew == "power law" else spread)).long()


def operands(case: Case, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Returns src, indices and y; exact: of small integers."""
    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    shape = (case.items, case.columns)
    if exact or not dtype.is_floating_point:
        src = torch.randint(-1, 2, shape, device="cuda").to(dtype)
        y = torch.zeros(case.rows, case.columns, dtype=dtype, device="cuda")
    else:
        src = torch.randn(shape, device="cuda").to(dtype)
        y = torch.randn(case.rows, case.columns, device="cuda").to(dtype)
    return src, indices(case), y


def params_of(case: Case) -> dict[str, Any]:
    """Returns the command's parameters."""
    columns = case.columns
    given = {
        "mode": case.mode, "dtype": DTYPES[case.dtype][0], "idx_dtype": DTYPES["int64"][0],
        "n": 1, "rank": 2, "shape": _padded((case.items, columns), RANK, 1),
        "src_strides": _padded((columns, 1), RANK), "y_strides": _padded((0, 1), RANK),
        "idx_strides": _padded((columns, 1) if case.each else (1, 0), INDEX_TENSORS * RANK),
        "k_size": _padded((case.rows,), INDEX_TENSORS),
        "k_stride": _padded((columns,), INDEX_TENSORS),
    }  # fmt: skip
    return KERNELS["scatter"].unpack(KERNELS["scatter"].pack(given))


def _padded(values: Sequence[int], count: int, fill: int = 0) -> list[int]:
    return [*values, *[fill] * (count - len(values))]


def theirs(case: Case, src: Tensor, index: Tensor, y: Tensor) -> Callable[[], object]:
    """Returns the same in PyTorch."""
    wide = index if case.each else index.unsqueeze(1).expand(-1, case.columns)
    return {
        "index_add": lambda: y.index_add_(0, index, src),
        "scatter_add": lambda: y.scatter_add_(0, wide, src),
        "amax": lambda: y.scatter_reduce_(0, wide, src, "amax"),
        "put": lambda: y.index_put_((index,), src, accumulate=True),
        "set": lambda: y.index_put_((index,), src),
    }[case.op]


def in_order(case: Case, src: Tensor, index: Tensor, y: Tensor) -> Tensor:
    """Returns the result of items that are visited one after another."""
    got, at, given = (t.cpu().numpy().copy() for t in (y, index, src))
    where = (at, np.arange(case.columns)[None, :]) if case.each else at
    if case.mode == _SET:
        for i in range(len(at)):
            got[at[i]] = given[i]
    else:
        (np.add if case.mode == _ADD else np.maximum).at(got, where, given)
    return torch.from_numpy(got)


def wrong(case: Case, kernel: Kernel) -> str:
    """Runs a case twice; returns what is wrong, if anything."""
    exact = case.items * case.columns > _CHECKED
    src, index, y = operands(case, exact)
    results = []
    for _ in range(2):
        got = y.clone()
        kernel((src, index, got))
        results.append(got)
    torch.cuda.synchronize()
    if int(kernel.failure[0]):
        return f"reports {kernel.failure.tolist()}"
    if not torch.equal(*results):
        return "bits differ from run to run"
    if not exact:
        want = in_order(case, src, index, y)
    elif case.mode == _SET:
        last = torch.full((case.rows,), -1, device="cuda").scatter_reduce(
            0, index, torch.arange(case.items, device="cuda"), "amax"
        )
        want = torch.where((last >= 0).unsqueeze(1), src[last.clamp(min=0)], y)
    else:
        theirs(case, src, index, want := y.clone())()
    return "" if torch.equal(results[0].cpu(), want.cpu()) else "not the bits of row-major order"


def walk_of(params: dict[str, Any]) -> LaunchConfig:
    """Returns the configuration of the walk."""
    walk = scatter_walk(params)
    return replace(walk, defines={**walk.defines, "WAY": 0})


def measured(case: Case, kernel: Kernel, walk: Kernel | None) -> tuple[float, float, float | None]:
    """Returns the times of this kernel, of PyTorch's, and of the walk."""
    src, index, y = operands(case, exact=False)
    slow = case.skew == "all equal" and case.items > 100_000
    calls, repeats = (1, 5) if slow else (8, 12)
    given = (src, index, y)
    # What begins a graph has nothing to overlap with.
    overlapping = [lambda: kernel(given, overlaps=True)] * (calls - 1)
    ours = microseconds([lambda: kernel(given), *overlapping], repeats)
    peer = microseconds([theirs(case, src, index, y)] * calls, repeats)
    alone = None if walk is None else microseconds([lambda: walk(given)], 5)
    return ours, peer, alone


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few cases of each kind")
    parser.add_argument("--walk", action="store_true", help="time the walk, too")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    chosen = parser.parse_args()
    driver, listed = Driver(), list(cases(chosen.quick))

    def built(case: Case) -> list[tuple[LaunchConfig, bytes]]:
        params = params_of(case)
        configs = [RULES["scatter"](params)]
        if chosen.walk and case.items < _WALKED:
            configs.append(walk_of(params))
        return [compile_kernel(driver, "scatter", params, config) for config in configs]

    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(built, listed))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'op':12}{'E':>9}{'F':>5}{'N':>8} {'dtype':9}{'indices':11}{'way':>4}", end="")
    print(f"{'us':>10}{'torch':>10}{'ratio':>7}{'walk':>10}")
    rows, bad = [], 0
    for case, parts in zip(listed, made, strict=True):
        kernel, *walk = (Kernel(driver, *part) for part in parts)
        why = wrong(case, kernel)
        bad += bool(why)
        ours, peer, alone = measured(case, kernel, walk[0] if walk else None)
        way = kernel.config.defines["WAY"]
        print(
            f"{case.op:12}{case.items:9}{case.columns:5}{case.rows:8} {case.dtype:9}"
            f"{case.skew:11}{way:4}{ours:10.1f}{peer:10.1f}{ours / peer:7.2f}"
            f"{'' if alone is None else f'{alone:10.1f}'}{' WRONG: ' + why if why else ''}",
            flush=True,
        )
        rows.append({**asdict(case), "way": way, "us": ours, "torch": peer, "walk": alone})
    print(f"{len(listed) - bad} of {len(listed)} cases hold")
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

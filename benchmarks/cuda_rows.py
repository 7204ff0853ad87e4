"""Times sorts, softmaxes, reductions and scans of few long lanes, beside PyTorch on the same GPU.

    PYTHONPATH=python:. python -m benchmarks.cuda_rows [--only STEM] [--json FILE]

Each command is [outer, size, inner] along the middle; results are held to PyTorch's: positions and
values of a stable sort bit by bit, else of the same in float64. Times are medians of launches in
one CUDA graph, microseconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cuda_cases import full
from benchmarks.cuda_driver import Driver, Kernel, build, microseconds
from npusim.codegen.cuda.rules import RULES
from npusim.ir.types import DTYPES

_REDUCED: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "sum": (0, lambda x: x.sum(1)),
    "argmax": (7, lambda x: x.argmax(1)),
    "var": (9, lambda x: x.var(1)),
    "logsumexp": (14, lambda x: x.logsumexp(1)),
}
_ERROR = {"float32": 3e-5, "float16": 2e-3, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Case:
    """A command of [outer, size, inner]; k: of a sort, the first that are kept."""

    op: str
    outer: int
    size: int
    inner: int
    k: int = 0
    dtype: str = "float32"

    @property
    def stem(self) -> str:
        """The kernel's."""
        return "reduce" if self.op in _REDUCED else self.op

    @property
    def params(self) -> dict[str, Any]:
        """The kernel's parameters."""
        code, size, inner = DTYPES[self.dtype][0], self.size, self.inner
        dtypes = {"dtype": code, "x_dtype": code, "y_dtype": code}
        given = {"outer": self.outer, "size": size, "inner": inner, "k": self.k, **dtypes}
        if self.stem == "reduce":
            given |= {"op": _REDUCED[self.op][0], "correction": 1.0, "rank": 2, "reduced_rank": 1}
            given |= {"shape": (self.outer, inner), "x_strides": (size * inner, 1)}
            given |= {"y_strides": (inner, 1), "reduced": (size,), "reduced_strides": (inner,)}
            given |= {"y_dtype": DTYPES["int64"][0]} if self.op == "argmax" else {}
        if self.stem == "sort":
            given["descending"] = 1
        known = full(self.stem, {}).keys()
        return full(self.stem, {name: value for name, value in given.items() if name in known})

    def theirs(self, x: Tensor) -> Sequence[Tensor]:
        """Returns the same in PyTorch."""
        if self.op == "sort" and self.k < self.size:
            return torch.topk(x, self.k, 1)
        if self.op == "sort":
            return torch.sort(x, dim=1, descending=True, stable=True)
        if self.op in _REDUCED:
            return (_REDUCED[self.op][1](x),)
        return (x.softmax(1) if self.op == "softmax" else x.cumsum(1),)


def cases() -> Iterator[Case]:
    """Yields rows of vocabularies, lanes of a million, and long columns."""
    for dtype in ("float32", "bfloat16"):
        for size in (32_000, 262_144):
            for outer in (1, 8, 64):
                for k in (1, 20, 100):
                    yield Case("sort", outer, size, 1, k, dtype)
        for outer, size, inner in ((1, 1_000_000, 1), (8, 100_000, 1), (512, 5000, 1)):
            yield Case("sort", outer, size, inner, size, dtype)
    yield Case("sort", 1, 2048, 1, 2048)
    yield Case("sort", 1, 20_000, 16, 20_000)
    yield Case("sort", 1, 100_000, 1, 1000)
    for op in ("softmax", "var", "logsumexp", "sum", "argmax"):
        for outer, size, inner in ((1, 1_000_000, 64), (1, 1_000_000, 8), (1, 1_000_000, 1),
                                   (8, 131_072, 1), (8, 10_000, 320), (64, 4096, 64)):  # fmt: skip
            yield Case(op, outer, size, inner)
    yield from (Case("scan", outer, 1_000_000 // outer, 1) for outer in (1, 8, 64))


def _results(case: Case, x: Tensor) -> list[Tensor]:
    if case.op == "sort":
        values = x.new_empty(case.outer, case.k, case.inner)
        return [values, values.new_empty(values.shape, dtype=torch.int64)]
    if case.op in _REDUCED:
        dtype = torch.int64 if case.op == "argmax" else x.dtype
        return [x.new_empty(case.outer, case.inner, dtype=dtype)]
    return [torch.empty_like(x)]


def wrong(case: Case, kernel: Kernel, x: Tensor) -> str:
    """Runs a case twice; returns what is wrong, if anything."""
    first, again = _results(case, x), _results(case, x)
    kernel((x, *first))
    kernel((x, *again))
    if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
        return "bits differ from run to run"
    if case.op == "sort":
        want = torch.sort(x, dim=1, descending=True, stable=True)
        same = (torch.equal(a, b[:, : case.k]) for a, b in zip(first, want, strict=True))
        return "" if all(same) else "not a stable sort"
    (want,) = case.theirs(x if case.op == "argmax" else x.double())
    error = float((first[0].double() - want.double()).abs().max() / want.double().abs().max())
    bound = 0 if case.op == "argmax" else _ERROR[case.dtype]
    return "" if error <= bound else f"off by {error:.1e}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="a stem")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    chosen = parser.parse_args()
    driver = Driver()
    listed = [case for case in cases() if chosen.only in (None, case.stem)]
    kernels = build(driver, [(c.stem, c.params, RULES[c.stem](c.params)) for c in listed])
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'op':10}{'outer':>6}{'size':>9}{'inner':>6}{'k':>9} {'dtype':9}", end="")
    print(f"{'us':>10}{'torch':>10}{'ratio':>7}")
    rows, bad = [], 0
    for case, kernel in zip(listed, kernels, strict=True):
        x = torch.randn(case.outer, case.size, case.inner, device="cuda")
        x = x.to(getattr(torch, case.dtype))
        why = wrong(case, kernel, x)
        bad += bool(why)
        y = _results(case, x)
        ours = microseconds([partial(kernel, (x, *y))] * 4, 12)
        peer = microseconds([partial(case.theirs, x)] * 4, 12)
        print(
            f"{case.op:10}{case.outer:6}{case.size:9}{case.inner:6}{case.k:9} {case.dtype:9}"
            f"{ours:10.1f}{peer:10.1f}{ours / peer:7.2f}{' WRONG: ' + why if why else ''}",
            flush=True,
        )
        rows.append({**asdict(case), "us": ours, "torch": peer})
    print(f"{len(listed) - bad} of {len(listed)} cases hold")
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""Writes docs/ops.md: `python -m tests.conformance.operator_table`."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.claims import (
    BACKENDS,
    DECOMPOSED,
    FALLBACK,
    NATIVE,
    NONE,
    UNCOVERED,
    all_claims,
    core_operators,
)
from tests.conformance.op_db_exclusions import EXCLUDED
from tests.conformance.torch_samples import entries_of
from tests.frontends.onnx import counts as onnx_counts

_HEAD = """\
# Operators

Every operator of Core ATen (the `core` tag of the pinned PyTorch, {count} overloads), by backend
and dtype. Written by `python -m tests.conformance.operator_table`; a test keeps it up to date.

* **native**: lowered to kernels of the backend;
* **decomposed**: extraction writes it as operators that are;
* **fallback**: PyTorch runs it in a partitioned model ([Coverage and fallback](fallback.md));
* dtypes not listed: PyTorch itself has no implementation on the CPU, or the operator makes its
  result in another dtype whatever it is given.

| Dtype | {columns} |
|---|{rules}|
{totals}

Tests: each row is run and compared with PyTorch on the CPU in every dtype it claims, by
`tests/conformance/test_claims.py`; native ones with more shapes and on each instruction set by
`tests/conformance/test_ops.py`. The last column names the entries of PyTorch's operator database
that `tests/conformance/test_op_db.py` takes the operator through. With `--device cuda`,
`test_ops.py` runs on a GPU; a claim for CUDA means that each kernel of the call has a source there.
With `--device metal` it runs on a software Metal device ([Metal devices](metal.md)); Metal has no
float64.

ONNX's operators become these when a model is imported.
{onnx}
[Importing models](importing.md) has the counts by suite.

| Operator | {columns} | Entries of `op_db` |
|---|{rules}|---|
"""

_TAIL = """
## Not in a graph, or not compiled

| Operator | What becomes of it | Why |
|---|---|---|
"""

_TITLES = {"cpu": "CPU", "cuda": "CUDA", "metal": "Metal"}
_SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64", "int64": "i64",
          "int32": "i32", "bool": "bool"}  # fmt: skip


def operator_table() -> str:
    """Returns the text of docs/ops.md."""
    names = [name for name in core_operators() if name not in UNCOVERED]
    rows = "".join(_row(name) for name in names)
    head = _HEAD.format(
        count=len(core_operators()),
        columns=" | ".join(_TITLES[backend] for backend in BACKENDS),
        rules="|".join("---" for _ in BACKENDS),
        totals="\n".join(_total(dtype, names) for dtype in _SHORT),
        onnx=onnx_counts.sentence(),
    )
    rest = "".join(
        f"| `{name}` | {'PyTorch' if status == FALLBACK else 'never in a graph'} | {reason} |\n"
        for name, (status, reason) in sorted(UNCOVERED.items())
    )
    return head + rows + _TAIL + rest


def _total(dtype: str, names: list[str]) -> str:
    """Returns a row of the summary: how many of the operators that exist in a dtype are covered."""
    cells = []
    for backend in BACKENDS:
        claims = [all_claims(name, backend)[dtype] for name in names]
        there = [c for c in claims if c.status != NONE]
        covered = sum(c.status in (NATIVE, DECOMPOSED) for c in there)
        cells.append(f"{covered} of {len(there)}")
    return f"| {dtype} | {' | '.join(cells)} |"


def _row(name: str) -> str:
    cells = [_cell(name, backend) for backend in BACKENDS]
    entries = [e for e in entries_of(name.split(".")[1]) if e not in EXCLUDED]
    return f"| `{name}` | {' | '.join(cells)} | {', '.join(f'`{e}`' for e in entries)} |\n"


def _cell(name: str, backend: str) -> str:
    by_status: dict[str, list[str]] = {}
    for dtype, claim in all_claims(name, backend).items():
        if claim.status != NONE:
            by_status.setdefault(claim.status, []).append(_SHORT[dtype])
    return "; ".join(f"{status} {' '.join(dtypes)}" for status, dtypes in by_status.items())


if __name__ == "__main__":
    path = Path(__file__).parents[2] / "docs" / "ops.md"
    path.write_text(operator_table(), encoding="utf-8")
    print(f"wrote {path}")

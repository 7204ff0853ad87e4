"""The run over all decoders: each in a process of its own, in every dtype."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

import npusim
from tests.zoo import decoder_table, table
from tests.zoo.decoder_models import CLASSES, NAMES, build
from tests.zoo.decoding import CHUNK, CONTEXT, DTYPES, Row, measure
from tests.zoo.isolated import isolated

_WORKERS, _SECONDS, _MEMORY = 2, 1200.0, 14 << 30

Job = tuple[str, str]  # a decoder's name and a dtype


def run(names: Sequence[str], kept: Path | None, dtypes: Sequence[str] = tuple(DTYPES)) -> int:
    """Measures decoders and prints a line each; with all of them, writes the section.

    Args:
        names: of architectures; none: all.
        kept: a file that keeps finished rows; what it has is not run again.
        dtypes: of the weights.
    """
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    jobs = [(name, dtype) for dtype in dtypes for name in names or NAMES]
    rows = _read(kept) if kept else {}
    waiting = [job for job in jobs if job not in rows]
    _warm([name for name, _ in waiting])
    for job, result, problem in isolated(
        _measure, waiting, workers=_WORKERS, seconds=_SECONDS, memory=_MEMORY
    ):
        row = result or Row(*job, problem=problem)
        rows[job] = row
        print(_short(row), flush=True)
        if kept:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    if not names:
        every = [rows[name, dtype] for name in NAMES for dtype in DTYPES if (name, dtype) in rows]
        section = decoder_table.render(every, transformers.__version__)
        page = table.PATH.read_text("utf-8")
        table.PATH.write_text(decoder_table.put(page, section), encoding="utf-8")
    return 0


def _warm(names: Sequence[str]) -> None:
    """Imports what the measurements need, which then inherit it."""
    for name in names:
        getattr(transformers, CLASSES[name], None)
    if names:
        npusim.extract_llm(build("llama"), max_context=CONTEXT, prefill_chunk=CHUNK)


def _measure(job: Job) -> Row:
    return measure(*job)


def _read(path: Path) -> dict[Job, Row]:
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    rows = [Row(**json.loads(line)) for line in lines]
    return {(row.name, row.dtype): row for row in rows}


def _short(row: Row) -> str:
    error = "-" if row.error is None else f"{row.error:.1e}"
    text = f"{row.name:26} {row.dtype:8} {decoder_table.outcome(row):18} {row.state:18}"
    return f"{text} {row.tokens:2} {error:>8} {row.seconds:5.1f} s {row.problem}".rstrip()

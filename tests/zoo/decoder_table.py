"""The part of docs/models.md about generating: written from a full run, read back by the tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from tests.zoo import table
from tests.zoo.decoding import BOUNDS, CHUNK, DTYPES, NEW, PROMPT, Row

TITLE = "## Generating"
NO_GENERATION, NOT_RUN = "transformers fails", "not run"

_HEAD = f"""{TITLE}

Every causal language model of the installed transformers ({{version}}), small and with seeded
weights, through `npusim.extract_llm` on the CPU. A prompt of {PROMPT} tokens runs in chunks of
{CHUNK}, the last of them padded; then {NEW} greedy tokens follow. In float32 they are the tokens
of transformers' own `generate`, one for one, and the logits along them differ by {{float32:g}} of
the largest at most; in bfloat16 the logits may differ by {{bfloat16:g}}, and a token where
transformers' logits of the two are that close. A rounding may make a decoder choose other experts,
or other rows to attend to. Where logits differ by more, they are compared with what the same
weights give in float32 and may be further from it, by {{bfloat16:g}}, than transformers is in
bfloat16, or in float32 with the results of modules off by a unit in bfloat16's last place at random
(8 runs). `python -m tests.zoo --decoders` writes this section.

{{summary}}

*State* is what a session keeps: a cache with a row a token, recurrent tensors (then a call takes
one token), or the text alone, which runs anew for every token. A number is the largest difference
of a logit.

| Decoder | State | float32 | bfloat16 | Reason |
|---|---|---|---|---|
"""

_ROW = re.compile(r"^\| ([\w-]+) \| [\w ]* \| ([a-z ]+)[^|]*\| ([a-z ]+)[^|]*\|", re.MULTILINE)


def outcome(row: Row) -> str:
    """Returns the word for what became of a decoder in one dtype."""
    if not row.generates:
        return NO_GENERATION
    if row.error is None:
        return table.REFUSED
    return table.AGREES if row.agrees else table.DIFFERS


def render(rows: Sequence[Row], version: str) -> str:
    """Returns the section; rows of one decoder stand together."""
    head = _HEAD.format(version=version, summary=_summary(rows), **BOUNDS)
    return head + "".join(_line(list(each)) for _, each in groupby(rows, key=attrgetter("name")))


def put(page: str, section: str) -> str:
    """Returns a page with its section about generating replaced, or with one."""
    return f"{rest(page).rstrip()}\n\n{section}"


def rest(page: str) -> str:
    """Returns a page without its section about generating."""
    return page.partition(f"\n{TITLE}\n")[0]


def section(page: str) -> str:
    """Returns a page's section about generating; empty where it has none."""
    _, found, text = page.partition(f"\n{TITLE}\n")
    return f"{TITLE}\n{text}" if found else ""


def listed(page: str) -> Mapping[str, dict[str, str]]:
    """Returns the outcome of each decoder that a page lists, by dtype."""
    return {
        name: dict(zip(DTYPES, map(str.strip, words), strict=True))
        for name, *words in _ROW.findall(section(page))
        if name != "Decoder"
    }


def _summary(rows: Sequence[Row]) -> str:
    parts = []
    for dtype in DTYPES:
        able = [row for row in rows if row.dtype == dtype and row.generates]
        count = sum(row.agrees for row in able)
        share = 100 * count / max(len(able), 1)
        parts.append(f"{count} of {len(able)} ({share:.1f} %) agree in {dtype}")
    names = {row.name for row in rows}
    able_names = {row.name for row in rows if row.generates}
    return (
        f"Of {len(names)} architectures, transformers generates with {len(able_names)} here; of "
        f"these, {' and '.join(parts)}, and {_recomputed(rows)} of them by running the whole text."
    )


def _recomputed(rows: Sequence[Row]) -> int:
    return len({row.name for row in rows if row.agrees and row.state == "the text"})


def _line(rows: Sequence[Row]) -> str:
    by_dtype = {row.dtype: row for row in rows}
    cells = [_cell(by_dtype[dtype]) if dtype in by_dtype else NOT_RUN for dtype in DTYPES]
    problems = dict.fromkeys(table.readable(row.problem) for row in rows if row.problem)
    state = next((row.state for row in rows if row.state), "")
    return f"| {rows[0].name} | {state} | {' | '.join(cells)} | {'; '.join(problems)} |\n"


def _cell(row: Row) -> str:
    error = "" if row.error is None else f", {row.error:.0e}"
    return outcome(row) + error

"""What a verb answers, and how it reaches a person or a program.

Owns the contract all verbs share: `--json` (one JSON object on stdout and nothing else), `--debug`
(stack traces), and the exit code that follows from an answer or an error.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from npusim.errors import Error, first_line
from npusim.files import printable_path, transaction

OK, NO, BAD_INPUT, DEFECT, INTERRUPTED = 0, 1, 2, 3, 130


@dataclass(frozen=True)
class Answer:
    """The outcome of a verb.

    Attributes:
        data: what `--json` prints, next to `ok`; JSON types only.
        text: what a person reads, one under the other.
        ok: False when the question the verb asks was answered with no (exit code 1).
        code: the exit code, where `ok` does not say it.
    """

    data: Mapping[str, Any]
    text: Iterable[str]
    ok: bool = True
    code: int | None = None


class Verb(click.Command):
    """A click command that takes `--json` and `--debug` and returns an Answer.

    One that writes files takes `--force` as well, and leaves none when it fails (`npusim.files`).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(
                ["--json"], is_flag=True, expose_value=False, help="Print one JSON object only."
            ),
            click.Option(
                ["-v", "--verbose"],
                count=True,
                expose_value=False,
                callback=_note_verbosity,
                help="Say on stderr what npusim decides; twice for all of it.",
            ),
            click.Option(
                ["--debug"], is_flag=True, expose_value=False, help="Show stack traces of errors."
            ),
        ]
        if _OUTPUTS & {param.name for param in self.params}:
            text = "Replace output files, whatever they hold."
            self.params.append(
                click.Option(
                    ["--force"], is_flag=True, expose_value=False, help=text, callback=_note_force
                )
            )

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb; the files it writes stay when it returns an Answer, all or none."""
        verbosity = said_on_stderr(ctx.meta.get(_VERBOSITY, 0))
        with verbosity, transaction(force=bool(ctx.meta.get(_FORCE))):
            return super().invoke(ctx)


_OUTPUTS = {"output", "report", "save", "weights_out", "dump_passes", "out", "trace"}
_FORCE, _VERBOSITY = "npusim.force", "npusim.verbosity"


def _note_force(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[_FORCE] = value


def _note_verbosity(ctx: click.Context, param: click.Parameter, value: int) -> None:
    ctx.meta[_VERBOSITY] = value


@contextlib.contextmanager
def said_on_stderr(verbosity: int) -> Iterator[None]:
    """Prints what npusim logs while the block runs: from 1 on what it decides, from 2 on all."""
    if not verbosity:
        yield
        return
    logger, handler = logging.getLogger("npusim"), _OnStderr()
    before = logger.level
    logger.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _OnStderr(logging.Handler):
    """Prints to what stderr is at that moment: above a progress bar, while there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        print(printable(f"{record.name}: {record.getMessage()}"), file=sys.stderr)


def answer_of(group: click.Group, arguments: list[str], *, as_json: bool) -> Answer | int:
    """Runs the verb; returns its Answer, or click's exit code after `--help` and `--version`.

    Under `--json`, what the verb's callees print (a model's own code, say) goes to stderr.
    """
    redirect = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with redirect:
        result = group.main(arguments, prog_name="npusim", standalone_mode=False)
    return result if isinstance(result, Answer) else int(result or 0)


def show(answer: Answer, *, as_json: bool) -> int:
    """Prints an answer and returns the exit code."""
    if as_json:
        _print_json({"ok": answer.ok, **answer.data})
    else:
        print(*map(printable, answer.text), sep="\n")
    if answer.code is not None:
        return answer.code
    return OK if answer.ok else NO


def refuse(error: BaseException, *, as_json: bool, debug: bool) -> int:
    """Prints an error as one sentence (`--debug`: with its trace) and returns the exit code."""
    message, code = _explain(error)
    if as_json:
        _print_json({"ok": False, "error": {"type": type(error).__name__, "message": message}})
    if debug:
        traceback.print_exception(error)
    text = message if code == INTERRUPTED else f"error: {message}"
    print(printable(text), file=sys.stderr)
    return code


def _print_json(value: object) -> None:
    print(json.dumps(_strict(value), indent=2, allow_nan=False))


def _strict(value: object) -> object:
    """JSON has no infinities and no NaN: they become null."""
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def printable(text: str) -> str:
    """Names come from files: control characters must not reach a terminal."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _explain(error: BaseException) -> tuple[str, int]:
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return "Interrupted.", INTERRUPTED
    if isinstance(error, click.UsageError):
        where = f" Try '{error.ctx.command_path} --help'." if error.ctx else ""
        return error.format_message() + where, BAD_INPUT
    if isinstance(error, click.ClickException):
        return error.format_message(), BAD_INPUT
    if isinstance(error, Error):
        return str(error), BAD_INPUT
    if isinstance(error, OSError):
        name = f"{printable_path(error.filename)}: " if error.filename else ""
        return f"{name}{error.strerror or error}.", BAD_INPUT
    if isinstance(error, ImportError) and (error.name or "").startswith("npusim"):
        return f"npusim is not installed whole: {error}. `npusim doctor` says more.", BAD_INPUT
    if isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError):
        # It is there: the system has no memory to map it, or not what it links with.
        return f"A library cannot be loaded: {first_line(error)}.", BAD_INPUT
    if isinstance(error, MemoryError):
        return "Out of memory.", BAD_INPUT
    text = f"{type(error).__name__}: {first_line(error)}"
    return f"npusim failed ({text}); that is a defect. --debug shows where.", DEFECT


def table(rows: Iterable[Sequence[object]], *header: str) -> str:
    """Returns aligned columns: numbers to the right, everything else to the left."""
    values = [tuple(row) for row in rows]
    cells = [*([header] if header else []), *([_cell(v) for v in row] for row in values)]
    lines: list[list[str]] = [[] for _ in cells]
    for column, texts in enumerate(zip(*cells, strict=True)):
        width = max(map(len, texts))
        numeric = bool(values) and all(isinstance(row[column], (int, float)) for row in values)
        for line, text in zip(lines, texts, strict=True):
            line.append(text.rjust(width) if numeric else text.ljust(width))
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def amount(count: int) -> str:
    """Returns a byte count for people: `512 B`, `4.2 KiB`, `97.5 MiB`."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{int(size)} B" if unit == "B" else f"{size:.1f} {unit}"


def duration(seconds: float) -> str:
    """Returns a time for people, with three digits: `2.81 µs`, `14.2 ms`, `1.03 s`."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"

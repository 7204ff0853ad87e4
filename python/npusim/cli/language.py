"""A language model where a verb takes a graph or a program: which files are one, and the options of
its extraction, those of the method that serves many requests among them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import npusim
from npusim.cli.artifact import open_program
from npusim.cli.context import known_positions
from npusim.errors import Error, ExportError

if TYPE_CHECKING:
    from npusim.cli.progress import Report
    from npusim.frontends.step_method import StepSizes
    from npusim.ir.module import Module
    from npusim.program.program import CompiledProgram
    from npusim.runtime.weights import WeightSource

_CONTEXT = 4096  # unless the model knows fewer positions
_CHUNK = 128
_STEP = ("page_tokens", "pages", "max_requests", "max_step_tokens")


@dataclass(frozen=True)
class LanguageOptions:
    """How a language model is extracted; None: the default.

    Attributes:
        max_context: tokens that a request or a session holds.
        prefill_chunk: tokens of a prompt that a session takes at a time.
        serve: whether the program has the method `step`.
        page_tokens: rows of a page of `step`'s caches.
        pages: of each cache, for all requests.
        max_requests: requests that a step takes.
        max_step_tokens: rows that a step takes.
    """

    max_context: int | None = None
    prefill_chunk: int | None = None
    serve: bool = False
    page_tokens: int | None = None
    pages: int | None = None
    max_requests: int | None = None
    max_step_tokens: int | None = None

    def refuse(self, path: Path | str) -> None:
        """Raises Error if any is given, of a model that is no language model's folder or file."""
        given = [f.name for f in fields(self) if getattr(self, f.name) not in (None, False)]
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise Error(
                f"{names}: what a language model is extracted with, and {path} is no folder of one "
                "and no .gguf file."
            )

    def steps(self) -> StepSizes | None:
        """Returns the sizes of `step`; None: there is to be no such method."""
        from npusim.frontends.step_method import StepSizes

        given = {name: getattr(self, name) for name in _STEP}
        chosen = {name: value for name, value in given.items() if value is not None}
        return StepSizes(**chosen) if chosen or self.serve else None

    def extract(self, source: Path, report: Report) -> Module:
        """Extracts the model of a folder or a .gguf file; errors as `npusim.extract_llm`."""
        context = self.max_context or known_positions(source, _CONTEXT)
        return npusim.extract_llm(
            source,
            max_context=context,
            prefill_chunk=min(self.prefill_chunk or _CHUNK, context),
            serve=self.steps() or False,
            progress=report,
        )

    def extract_to_serve(self, source: Path, report: Report) -> tuple[Module, str | None]:
        """Extracts the model with the method `step`, or without, if it can have none.

        Returns:
            The module, and why it has no such method.
        """
        asked = replace(self, serve=True)
        try:
            return asked.extract(source, report), None
        except ExportError as error:
            plain = LanguageOptions(self.max_context, self.prefill_chunk)
            if asked != replace(plain, serve=True):  # sizes were asked for
                raise
            return plain.extract(source, report), str(error)


@dataclass(frozen=True)
class Served:
    """What a verb that serves was given.

    Attributes:
        program: to be loaded.
        weights: of the program.
        remark: why it has no method for many requests, though one was asked for.
    """

    program: CompiledProgram
    weights: WeightSource | None
    remark: str | None = None


def open_to_serve(
    model: Path,
    weights: WeightSource | None,
    language: LanguageOptions,
    quantize: str | None,
    save: Path | None,
    report: Report,
) -> Served:
    """Opens a program, or makes one of a language model's folder or file.

    Args:
        model: a .npubin file, a folder of transformers or a .gguf file.
        weights: where the weights are; by default in the folder or file.
        language: how the model is extracted.
        quantize: as `npusim.compile` takes it.
        save: where the program is kept.
        report: told what is being done.

    Raises:
        Error: there is no such program, the model cannot be extracted, or an option is of no use.
    """
    if not is_language_model(model):
        language.refuse(model)
        for name, given in (("--quantize", quantize), ("--save", save)):
            if given is not None:
                raise Error(f"{name} is about a program that is made, and {model} is one already.")
        return Served(open_program(model), weights)
    report("extracting and compiling")
    module, remark = language.extract_to_serve(model, report)
    program = npusim.compile(module, quantize=quantize, progress=report)
    if save is not None:
        program.save(save)
    return Served(program, model if weights is None else weights, remark)


def is_language_model(path: Path | str) -> bool:
    """Tells whether a path is a folder of transformers, or a .gguf file."""
    from npusim.runtime.gguf import SUFFIX

    return Path(path).is_dir() or Path(path).suffix == SUFFIX


def name_of(path: Path) -> str:
    """Returns what requests call a model: the name of its folder, or of its file."""
    return path.resolve().name if path.is_dir() else path.stem


save_option = click.option(
    "--save", type=click.Path(path_type=Path), help="Keep the program made of MODEL."
)


def language_options(*, serving: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a verb the argument `language`, a LanguageOptions.

    Args:
        serving: whether the verb serves in any case, so that it has no --serve.
    """
    of = "" if serving else "Of a language model: "
    flag = click.option(
        "--serve",
        is_flag=True,
        help=f"{of}with the method that serves many requests at a time.",
    )
    positive = click.IntRange(min=1)
    shown = [
        click.option(
            "--max-context", type=positive, help=f"{of}tokens of a context. [4096 or less]"
        ),
        click.option(
            "--prefill-chunk", type=positive, help=f"{of}tokens of a prompt at a time. [{_CHUNK}]"
        ),
        click.option("--page-tokens", type=positive, help="Tokens of a page of the cache. [64]"),
        click.option("--pages", type=positive, help="Pages of all requests. [four whole contexts]"),
        click.option("--max-requests", type=positive, help="Requests of a step. [256]"),
        click.option("--max-step-tokens", type=positive, help="Tokens of a step. [2048 or less]"),
    ]
    options = shown if serving else [flag, *shown]

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(verb)
        def called(*args: Any, **kwargs: Any) -> Any:
            given = {f.name: kwargs.pop(f.name, f.default) for f in fields(LanguageOptions)}
            return verb(*args, language=LanguageOptions(**given), **kwargs)

        for option in reversed(options):
            called = option(called)
        return called

    return decorate

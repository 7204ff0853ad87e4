"""`--weights` and `--rename`, of every verb that computes with weights: which checkpoint, and what
its tensors are called in it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from npusim.errors import Error
from npusim.files import printable_path, reads

if TYPE_CHECKING:  # verbs also have to say that the runtime is missing
    from npusim.runtime.checkpoint import Checkpoint

Weights: TypeAlias = "Path | Checkpoint | None"

FORMS = ".safetensors, its index, a folder of them, or .pt."
INSTEAD = "A checkpoint to use instead of the model's own weights: " + FORMS


def weights_options(*names: str, help: str = FORMS) -> Callable[[Callable[..., Any]], Any]:
    """Gives a verb `--weights` and `--rename`; it gets one argument, `weights`.

    That is the path as it stands, or a Checkpoint where tensors are renamed; None without.
    """

    flags = names or ("--weights",)

    def decorate(verb: Callable[..., Any]) -> Any:
        @click.option(*flags, "weights", type=click.Path(path_type=Path), help=help)
        @click.option(
            "--rename",
            "renamed",
            multiple=True,
            metavar="KEY=KEY",
            help="What keys of the model begin with, and what the checkpoint has in its place: "
            "model.= for a wrapped model, =module. for a wrapped checkpoint. Can be repeated.",
        )
        @functools.wraps(verb)
        def with_checkpoint(
            *args: Any, weights: Path | None, renamed: Sequence[str], **options: Any
        ) -> Any:
            return verb(*args, weights=_checkpoint(weights, renamed), **options)

        return with_checkpoint

    return decorate


def _checkpoint(path: Path | None, renamed: Sequence[str]) -> Weights:
    if path is None:
        if renamed:
            raise click.UsageError("--rename is about the file of --weights, which is missing.")
        return None
    if not path.exists():
        raise Error(f"There is no file or folder {printable_path(path)}.")
    if path.is_file():
        reads(path)
    if not renamed:
        return path
    from npusim.runtime.checkpoint import Checkpoint

    names: dict[str, str] = {}
    for ours, theirs in map(_pair, renamed):
        if names.setdefault(ours, theirs) != theirs:
            raise click.UsageError(f"--rename gives '{ours}' two names: {names[ours]}, {theirs}.")
    return Checkpoint(path, names)


def _pair(text: str) -> tuple[str, str]:
    ours, equals, theirs = text.partition("=")
    if not equals or text == "=":
        raise click.UsageError(
            f"--rename {text}: expected KEY=KEY, the model's and the checkpoint's, such as model.=."
        )
    return ours, theirs

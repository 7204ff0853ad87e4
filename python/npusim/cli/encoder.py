"""A text encoder where a verb takes a program: which files are one, what is made of a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import npusim
from npusim.cli.artifact import open_program
from npusim.cli.language import LanguageOptions, Served
from npusim.errors import Error

if TYPE_CHECKING:
    from npusim.runtime.weights import WeightSource


def is_text_encoder(model: Path, pooling: str | None) -> bool:
    """Tells whether a folder or a program makes vectors of texts.

    Args:
        model: a folder, a `.gguf` file, or a `.npubin` file.
        pooling: how vectors are to be made of a folder's model; then it is an encoder's.

    Raises:
        Error: `pooling`, and it is no folder; or there is no such program.
    """
    if model.is_dir():  # PyTorch is needed for it in any case
        from npusim.frontends.text_encoder import says_pooling

        return pooling is not None or says_pooling(model)
    if pooling is not None:
        raise Error(f"--pooling is about an encoder's folder, and {model} is none.")
    return model.suffix != ".gguf" and "text_encoder" in open_program(model).metadata


def open_encoder(
    model: Path,
    weights: WeightSource | None,
    language: LanguageOptions,
    pooling: str | None,
    quantize: str | None,
    save: Path | None,
) -> Served:
    """Opens a program, or makes one of an encoder's folder.

    Args:
        model, weights, quantize, save: as `npusim.cli.language.open_to_serve` has them.
        language: of it `max_context`, the tokens of a text, at most; no other makes sense.
        pooling: as `npusim.extract_encoder` takes it.

    Raises:
        Error: the model cannot be extracted, or an option is of no use.
    """
    if not model.is_dir():
        language.refuse(model)
        for name, given in (("--quantize", quantize), ("--save", save)):
            if given is not None:
                raise Error(f"{name} is about a program that is made, and {model} is one already.")
        return Served(open_program(model), weights)
    replace(language, max_context=None).refuse(model)
    module = npusim.extract_encoder(model, pooling=pooling, max_tokens=language.max_context)
    program = npusim.compile(module, quantize=quantize)
    if save is not None:
        program.save(save)
    return Served(program, model if weights is None else weights)

"""Device code for sizes that a program was not prepared for, made when a call comes with them.

The runtime calls `make_images` (`npusim.runtime.device`), on the thread of that call.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from npusim.abi.kernels import KERNELS
from npusim.codegen.choice import Choice
from npusim.codegen.generator import CodeGenerator, generator_of_image
from npusim.codegen.wanted import WantedImage
from npusim.errors import Error, ProgramFormatError
from npusim.targets import TargetConfig

logger = logging.getLogger(__name__)

_OTHERWISE = "Or compile the model with these sizes: npusim.compile(…, sizes=…)."


def make_images(kernels: Sequence[tuple[str, str, bytes, bytes]]) -> list[bytes] | str:
    """Returns an image for each kernel, or why there are none and what to do.

    Args:
        kernels: of each the stem, the schema that its parameters were packed for, the parameters,
            and an image of the same kernel for other parameters.

    Raises:
        ProgramFormatError: an image is not what code generation makes.
    """
    if not kernels:
        return []
    generator = generator_of_image(kernels[0][3])
    if generator is None:
        raise ProgramFormatError("An image of device code is malformed: whose it is, is unknown.")
    try:
        generator.require_compiler()
    except Error as error:
        return f"{error} {_OTHERWISE}"
    for stem, schema, _, _ in kernels:
        if stem not in generator.stems or KERNELS[stem].schema != schema:
            return (
                f"this npusim makes kernel {stem} from other parameters. Compile the model again."
            )
    target = generator.made_for(kernels[0][3])
    chosen = [_wanted(generator, target, stem, params, like) for stem, _, params, like in kernels]
    logger.info("%d kernels are made for the sizes of a call", len(chosen))
    return generator.images(chosen, target)


def _wanted(
    generator: CodeGenerator, target: TargetConfig, stem: str, params: bytes, like: bytes
) -> tuple[WantedImage, Choice]:
    recipe = generator.recipe_of(like)
    wanted = WantedImage(stem, params, recipe.unwritten, recipe)
    target = replace(target, libraries=recipe.libraries)
    return wanted, generator.choose(wanted, recipe, target, None)

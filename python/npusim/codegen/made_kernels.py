"""Device code for sizes that a program was not prepared for, made when a call comes with them.

The runtime calls `make_images` (`npusim.runtime.device`), on the thread of that call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npusim.codegen import nvrtc
from npusim.codegen.choices import sized_choice
from npusim.codegen.compile_kernels import compile_images
from npusim.codegen.image import read_recipe
from npusim.codegen.kernel_table import WantedImage
from npusim.codegen.launch import RULES
from npusim.errors import Error
from npusim.ops.kernels import KERNELS
from npusim.targets import TargetConfig

_OTHERWISE = "Or compile the model with these sizes: npusim.compile(…, sizes=…)."


def make_images(kernels: Sequence[tuple[str, str, bytes, bytes]]) -> list[bytes] | str:
    """Returns an image for each kernel, or why there are none and what to do.

    Args:
        kernels: of each the stem, the schema that its parameters were packed for, the parameters,
            and an image of the same kernel for other parameters.

    Raises:
        ProgramFormatError: an image is not what code generation makes.
    """
    try:
        nvrtc.load()
    except Error as error:
        return f"{error} {_OTHERWISE}"
    chosen, arch = [], ""
    for stem, schema, params, like in kernels:
        if stem not in RULES or KERNELS[stem].schema != schema:
            return (
                f"this npusim makes kernel {stem} from other parameters. Compile the model again."
            )
        arch, recipe = read_recipe(like)
        target = replace(TargetConfig.named(f"cuda:{arch}"), libraries=recipe.libraries)
        wanted = WantedImage(stem, params, recipe.settled, recipe)
        chosen.append((wanted, sized_choice(stem, params, target, None, recipe.narrowed)))
    return compile_images(chosen, arch)

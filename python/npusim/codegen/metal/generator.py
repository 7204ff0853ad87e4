"""CodeGenerator of Metal devices: the table of stems, and images of MSL text.

Nothing is compiled here, as only Apple's tools do that: a program for Metal is made on any machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from npusim.abi.kernels import KERNELS
from npusim.codegen.choice import Choice, Choices
from npusim.codegen.elementwise import generated_source
from npusim.codegen.launch_config import LaunchConfig
from npusim.codegen.metal.dialect import DIALECT
from npusim.codegen.metal.image import Image, pack_image, unpack_image
from npusim.codegen.metal.rules import RULES
from npusim.codegen.metal.source import kernel_source, stem_source
from npusim.codegen.wanted import Recipe, WantedImage
from npusim.errors import ProgramFormatError
from npusim.program.program import CompiledProgram
from npusim.targets import TargetConfig


class MetalGenerator:
    """Makes images of MSL; `CodeGenerator` says what each method does."""

    @property
    def stems(self) -> Collection[str]:
        """The stems that have a rule."""
        return RULES.keys()

    def reads_before_wait(self, stem: str) -> bool:
        """False: dispatches wait for each other at barriers."""
        return False

    def own_operands(self, stem: str, params: bytes) -> int | None:
        """None: no library computes commands."""
        return None

    def prepare(
        self, program: CompiledProgram, target: TargetConfig, tuned: Choices
    ) -> tuple[CompiledProgram, Choices]:
        """Returns the program as it is: every command is its own kernel's."""
        return program, {}

    def choose(
        self, wanted: WantedImage, recipe: Recipe, target: TargetConfig, tuned: Choice | None
    ) -> Choice:
        """Returns the only choice there is."""
        return Choice()

    def images(
        self, wanted: Sequence[tuple[WantedImage, Choice]], target: TargetConfig
    ) -> list[bytes]:
        """Returns images in order."""
        return [_image(image, target) for image, _ in wanted]

    def require_compiler(self) -> None:
        """Asks for nothing: the device's driver compiles."""

    def made_for(self, image: bytes) -> TargetConfig:
        """Returns the target of an image's GPU family."""
        return TargetConfig.named(f"metal:{unpack_image(image).arch}")

    def recipe_of(self, image: bytes) -> Recipe:
        """Returns the recipe of an image."""
        recipe = unpack_image(image).recipe
        if recipe is None:
            raise ProgramFormatError("A Metal kernel's image is malformed: there is no recipe.")
        return recipe

    def candidates(self, stem: str, params: bytes) -> Iterator[tuple[str, Choice]]:
        """Yields the rule."""
        yield "own", Choice()

    def library_of(self, stem: str, params: bytes) -> str:
        """Returns nothing."""
        return ""

    def is_possible(self, stem: str, params: bytes, choice: Choice) -> bool:
        """Tells whether a choice is the one there is."""
        return choice == Choice()


def specialise(stem: str, params: bytes, features: Collection[str]) -> tuple[str, LaunchConfig]:
    """Returns a kernel's MSL text, empty where nothing is launched, and its configuration.

    Args:
        features: of the GPU family.
    """
    fields = KERNELS[stem].unpack(params)
    config = RULES[stem](fields)
    if not config.launches:
        return "", config
    body = generated_source(stem, fields, DIALECT) or stem_source(stem)
    assert body is not None, stem
    return kernel_source(stem, fields, body, config.defines, features), config


def _image(wanted: WantedImage, target: TargetConfig) -> bytes:
    source, config = specialise(wanted.stem, wanted.params, target.features)
    return pack_image(Image(target.arch, config, source, wanted.recipe))


GENERATOR = MetalGenerator()

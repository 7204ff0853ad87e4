"""CodeGenerator of Metal devices: the table of stems, and images of MSL text.

Nothing is compiled here, as only Apple's tools do that: a program for Metal is made on any machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from npusim.abi.kernels import KERNELS
from npusim.codegen.choice import Choice, Choices
from npusim.codegen.elementwise import generated_source
from npusim.codegen.launch_config import LaunchConfig
from npusim.codegen.metal.dialect import DIALECT
from npusim.codegen.metal.image import Image, pack_image, unpack_image
from npusim.codegen.metal.mps import NAME, mps_problem
from npusim.codegen.metal.rules import RULES
from npusim.codegen.metal.source import kernel_source, stem_source
from npusim.codegen.wanted import Recipe, WantedImage
from npusim.errors import ProgramFormatError
from npusim.program.program import Command, CompiledProgram
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
        """None: MPS takes the operands as own kernels do."""
        return None

    def prepare(
        self, program: CompiledProgram, target: TargetConfig, tuned: Choices
    ) -> tuple[CompiledProgram, Choices]:
        """Returns the program as it is, and what is MPS's where the target asks for it."""
        commands = ((program.kernels[c.kernel].name, c.params) for c in _commands(program))
        return program, {key: _choice(*key, target) for key in commands}

    def choose(
        self, wanted: WantedImage, recipe: Recipe, target: TargetConfig, tuned: Choice | None
    ) -> Choice:
        """Returns who computes a command at some sizes."""
        return _choice(wanted.stem, wanted.params, replace(target, libraries=recipe.libraries))

    def images(
        self, wanted: Sequence[tuple[WantedImage, Choice]], target: TargetConfig
    ) -> list[bytes]:
        """Returns images in order."""
        return [_image(image, choice, target) for image, choice in wanted]

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

    def launches_of(self, image: bytes) -> LaunchConfig | None:
        """Returns how an image is dispatched."""
        return unpack_image(image).config

    def candidates(self, stem: str, params: bytes) -> Iterator[tuple[str, Choice]]:
        """Yields the rule, and MPS where it can."""
        yield "own", Choice()
        if self.library_of(stem, params):
            yield NAME, Choice(library=NAME)

    def library_of(self, stem: str, params: bytes) -> str:
        """Returns "mps" for what it computes; else nothing."""
        return NAME if mps_problem(stem, params) is not None else ""

    def is_possible(self, stem: str, params: bytes, choice: Choice) -> bool:
        """Tells whether a choice is one of `candidates`."""
        return any(choice == known for _, known in self.candidates(stem, params))


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


def _commands(program: CompiledProgram) -> Iterator[Command]:
    for method in (program.init, *program.methods):
        yield from method.commands


def _choice(stem: str, params: bytes, target: TargetConfig) -> Choice:
    offered = target.libraries == "all" and mps_problem(stem, params) is not None
    return Choice(library=NAME) if offered else Choice()


def _image(wanted: WantedImage, choice: Choice, target: TargetConfig) -> bytes:
    source, config = specialise(wanted.stem, wanted.params, target.features)
    problem = mps_problem(wanted.stem, wanted.params) if choice.library else None
    library = problem.header if problem is not None and config.launches else None
    batch = 0 if target.launches is None else target.launches.max_dispatches_per_batch
    return pack_image(Image(target.arch, config, source, wanted.recipe, library, batch))


GENERATOR = MetalGenerator()

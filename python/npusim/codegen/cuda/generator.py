"""CodeGenerator of CUDA devices: the table of stems, choices, images, and NVRTC behind them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from npusim.codegen.choice import Choice, Choices
from npusim.codegen.cuda import choices, library, nvrtc
from npusim.codegen.cuda.compile_kernels import compile_images
from npusim.codegen.cuda.image import read_recipe, unpack_image
from npusim.codegen.cuda.rules import RULES
from npusim.codegen.cuda.source import reads_before_wait
from npusim.codegen.cuda.variants import variants
from npusim.codegen.launch_config import LaunchConfig
from npusim.codegen.wanted import Recipe, WantedImage
from npusim.program.program import CompiledProgram
from npusim.targets import TargetConfig

_PLANS = 6  # of a library, the ones it thinks best


class CudaGenerator:
    """Makes images of cubins; `CodeGenerator` says what each method does."""

    @property
    def stems(self) -> Collection[str]:
        """The stems that have a rule."""
        return RULES.keys()

    def reads_before_wait(self, stem: str) -> bool:
        """Tells whether a stem's source asks which operands nothing writes before it."""
        return reads_before_wait(stem)

    def own_operands(self, stem: str, params: bytes) -> int | None:
        """Returns how many operands the own kernel of a library's stem takes."""
        return library.own_operands(stem, params)

    def prepare(
        self, program: CompiledProgram, target: TargetConfig, tuned: Choices
    ) -> tuple[CompiledProgram, Choices]:
        """Returns the program with the operands that libraries want, and each command's choice."""
        return choices.prepare_libraries(program, target, tuned)

    def choose(
        self, wanted: WantedImage, recipe: Recipe, target: TargetConfig, tuned: Choice | None
    ) -> Choice:
        """Returns the choice for a command at some sizes of a call."""
        return choices.sized_choice(wanted.stem, wanted.params, target, tuned, recipe)

    def images(
        self, wanted: Sequence[tuple[WantedImage, Choice]], target: TargetConfig
    ) -> list[bytes]:
        """Returns images, compiled in parallel where the cache does not have them."""
        return compile_images(wanted, target)

    def require_compiler(self) -> None:
        """Raises Error where there is no NVRTC."""
        nvrtc.load()

    def made_for(self, image: bytes) -> TargetConfig:
        """Returns the target of an image's architecture."""
        return TargetConfig.named(f"cuda:{unpack_image(image).arch}")

    def recipe_of(self, image: bytes) -> Recipe:
        """Returns the recipe of an image."""
        return read_recipe(image)

    def launches_of(self, image: bytes) -> LaunchConfig | None:
        """None: rules go by the features of the architecture, and NVRTC refuses what it has not."""
        return None

    def candidates(self, stem: str, params: bytes) -> Iterator[tuple[str, Choice]]:
        """Yields the rule, its variants, and the first plans of a library."""
        yield "own", Choice()
        for variant in variants(stem, params):
            yield f"own {variant}", Choice(variant=variant)
        name = self.library_of(stem, params)
        if name:
            yield from ((f"{name} {plan}", Choice(name, plan)) for plan in range(_PLANS))

    def library_of(self, stem: str, params: bytes) -> str:
        """Returns "cublaslt", "cudnn", or nothing."""
        problem = library.library_problem(stem, params)
        return "" if problem is None else problem.name

    def is_possible(self, stem: str, params: bytes, choice: Choice) -> bool:
        """Tells whether a library, or a config, is among the candidates."""
        if choice.library:
            return self.library_of(stem, params) == choice.library
        return not choice.variant or choice.variant in variants(stem, params)


GENERATOR = CudaGenerator()

"""CodeGenerator: what makes device code for one kind of device, and which target has which.

Code generation in general (the kernel table, sizes, tuning, trials) knows no language and no
device; a generator's package is imported when a target, or an image, asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from npusim.codegen.choice import Choice, Choices
from npusim.codegen.launch_config import LaunchConfig
from npusim.codegen.wanted import Recipe, WantedImage
from npusim.errors import TargetConstraintError
from npusim.program.program import CompiledProgram
from npusim.targets import TargetConfig


class CodeGenerator(Protocol):
    """Makes the images of kernels: device code of one format, and how it is launched."""

    @property
    def stems(self) -> Collection[str]:
        """The stems that there are kernels for."""

    def reads_before_wait(self, stem: str) -> bool:
        """Tells whether a stem's kernels read unwritten operands before they wait for others."""

    def own_operands(self, stem: str, params: bytes) -> int | None:
        """Returns how many operands the own kernel takes; None: no library computes these."""

    def prepare(
        self, program: CompiledProgram, target: TargetConfig, tuned: Choices
    ) -> tuple[CompiledProgram, Choices]:
        """Returns the program with all operands that its choices want, and each command's choice.

        Args:
            tuned: choices that were measured; the others are the default ones.
        """

    def choose(
        self, wanted: WantedImage, recipe: Recipe, target: TargetConfig, tuned: Choice | None
    ) -> Choice:
        """Returns the choice for a command at some sizes of a call, whose operands are given.

        Args:
            tuned: what was measured for these parameters.
        """

    def images(
        self, wanted: Sequence[tuple[WantedImage, Choice]], target: TargetConfig
    ) -> list[bytes]:
        """Returns images in order; each with the choice of who computes it.

        Raises:
            TargetConstraintError: the compiler does not know the architecture.
            Error: the compiler is not installed.
        """

    def require_compiler(self) -> None:
        """Raises Error, which says what to install, where images cannot be made."""

    def made_for(self, image: bytes) -> TargetConfig:
        """Returns the target that an image was made for.

        Raises:
            ProgramFormatError: it is none of this generator's.
        """

    def recipe_of(self, image: bytes) -> Recipe:
        """Returns the recipe of an image of a kernel whose parameters depend on sizes.

        Raises:
            ProgramFormatError: it is none, or has no recipe.
        """

    def launches_of(self, image: bytes) -> LaunchConfig | None:
        """Returns how an image is launched; None: it is no business of `TargetConfig.launches`."""

    def candidates(self, stem: str, params: bytes) -> Iterator[tuple[str, Choice]]:
        """Yields choices for a command with their names, the own kernel's rule first."""

    def library_of(self, stem: str, params: bytes) -> str:
        """Returns the library that can compute a command; empty: none."""

    def is_possible(self, stem: str, params: bytes, choice: Choice) -> bool:
        """Tells whether this generator could have made a choice for a command itself."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a generator is, as `package.module.GENERATOR`, and how its images begin."""

    module: str
    magic: bytes


# By the format of the device code.
_GENERATORS: Mapping[str, _Entry] = {
    "cubin": _Entry("npusim.codegen.cuda.generator", b"NPUCUDA\x01"),
    "msl": _Entry("npusim.codegen.metal.generator", b"NPUMETL\x01"),
}


def generator_of(target: TargetConfig) -> CodeGenerator | None:
    """Returns what makes a target's device code; None: the backend has kernels of its own.

    Raises:
        TargetConstraintError: nothing makes code of its format.
    """
    if not target.code_format:
        return None
    if target.code_format not in _GENERATORS:
        raise TargetConstraintError(
            f"Nothing generates device code of format '{target.code_format}', which target "
            f"'{target.name}' runs.",
            hint=f"Formats: {', '.join(_GENERATORS)}.",
        )
    return _load(_GENERATORS[target.code_format])


def generator_of_image(image: bytes) -> CodeGenerator | None:
    """Returns what an image was made by; None: no generator's images begin so."""
    for entry in _GENERATORS.values():
        if image.startswith(entry.magic):
            return _load(entry)
    return None


def _load(entry: _Entry) -> CodeGenerator:
    generator: CodeGenerator = import_module(entry.module).GENERATOR
    return generator

"""The kernel table of a program with device code: which images its commands need, each once.

A command of fixed sizes names a kernel with an image of its own: one for each distinct triple
(stem, parameters, unwritten operands); the third is 0 where the source does not ask for it.
Commands whose parameters depend on the sizes of a call name a kernel by stem and operands, which
has an image for each parameters that they come to at the sizes to prepare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from npusim.abi.kernels import KERNELS, PAGED_STEMS
from npusim.codegen.generator import CodeGenerator
from npusim.codegen.unwritten import unwritten_operands
from npusim.codegen.wanted import Recipe, WantedImage
from npusim.program.program import Command, CompiledProgram, Kernel, Method, Specialized
from npusim.program.sized_command import Sizes, params_at
from npusim.targets import TargetConfig


@dataclass(frozen=True, slots=True)
class _Key:
    stem: str
    unwritten: int
    params: bytes | None  # None: they depend on the sizes of a call
    operands: int = 0  # of the command, where that is so; with what a library wants beside them
    cast: bool = False
    batch_invariance: str = "none"


class KernelTable:
    """Kernels in the order of their first use."""

    def __init__(
        self, program: CompiledProgram, target: TargetConfig, generator: CodeGenerator
    ) -> None:
        self._program, self._target, self._generator = program, target, generator
        self._params: dict[_Key, dict[bytes, None]] = {}

    def add(self, method: Method, sizes: Sequence[Sizes]) -> Method:
        """Returns a method whose commands name kernels of this table.

        Args:
            sizes: those to prepare code for.
        """
        commands = []
        masks = unwritten_operands(self._program, method)
        invariance = self._target.batch_invariance if self._over_pages(method) else "none"
        for command, mask in zip(method.commands, masks, strict=True):
            key = self._key(command, mask, invariance)
            wanted = self._params.setdefault(key, {})
            wanted.update(dict.fromkeys(params_at(command, s) for s in sizes))
            commands.append(replace(command, kernel=list(self._params).index(key)))
        return replace(method, commands=tuple(commands))

    @property
    def stems(self) -> set[str]:
        """The stems in use."""
        return {key.stem for key in self._params}

    def images(self) -> Iterator[WantedImage]:
        """Yields the images of all kernels, in order."""
        for key, wanted in self._params.items():
            recipe = None
            if key.params is None:
                libraries = self._target.libraries
                recipe = Recipe(key.unwritten, libraries, key.cast, key.batch_invariance)
            for params in wanted:
                yield WantedImage(key.stem, params, key.unwritten, recipe)

    def kernels(self, images: Iterable[bytes]) -> tuple[Kernel, ...]:
        """Returns the table, given what `images` yields as bytes."""
        made = iter(images)
        kernels = []
        for key, wanted in self._params.items():
            schema = KERNELS[key.stem].schema
            codes = tuple(Specialized(params, next(made)) for params in wanted)
            if key.params is None:
                kernels.append(Kernel(key.stem, schema, specialized=codes))
            else:
                kernels.append(Kernel(key.stem, schema, codes[0].image))
        return tuple(kernels)

    def _over_pages(self, method: Method) -> bool:
        """Tells whether a method's rows are of many requests, whose caches lie in pages."""
        stems = (self._program.kernels[command.kernel].name for command in method.commands)
        return any(stem in PAGED_STEMS for stem in stems)

    def _key(self, command: Command, mask: int, invariance: str) -> _Key:
        stem = self._program.kernels[command.kernel].name
        unwritten = mask if self._generator.reads_before_wait(stem) else 0
        if not command.patches:
            return _Key(stem, unwritten, command.params)
        own = self._generator.own_operands(stem, command.params)
        count = len(command.operands)
        cast = own is not None and count > own
        return _Key(stem, unwritten, None, count, cast, invariance)

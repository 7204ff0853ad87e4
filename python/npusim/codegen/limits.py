"""The limits of a target held against every command: what its launches are, and what they take."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.codegen.generator import CodeGenerator
from npusim.codegen.launch_config import LANES, LaunchConfig
from npusim.errors import TargetConstraintError
from npusim.program.program import Command, CompiledProgram
from npusim.targets import TargetConfig
from npusim.targets.launch_limits import LaunchLimits


def check_limits(program: CompiledProgram, target: TargetConfig, generator: CodeGenerator) -> None:
    """Holds the commands of a program with device code to what a target's launches may be.

    Raises:
        TargetConstraintError: names the node, the number and the limit; or there are no kernels
            for SIMD groups of that size.
    """
    limits = target.launches
    if limits is None:
        return
    if limits.lanes != LANES:
        raise TargetConstraintError(
            f"Target '{target.name}' has SIMD groups of {limits.lanes} lanes; kernels are written "
            f"for {LANES}."
        )
    configs: dict[int, tuple[LaunchConfig, ...]] = {}
    for command in (c for m in (program.init, *program.methods) for c in m.commands):
        if command.kernel not in configs:
            configs[command.kernel] = tuple(_configs(program, command, generator))
        for config in configs[command.kernel]:
            for count, most, what in _counts(config, command, limits):
                if most and count > most:
                    node = program.nodes[command.node]
                    source = f", {node.source}" if node.source else ""
                    place = f"{node.name} ({node.op}{source})"
                    raise TargetConstraintError(
                        f"{place}: kernel '{program.kernels[command.kernel].name}' takes {count} "
                        f"{what}; target '{target.name}' has {most}.",
                    )


def _configs(
    program: CompiledProgram, command: Command, generator: CodeGenerator
) -> Iterator[LaunchConfig]:
    image = program.kernels[command.kernel].image
    if image and (config := generator.launches_of(image)) is not None:
        yield config


def _counts(
    config: LaunchConfig, command: Command, limits: LaunchLimits
) -> Iterator[tuple[int, int, str]]:
    """Yields what a command takes, the most there is of it, and its name."""
    if not config.launches:
        return
    more = (config.scratch > 0) + config.failure
    threads = max(x.block[0] * x.block[1] * x.block[2] for x in config.launches)
    shared = max(x.shared for x in config.launches)
    yield len(command.operands) + more, limits.arguments, "buffers"
    yield threads, limits.threads, "threads a threadgroup"
    yield shared, limits.shared_bytes, "bytes of threadgroup memory"
    yield len(config.launches), limits.max_dispatches_per_batch, "dispatches in one batch"

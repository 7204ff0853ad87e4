"""Tuning: what computes each command of a program fastest, found by running every candidate.

Owns the candidates (the own kernel's rule and its variants, and the first plans of a
library) and how one is timed. What was found is a `Tuning`, which `apply` puts into a program.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from npusim.abi.kernels import KERNELS
from npusim.codegen import generate
from npusim.codegen.choice import Choice, Choices
from npusim.codegen.generator import CodeGenerator, generator_of, generator_of_image
from npusim.codegen.trial import REPEATS, Subject, random_bits, subjects, trial
from npusim.codegen.tuning import Tuning, key_of
from npusim.errors import TargetConstraintError
from npusim.program.program import CompiledProgram
from npusim.runtime import Device, DeviceBuffer, Executor
from npusim.targets import TargetConfig, target_names

_WARM, _TIMED = 2, 7  # runs
_NARROWER = 0.97  # of the default's time, that another choice must stay below

Progress = Callable[[str, int, int], None]


def tune(program: CompiledProgram, device: Device, *, progress: Progress | None = None) -> Tuning:
    """Times every candidate for each command of a program on a device.

    Args:
        program: with device code; its weights are not needed.
        device: one of the program's target; nothing else should run on it.
        progress: called as (stage, done, total) before each command.

    Raises:
        TargetConstraintError: the program has no device code.
        Error: the device code's compiler is not installed.
    """
    target = target_of(program)
    generator = _generator(target)
    choices: dict[str, Choice] = {}
    stems: dict[str, str] = {}
    times: dict[str, dict[str, float]] = {}
    found = subjects(program, generator)
    for index, subject in enumerate(found.values()):
        if progress is not None:
            progress(subject.stem, index, len(found))
        measured = _measured(subject, target, device, generator)
        if not measured:
            continue
        names = [name for name, _, _ in measured]
        default, best = measured[0], min(measured, key=lambda row: row[2])
        chosen = best if best[2] < _NARROWER * default[2] else default
        key = key_of(subject.stem, subject.params)
        choices[key], stems[key] = chosen[1], subject.stem
        times[key] = {n: round(t * 1e6, 2) for n, (_, _, t) in zip(names, measured, strict=True)}
    return Tuning(device.description, choices, stems, times)


def apply(program: CompiledProgram, tuning: Tuning) -> CompiledProgram:
    """Returns the program with the choices of a tuning; commands it does not know have the default.

    Needs the device code's compiler and no device.

    Raises:
        TargetConstraintError: the program has no device code.
        Error: the compiler is not installed.
    """
    target = target_of(program)
    return generate(program, target, choices_for(program, tuning))


def choices_for(program: CompiledProgram, tuning: Tuning) -> Choices:
    """Returns a tuning's choices for the commands of a program's methods.

    Raises:
        TargetConstraintError: the program has no device code.
    """
    keys = ((program.kernels[c.kernel].name, c.params) for m in program.methods for c in m.commands)
    return tuning.for_commands(keys, _generator(target_of(program)))


def target_of(program: CompiledProgram) -> TargetConfig:
    """Returns the target that a program's device code was made for.

    Raises:
        TargetConstraintError: it has none.
    """
    images = [
        k.image or k.specialized[0].image for k in program.kernels if k.image or k.specialized
    ]
    generator = generator_of_image(images[0]) if images else None
    if generator is None:
        raise TargetConstraintError(
            f"The program was compiled for '{program.target}', which has kernels of its own; "
            "only programs with device code are tuned.",
            hint=f"Compile the model with target={_with_device_code()}.",
        )
    return generator.made_for(images[0])


def _with_device_code() -> str:
    """Returns the targets that have such programs, for people."""
    return " or ".join(repr(n) for n in target_names() if TargetConfig.named(n).code_format)


def _generator(target: TargetConfig) -> CodeGenerator:
    generator = generator_of(target)
    assert generator is not None, target.name
    return generator


def _measured(
    subject: Subject, target: TargetConfig, device: Device, generator: CodeGenerator
) -> list[tuple[str, Choice, float]]:
    named = list(generator.candidates(subject.stem, subject.params))
    return measure_all(subject, named, target, device) if len(named) > 1 else []


def measure_all(
    subject: Subject, named: Sequence[tuple[str, Choice]], target: TargetConfig, device: Device
) -> list[tuple[str, Choice, float]]:
    """Returns the choices that the device can make, with the library's version, and their times.

    Times are seconds of one command among others of its kind.
    """
    version = library_version(subject, target, device)
    able = [(n, replace(c, version=version) if c.library else c) for n, c in named]
    able = [(n, c) for n, c in able if version or not c.library]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        programs = list(pool.map(lambda row: trial(subject, row[1], target), able))
    inputs = operands_on(device, subject, programs[0])
    measured = []
    for (name, choice), program in zip(able, programs, strict=True):
        executor = Executor(program, device)
        if choice.library and not executor.implementations()[0]:
            continue  # the library has no such plan
        measured.append((name, choice, seconds(executor, inputs)))
    return measured


def seconds(executor: Executor, inputs: dict[str, DeviceBuffer]) -> float:
    """Returns the median time of one command of a trial."""
    outputs = executor.run(inputs)
    for _ in range(_WARM):
        executor.run(inputs, outputs=outputs)
    times = [executor.time_run(inputs, outputs=outputs) for _ in range(_TIMED)]
    return statistics.median(times) / REPEATS


def library_version(subject: Subject, target: TargetConfig, device: Device) -> int:
    """Returns the version of the library that computes a command here; 0: none does."""
    library = _generator(target).library_of(subject.stem, subject.params)
    if not library:
        return 0
    executor = Executor(trial(subject, Choice(library), target), device)
    name = executor.implementations()[0]
    if not name:
        return 0
    major, minor, patch = map(int, name.split(",")[0].split()[1].split("."))
    return major * 10000 + minor * 100 + patch


def operands_on(
    device: Device, subject: Subject, program: CompiledProgram
) -> dict[str, DeviceBuffer]:
    """Returns random operands for a trial."""
    fields: dict[str, Any] = KERNELS[subject.stem].unpack(subject.params)
    code = fields["dtype"] if subject.stem == "matmul" else fields["x_dtype"]
    dtype = {0: "float32", 1: "float16", 2: "bfloat16"}.get(code, "float32")
    return {
        spec.name: DeviceBuffer.from_numpy(random_bits(spec.shape[0], dtype, i), device, spec)
        for i, spec in enumerate(program.methods[0].inputs)
    }

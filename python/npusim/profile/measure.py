"""Measuring a profile: runs whose commands are timed, and runs that nobody observes, in turn."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npusim import _runtime
from npusim.errors import Error
from npusim.profile.commands import method_facts
from npusim.profile.inputs import (
    check_context,
    language_model_facts,
    language_model_input,
    sample,
)
from npusim.profile.profile import CommandProfile, Profile
from npusim.program.program import CompiledProgram, Method, method_named
from npusim.runtime import Device, DeviceBuffer, Executor, State, load_weights
from npusim.runtime.weights import WeightSource

_FEWEST = 3  # repeats
_WARMUP = 2


def profile_program(
    program: CompiledProgram | str | Path,
    weights: WeightSource | _runtime.Weights | None = None,
    *,
    method: str | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    context: int = 0,
    device: str | _runtime.Device | None = None,
    threads: int | None = None,
    repeats: int | None = None,
    seconds: float = 3.0,
    limits: bool = False,
) -> Profile:
    """Times each command of a method, and whole runs beside them; the medians are the profile.

    Args:
        program: a program, or the path of one.
        weights: as `load_weights` takes them, or what it returned for this program and device.
        method: its name; by default the first.
        inputs: arrays by name; by default seeded normal floats and zeros, of the greatest sizes
            where calls choose some. A language model gets seeded tokens, and its cache is empty,
            only longer or shorter.
        context: of a language model: how many tokens the cache holds before each run.
        device: a device or its name; by default the one of the program's target.
        threads: workers of a device given by name; by default one a physical core.
        repeats: how often everything is timed; by default as often as fits in `seconds`, but three
            times at least.
        limits: whether to measure what the device reaches at best, too, where it can tell (a CPU,
            in half a second): `Profile.save_roofline` needs it.

    Raises:
        Error: there is no such method, the context does not fit, or `seconds` is no time.
        ShapeError, WeightMismatchError, DeviceError, ProgramFormatError: as the runtime raises.
    """
    if not (math.isfinite(seconds) and seconds >= 0):
        raise Error(f"Measuring takes a finite number of seconds, not {seconds}.")
    if not isinstance(program, CompiledProgram):
        program = CompiledProgram.load(program)
    if not isinstance(device, _runtime.Device):
        device = Device(device or program.target.partition(":")[0], threads=threads)
    if not isinstance(weights, _runtime.Weights):
        weights = load_weights(weights, program, device)
    run = _Run(program, method_named(program, method), device, weights, inputs or {}, context)
    rows, whole = run.measure(repeats, seconds)
    medians = [statistics.median(times) for times in zip(*rows, strict=True)]
    return Profile(
        model=str(program.metadata.get("model", "")),
        method=run.method.name,
        target=program.target,
        device=device.description,
        context=context,
        repeats=len(rows),
        commands=tuple(_commands(program, run, medians)),
        run_seconds=statistics.median(whole),
        limits=device.measure_rates() if limits else {},
    )


@dataclass
class _Run:
    """A method with everything it is given."""

    program: CompiledProgram
    method: Method
    device: _runtime.Device
    weights: _runtime.Weights
    arrays: Mapping[str, np.ndarray]
    context: int

    def __post_init__(self) -> None:
        self.facts = language_model_facts(self.program)
        tokens = max((s.shape[-1] for s in self.method.inputs if s.name == "tokens"), default=1)
        check_context(self.facts, self.context, tokens)
        self.executor = Executor(self.program, self.device)
        self.state = State(self.program, self.device) if self.program.state_bytes else None
        self.inputs = {}
        for spec in self.method.inputs:
            array = self.arrays.get(spec.name)
            if array is None:
                array = (
                    sample(spec) if self.facts is None else language_model_input(self.facts, spec)
                )
            self.inputs[spec.name] = DeviceBuffer.from_numpy(array, self.device, spec)
        shapes = [buffer.shape for buffer in self.inputs.values()]
        self.sizes = self.executor.sizes_for(shapes, self.method.name)
        _, results = self.executor.specs_for(shapes, self.method.name)
        self.outputs = {s.name: DeviceBuffer.from_spec(self.device, s) for s in results}

    def measure(
        self, repeats: int | None, seconds: float
    ) -> tuple[list[Sequence[float]], list[float]]:
        """Returns the times of the commands, and of the whole, one entry a repeat."""
        arguments = (self.inputs, self.weights, self.method.name, self.outputs, self.state)
        rows: list[Sequence[float]] = []
        whole: list[float] = []
        end = None
        while not _enough(len(rows) - _WARMUP, repeats, end):
            if len(rows) == _WARMUP:
                end = time.perf_counter() + seconds
            self._start_over()
            rows.append(self.executor.time(*arguments))
            self._start_over()
            whole.append(self.executor.time_run(*arguments))
        return rows[_WARMUP:], whole[_WARMUP:]

    def _start_over(self) -> None:
        """Puts a language model back to where its context ends."""
        if self.facts is not None and self.state is not None:
            self.state.set(self.facts["position"], np.full(1, self.context, np.int64))


def _enough(done: int, repeats: int | None, end: float | None) -> bool:
    if repeats is not None:
        return done >= repeats
    return done >= _FEWEST and end is not None and time.perf_counter() >= end


def _commands(
    program: CompiledProgram, run: _Run, medians: Sequence[float]
) -> Iterator[CommandProfile]:
    libraries = run.executor.implementations(run.method.name)
    found = method_facts(program, run.method, run.sizes, run.context)
    for index, (facts, seconds, library) in enumerate(zip(found, medians, libraries, strict=True)):
        yield CommandProfile(
            index=index,
            kernel=facts.kernel,
            library=library,
            node=facts.node,
            op=facts.op,
            module=facts.module,
            source=facts.source,
            bytes_read=facts.bytes_read,
            bytes_written=facts.bytes_written,
            operations=facts.operations,
            seconds=seconds,
            params={name: value for name, value in facts.params.items() if _tells(value)},
            reuse=facts.reuse,
        )


def _tells(value: object) -> bool:
    return any(value) if isinstance(value, tuple) else bool(value)

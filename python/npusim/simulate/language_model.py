"""A language model on a machine: time to first token and tokens a second as its cache grows.

The prompt runs in the chunks that the runtime would take (`cpp/runtime/prompt_runs.h`), each at the
position that it has in the cache; a token is one run of `decode` behind as many tokens as the
context says. Choosing the token from its scores is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npusim.errors import Error
from npusim.pictures.chart import COLORS, Axis, Chart, side_by_side
from npusim.profile.inputs import language_model_facts
from npusim.program.program import CompiledProgram
from npusim.simulate import simulate
from npusim.simulate.batched import batched
from npusim.simulate.csv_table import to_csv
from npusim.targets import TargetConfig

CONTEXTS = (1, 128, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Point:
    """A language model at one length of its context.

    Attributes:
        context: tokens of the prompt, and then in the cache.
        batch: sequences at once, all as long.
        cores: of the machine; None: as it is.
        first_s: seconds from the prompt to the scores of the first token.
        token_s: seconds of a token of every sequence, behind the context.
        first_j, token_j: joules; None where the machine's energy is not known.
        bound: the cause that most of a token's time is due to.
    """

    context: int
    batch: int
    cores: int | None
    first_s: float
    token_s: float
    first_j: float | None
    token_j: float | None
    bound: str

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together."""
        return self.batch / self.token_s if self.token_s > 0 else 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Of all prompts together."""
        return self.batch * self.context / self.first_s if self.first_s > 0 else 0.0


@dataclass(frozen=True)
class Generation:
    """A language model's times, by cores, batch and context."""

    model: str
    target: str
    points: tuple[Point, ...]

    def to_csv(self) -> str:
        """Returns a table with a row for each point."""
        head = (
            *("context", "batch", "cores", "time to first token s", "token s"),
            *("tokens/s", "prompt tokens/s", "first token J", "token J", "bound"),
        )
        return to_csv(head, (self._cells(point) for point in self.points))

    def _cells(self, p: Point) -> tuple[str | float | None, ...]:
        rates = (p.tokens_per_second, p.prompt_tokens_per_second)
        energy = (p.first_j, p.token_j, p.bound)
        return (p.context, p.batch, p.cores, p.first_s, p.token_s, *rates, *energy)

    def to_svg(self) -> str:
        """Returns two charts over the context: time to first token, and tokens a second."""
        lines: dict[str, list[Point]] = {}
        for point in self.points:
            cores = "" if point.cores is None else f", {point.cores} cores"
            lines.setdefault(f"batch {point.batch}{cores}", []).append(point)
        x = Axis.over("context (tokens)", (p.context for p in self.points))
        title = f"{self.model} on {self.target}"
        first = Axis.over("time to first token (s)", (p.first_s for p in self.points))
        rate = Axis.over("tokens/s", (p.tokens_per_second for p in self.points))
        charts = (Chart(title, x, first, width=480), Chart("", x, rate, width=480))
        for (name, points), color in zip(lines.items(), _repeated(COLORS), strict=False):
            for chart, values in zip(
                charts,
                (
                    [(float(p.context), p.first_s) for p in points],
                    [(float(p.context), p.tokens_per_second) for p in points],
                ),
                strict=True,
            ):
                chart.line(values, color, name)
                for at, value in values:
                    chart.point(at, value, color, f"{name}, context {at:g}: {value:.4g}", 2.5)
        return side_by_side(charts)


def generation(
    program: CompiledProgram | str | Path,
    target: str | TargetConfig | None = None,
    *,
    contexts: Iterable[int] = CONTEXTS,
    batches: Iterable[int] = (1,),
    cores: Iterable[int] = (),
    mode: str | None = None,
    overrides: Sequence[str] = (),
    progress: Callable[..., None] | None = None,
) -> Generation:
    """Simulates a language model's prompts and tokens over its context.

    Args:
        program: of `extract_llm`, with its methods.
        contexts: lengths of prompts; those that the cache does not hold beside a token are left
            out.
        batches: sequences at once. Weights are read once for all, caches are each one's own.
        cores: numbers of cores; none: as many as the machine has.
        progress: called with (stage, done, total).

    Other arguments are those of `npusim.simulate`.

    Raises:
        Error: the program is no language model, no context fits, or a number is below 1; and as
            `npusim.simulate`.
    """
    if not isinstance(program, CompiledProgram):
        program = CompiledProgram.load(program)
    facts = _facts(program)
    wanted = sorted(set(contexts))
    counts, sizes = sorted(set(batches)), sorted(set(cores))
    for name, least in (("context", wanted), ("batch", counts), ("number of cores", sizes)):
        if least and least[0] < 1:
            raise Error(f"A {name} of {least[0]} is none.", hint="Give 1 or more.")
    lengths = [n for n in wanted if n < facts["max_context"]]
    if not lengths or not counts:
        raise Error(
            f"No context fits: the program holds {facts['max_context']} tokens, one of which is "
            "generated.",
            hint=f"Give 1 … {facts['max_context'] - 1}.",
        )
    machines: list[int | None] = list(sizes) or [None]
    points: list[Point] = []
    total = len(machines) * len(counts) * len(lengths)
    for machine in machines:
        settings = [*overrides, *([f"cores.count={machine}"] if machine is not None else [])]
        for batch in counts:
            model = _Model(batched(program, batch), facts, target, mode, settings)
            for length in lengths:
                points.append(model.point(length, batch, machine))
                if progress is not None:
                    progress("simulating", len(points), total)
    return Generation(str(program.metadata.get("model", "")), model.target, tuple(points))


def prompt_runs(facts: Mapping[str, Any], tokens: int) -> Iterator[tuple[str, int]]:
    """Yields the method and the position in the cache of each run of a prompt.

    Args:
        facts: what a program's metadata says of its language model.
        tokens: of the prompt; the cache holds them.
    """
    from npusim import _runtime

    small = facts["prefill_chunk"]
    runs = _runtime.prompt_runs(
        facts["max_context"],
        small,
        facts.get("larger_chunks") or (),
        bool(facts.get("recurrent")),
        tokens,
    )
    for position, taken, chunk in runs:
        name = "decode" if taken == 1 else "prefill" if chunk == small else f"prefill_{chunk}"
        yield name, position


class _Model:
    """A program on one machine; runs that prompts share are simulated once."""

    def __init__(
        self,
        program: CompiledProgram,
        facts: Mapping[str, Any],
        target: str | TargetConfig | None,
        mode: str | None,
        overrides: Sequence[str],
    ) -> None:
        self.program, self.facts = program, facts
        self.machine, self.mode, self.overrides = target, mode, overrides
        self.target = ""
        self.known: dict[tuple[str, int], tuple[float, float | None, str]] = {}

    def point(self, context: int, batch: int, cores: int | None) -> Point:
        """Returns the times of a context."""
        runs = [self._run(*run) for run in prompt_runs(self.facts, context)]
        token_s, token_j, bound = self._run("decode", context)
        joules = [energy for _, energy, _ in runs if energy is not None]
        first_j = sum(joules) if len(joules) == len(runs) else None
        first_s = sum(seconds for seconds, _, _ in runs)
        return Point(context, batch, cores, first_s, token_s, first_j, token_j, bound)

    def _run(self, method: str, position: int) -> tuple[float, float | None, str]:
        if (method, position) not in self.known:
            found = simulate(
                self.program,
                self.machine,
                method=method,
                mode=self.mode,
                context=position,
                overrides=self.overrides,
            )
            self.target = found.target
            energy = found.energy
            bound = max(found.stalls, key=found.stalls.__getitem__)
            joules = energy["total"] if energy is not None else None
            self.known[method, position] = found.seconds, joules, bound
        return self.known[method, position]


def _facts(program: CompiledProgram) -> Mapping[str, Any]:
    """Returns what a program says of its language model; Error where it is none, or damaged."""
    facts = language_model_facts(program)
    if facts is None:
        raise Error("The program is no language model.", hint="Make one with `npusim.extract_llm`.")
    chunks = [facts.get("prefill_chunk"), *(facts.get("larger_chunks") or ())]
    numbers = [facts.get("max_context"), *chunks]
    if any(type(n) is not int or n < 1 for n in numbers) or chunks != sorted(set(chunks)):
        raise Error(
            "What the program says of its language model is damaged: max_context, prefill_chunk "
            "and larger_chunks are whole numbers from 1 on, and the chunks ascend.",
            hint="Compile the model again.",
        )
    return facts


def _repeated(colors: Sequence[str]) -> Iterator[str]:
    while True:
        yield from colors

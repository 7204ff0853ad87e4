"""What /metrics tells, for Prometheus: names and shapes as vLLM has them, with our prefix.

`examples/grafana/npusim.json` shows them in Grafana.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.utils import floatToGoString

from npusim.serve.generation import Record

_TIMES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20)
_LONG = (*_TIMES[6:], 30, 40, 60, 120, 240, 480)
_GAPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)

# What an engine's stats are called here: name, text, whether it only grows.
_STATS = {
    "running": ("npusim:num_requests_running", "Requests that run.", False),
    "waiting": ("npusim:num_requests_waiting", "Requests that wait.", False),
    "cache_usage": ("npusim:kv_cache_usage_perc", "Part of the pages in use; 1: all.", False),
    "preemptions": ("npusim:num_preemptions", "Requests that had to wait again.", True),
    "prefix_queries": ("npusim:prefix_cache_queries", "Prompt tokens that were looked up.", True),
    "prefix_hits": ("npusim:prefix_cache_hits", "Prompt tokens that were found.", True),
    "steps": ("npusim:steps", "Steps that ran.", True),
    "scheduled_tokens": ("npusim:scheduled_tokens", "Tokens that ran in steps.", True),
}

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Counts(Protocol):
    """Where a server's requests are counted: in this process, or in the engine's."""

    def note_http(self, path: str, status: int) -> None:
        """Counts a request of HTTP."""

    def note(self, outcome: Outcome) -> None:
        """Takes what happened to a request that is over."""

    async def read(self) -> bytes:
        """Returns all of it in Prometheus' text format."""


@dataclass(frozen=True)
class Outcome:
    """What metrics count of a request that is over; it can be sent: numbers and texts.

    Attributes:
        prompt, completion: tokens.
        finish_reasons: of its answers.
        first: seconds to its first token; None: it had none.
        gaps: tokens by the time they took, as `_GAPS` has the bounds, and longer ones.
        gap_seconds: of all of these.
        whole: seconds of all of it; None: no answer ended.
    """

    prompt: int
    completion: int
    finish_reasons: list[str]
    first: float | None
    gaps: list[int]
    gap_seconds: float
    whole: float | None

    @classmethod
    def of(cls, record: Record, now: float) -> Outcome:
        """Returns that of a record, when it is over."""
        gaps = [0] * (len(_GAPS) + 1)
        for seconds, tokens in record.gaps:
            gaps[bisect_left(_GAPS, seconds / tokens)] += tokens
        return cls(
            record.usage.prompt,
            record.usage.completion,
            record.finish_reasons,
            None if record.first is None else record.first - record.began,
            gaps,
            sum(seconds for seconds, _ in record.gaps),
            now - record.began if record.finish_reasons else None,
        )


class Metrics:
    """Counts and times of one server.

    Args:
        stats: returns an engine's stats; empty before there is one.
        model: the label `model_name`.
    """

    def __init__(self, stats: Callable[[], Mapping[str, float]], model: str) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model}
        self._registry.register(_Stats(stats, self._labels))
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts.")
        self._generation = self._counter("generation_tokens", "Tokens that were made.")
        self._success = self._counter("request_success", "Answers that ended.", "finished_reason")
        self._http = self._counter("http_requests", "Requests of HTTP.", "path", "status")
        self._first = self._histogram("time_to_first_token_seconds", "To the first token.", _TIMES)
        self._gap = _Gaps("npusim:inter_token_latency_seconds", "Between tokens.", self._labels)
        self._registry.register(self._gap)
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean after the first token.", _GAPS
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "Of whole requests.", _LONG)

    def note_http(self, path: str, status: int) -> None:
        """Counts a request of HTTP."""
        self._http.labels(**self._labels, path=path, status=str(status)).inc()

    def note(self, outcome: Outcome) -> None:
        """Takes what happened to a request that is over."""
        self._prompt.labels(**self._labels).inc(outcome.prompt)
        self._generation.labels(**self._labels).inc(outcome.completion)
        for reason in outcome.finish_reasons:
            self._success.labels(**self._labels, finished_reason=reason).inc()
        if outcome.first is not None:
            self._first.labels(**self._labels).observe(outcome.first)
        self._gap.add(outcome.gaps, outcome.gap_seconds)
        if after := sum(outcome.gaps):
            self._per_token.labels(**self._labels).observe(outcome.gap_seconds / after)
        if outcome.whole is not None:
            self._whole.labels(**self._labels).observe(outcome.whole)

    async def read(self) -> bytes:
        """As `text`, in the words of `Counts`."""
        return self.text()

    def text(self) -> bytes:
        """Returns all of it in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        names = [*self._labels, *labels]
        return Counter(f"npusim:{name}", text, names, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        names = list(self._labels)
        return Histogram(f"npusim:{name}", text, names, registry=self._registry, buckets=buckets)


class _Gaps:
    """A histogram of times between tokens, of which one request has hundreds."""

    def __init__(self, name: str, text: str, labels: Mapping[str, str]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._counts = [0] * (len(_GAPS) + 1)
        self._sum = 0.0

    def add(self, gaps: Sequence[int], seconds: float) -> None:
        """Takes how many tokens came within each bound, and how long they took together."""
        self._counts = [known + more for known, more in zip(self._counts, gaps, strict=True)]
        self._sum += seconds

    def collect(self) -> Iterable[Metric]:
        """Yields the metric."""
        metric = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        bounds = [*map(floatToGoString, _GAPS), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        metric.add_metric(list(self._labels.values()), buckets, self._sum)
        yield metric


class _Stats:
    """What the engine knows, read when somebody asks."""

    def __init__(self, stats: Callable[[], Mapping[str, float]], labels: Mapping[str, str]) -> None:
        self._stats, self._labels = stats, labels

    def collect(self) -> Iterable[Metric]:
        """Yields a metric for each number that has a name here."""
        stats = self._stats()
        for key, (name, text, grows) in _STATS.items():
            if key in stats:
                family = CounterMetricFamily if grows else GaugeMetricFamily
                metric = family(name, text, labels=list(self._labels))
                metric.add_metric(list(self._labels.values()), stats[key])
                yield metric

"""`step` of an extracted decoder: rows of many requests, beside what sessions compute."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import npusim
from npusim import _runtime
from npusim.errors import Error, ExportError
from npusim.frontends.step_method import StepSizes
from npusim.runtime.native import native_program

CONTEXT, PAGE, PAGES, VOCAB = 96, 16, 20, 61
SIZES = StepSizes(page_tokens=PAGE, max_step_tokens=40, max_requests=4, pages=PAGES)
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped": ("Qwen2", {}),
    "one_group": ("Llama", {"num_key_value_heads": 1}),
    "window": ("Mistral", {"sliding_window": 21}),
    "window_and_caps": ("Gemma2", {"sliding_window": 21, "head_dim": 16}),
    "two_rotations": ("Gemma3", {"sliding_window": 21, "head_dim": 16}),
    "experts": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


def decoder(family: str, dtype: torch.dtype = torch.float32) -> Any:
    name, more = FAMILIES[family]
    suffix = "TextConfig" if name == "Gemma3" else "Config"
    config = getattr(hf, name + suffix)(**(SMALL | more))
    torch.manual_seed(3)
    return getattr(hf, f"{name}ForCausalLM")(config).to(dtype).eval()


@dataclass
class Request:
    """A request's tokens, and the pages that it was given."""

    tokens: list[int]
    pages: list[int]
    done: int = 0
    logits: list[np.ndarray] = field(default_factory=list)


class Steps:
    """The method `step` of a program, called as an engine calls it.

    Args:
        model: of transformers, or a file of its weights.
    """

    def __init__(self, model: Any, sizes: StepSizes = SIZES, quantize: str | None = None) -> None:
        module = npusim.extract_llm(model, max_context=CONTEXT, prefill_chunk=8, serve=sizes)
        self.facts = module.facts["language_model"]
        self.program = npusim.compile(module, quantize=quantize)
        self.weights = model if isinstance(model, Path) else model.state_dict()
        self.session = npusim.load(self.program, weights=self.weights, method="step", threads=2)

    def call(self, rows: Sequence[tuple[Request, int]], padding: int = 0) -> None:
        """Runs the next `n` rows of each request, and keeps the logits of the last of each."""
        tokens: list[int] = []
        positions: list[int] = []
        requests: list[int] = []
        last: list[int] = []
        tables = np.full((len(rows), CONTEXT // PAGE), -1, np.int64)
        for i, (request, count) in enumerate(rows):
            end = request.done + count
            tokens += request.tokens[request.done : end]
            positions += range(request.done, end)
            requests += [i] * count
            last.append(len(tokens) - 1)
            tables[i, : len(request.pages)] = request.pages
            request.done = end
        tokens += [1] * padding
        positions += [10**12] * padding
        requests += [-1] * padding
        logits, *_ = self.raw([tokens], positions, requests, tables, last)
        for (request, _), row in zip(rows, logits, strict=True):
            request.logits.append(row)

    def raw(self, *inputs: Any) -> Any:
        return self.session(*(np.asarray(value, np.int64) for value in inputs))


def decoded(steps: Steps, tokens: list[int]) -> list[np.ndarray]:
    """Returns the logits after each token, of a session of its own."""
    session = npusim.load(steps.program, weights=steps.weights, method="decode", threads=2)
    return [np.array(session(np.array([[token]]))[0])[0, 0] for token in tokens]


def text(seed: int, length: int = 70) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(VOCAB) for _ in range(length)]


def pages(seed: int) -> list[list[int]]:
    """Returns the pages of four requests, all apart."""
    numbers = random.Random(seed).sample(range(PAGES), PAGES)
    return [numbers[i * 5 : i * 5 + 5] for i in range(4)]


@pytest.fixture(scope="module")
def grouped() -> Steps:
    return Steps(decoder("grouped"))


def scheduled(steps: Steps, seed: int, texts: list[list[int]]) -> list[dict[int, np.ndarray]]:
    """Runs texts beside each other in steps drawn from a seed; returns logits by tokens done."""
    chance = random.Random(seed)
    requests = [Request(t, p) for t, p in zip(texts, pages(seed), strict=False)]
    seen: list[dict[int, np.ndarray]] = [{} for _ in texts]
    while any(request.done < len(request.tokens) for request in requests):
        left = [r for r in requests if r.done < len(r.tokens)]
        chosen = chance.sample(left, chance.randint(1, len(left)))
        rows = [(r, min(len(r.tokens) - r.done, chance.choice((1, 1, 2, 7, 10)))) for r in chosen]
        room = SIZES.max_step_tokens - sum(count for _, count in rows)
        steps.call(rows, padding=min(room, chance.choice((0, 0, 1, 3))))
        for request in chosen:
            seen[requests.index(request)][request.done] = request.logits[-1]
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_compute_what_sessions_do(family: str) -> None:
    steps = Steps(decoder(family))
    texts = [text(1), text(2, 33)]
    for tokens, seen in zip(texts, scheduled(steps, 5, texts), strict=True):
        expected = decoded(steps, tokens)
        for done, logits in seen.items():
            assert np.abs(logits - expected[done - 1]).max() < 2e-5, done


def test_steps_of_bfloat16_compute_what_sessions_do() -> None:
    steps = Steps(decoder("grouped", torch.bfloat16))
    texts = [text(1), text(2, 33)]
    for tokens, seen in zip(texts, scheduled(steps, 5, texts), strict=True):
        expected = decoded(steps, tokens)
        for done, logits in seen.items():
            assert np.abs(logits - expected[done - 1]).max() < 0.05, done


ALIKE = {
    "float32": ("grouped", torch.float32, None),
    "bfloat16": ("grouped", torch.bfloat16, None),
    "float16 in windows": ("window", torch.float16, None),
    "windows and caps": ("window_and_caps", torch.float32, None),
    "int8": ("grouped", torch.bfloat16, "int8"),
    "int4 in windows": ("two_rotations", torch.float32, "int4-g32"),
    "experts": ("experts", torch.float32, None),
    "experts of bfloat16": ("experts", torch.bfloat16, None),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_nothing_else_in_a_step_shows_in_logits(kind: str) -> None:
    family, dtype, quantize = ALIKE[kind]
    assert_alike(Steps(decoder(family, dtype), quantize=quantize))


def assert_alike(steps: Steps, seeds: int = 6) -> None:
    """Texts in any steps have the logits, to the bit, that each has alone, row by row."""
    texts = [text(seed, 30 + 13 * seed) for seed in range(4)]
    alone = []
    for tokens in texts:
        request = Request(tokens, [3, 1, 4, 0, 9])
        for _ in tokens:
            steps.call([(request, 1)])
        alone.append(request.logits)
    for seed in range(seeds):
        for expected, seen in zip(alone, scheduled(steps, seed, texts), strict=True):
            for done, logits in seen.items():
                assert np.array_equal(logits, expected[done - 1]), (seed, done)


def test_requests_share_pages_that_begin_alike(grouped: Steps) -> None:
    tokens = text(4, 50)
    first, second = Request(tokens, [7, 2, 5, 11]), Request(tokens, [7, 2, 8, 1], done=2 * PAGE)
    grouped.call([(first, 2 * PAGE)])
    grouped.call([(second, 18), (first, 18)])
    assert np.array_equal(first.logits[-1], second.logits[-1])


def one_row(page: int, request: int = 0, position: int = 0) -> tuple[Any, ...]:
    tables = np.full((1, CONTEXT // PAGE), page)
    return [[1]], [position], [request], tables, [0]


@pytest.mark.parametrize(
    "inputs",
    [
        one_row(PAGES),
        one_row(-1),
        one_row(2**62),
        one_row(-(2**63)),
        one_row(0, request=1),
        one_row(0, request=-2),
        one_row(0, request=2**62),
        one_row(0, position=-1),
        one_row(0, position=CONTEXT),
        one_row(0, position=2**62),
    ],
)
def test_what_lies_outside_the_pages_is_refused(grouped: Steps, inputs: Any) -> None:
    request = Request(text(6, 20), [0, 19])
    grouped.call([(request, 19)])
    again = Request(request.tokens, [0, 19], done=19)
    grouped.call([(again, 1)])
    with pytest.raises(Error, match=r"outside|without a table"):
        grouped.raw(*inputs)
    after = Request(request.tokens, [0, 19], done=19)
    grouped.call([(after, 1)])
    assert np.array_equal(after.logits[0], again.logits[0])


def answered(engine: _runtime.Engine, prompts: dict[int, list[int]]) -> dict[int, Any]:
    """Serves prompts beside each other; returns tokens and log-probabilities of each."""
    asked = {"max_tokens": 12, "ignore_eos": True, "logprobs": 2, "temperature": 0.8}
    numbers = {engine.submit(tokens, asked | {"seed": at}): at for at, tokens in prompts.items()}
    made: dict[int, Any] = {at: ([], []) for at in prompts}
    waiting = set(numbers)
    for _ in range(10_000):
        for number, tokens, logprobs, _, ending, error, _ in engine.poll(10):
            assert error is None
            made[numbers[number]][0].extend(tokens)
            made[numbers[number]][1].extend(logprobs or [])
            waiting -= {number} if ending else set()
        if not waiting:
            return made
    raise AssertionError("requests do not end")


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_the_engine_serves_an_extracted_decoder(kind: str) -> None:
    family, dtype, quantize = ALIKE[kind]
    steps = Steps(decoder(family, dtype), quantize=quantize)
    program = native_program(steps.program)
    device = npusim.Device("cpu", threads=2)
    weights = npusim.load_weights(steps.weights, program, device)
    prompts = {seed: text(seed, 20 + 7 * seed) for seed in range(6)}
    together = _runtime.Engine(program, device, weights)
    first = answered(together, prompts)
    assert answered(together, prompts) == first, "what the cache of prefixes holds shows"
    for at, tokens in prompts.items():
        engine = _runtime.Engine(program, device, weights, prefix_cache=False)
        assert answered(engine, {at: tokens}) == {at: first[at]}


def test_facts_name_the_sizes_and_the_pools(grouped: Steps) -> None:
    serve = grouped.facts["serve"]
    assert (serve["page_tokens"], serve["max_step_tokens"], serve["max_requests"]) == (16, 40, 4)
    assert sorted(serve["pools"]) == [
        *("pages.0.key", "pages.0.value", "pages.1.key", "pages.1.value"),
    ]


def test_a_recurrent_decoder_has_no_steps() -> None:
    config = hf.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1)
    model = hf.MambaForCausalLM(config).eval()
    with pytest.raises(ExportError, match="recurrent"):
        npusim.extract_llm(model, max_context=32, serve=True)


@pytest.mark.parametrize(
    "sizes",
    [
        StepSizes(page_tokens=0),
        StepSizes(page_tokens=129),
        StepSizes(max_step_tokens=0),
        StepSizes(max_requests=0),
        StepSizes(pages=0),
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes: StepSizes) -> None:
    with pytest.raises(ExportError, match="1 or more"):
        npusim.extract_llm(decoder("grouped"), max_context=32, serve=sizes)

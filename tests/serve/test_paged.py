"""The native engine over a real program: the same answer, bit for bit, whatever else is served."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import npusim
from npusim import _runtime
from npusim.errors import DeviceError, Error, ShapeError
from npusim.ir.module import Module
from npusim.runtime.native import native_program
from npusim.serve import Engine
from npusim.serve.paged import PagedBackend
from npusim.serve.requests import Piece, Sampling
from tests.serve.paged_model import (
    CONTEXT,
    MAX_REQUESTS,
    MAX_TOKENS,
    PAGE,
    PAGES,
    VOCAB,
    PagedDecoder,
    PagedSum,
    paged_module,
)

Event = tuple[int, list[int], Any, Any, str | None, Error | None, int]


@pytest.fixture(scope="module")
def model() -> PagedDecoder:
    torch.manual_seed(5)
    return PagedDecoder().eval()


@pytest.fixture(scope="module")
def module(model: PagedDecoder) -> Module:
    return paged_module(model)


class Loaded:
    """The program with its weights on a device."""

    def __init__(self, model: PagedDecoder, module: Module) -> None:
        self.program = native_program(npusim.compile(module))
        self.device = npusim.Device("cpu", threads=1)
        self.weights = npusim.load_weights(model.state_dict(), self.program, self.device)

    def engine(self, **options: Any) -> _runtime.Engine:
        return _runtime.Engine(self.program, self.device, self.weights, **options)


@pytest.fixture(scope="module")
def loaded(model: PagedDecoder, module: Module) -> Loaded:
    return Loaded(model, module)


def run(engine: _runtime.Engine, requests: dict[int, Event | None]) -> dict[int, Event]:
    """Polls until all of these have ended; returns one event each, with all that came."""
    made: dict[int, Event] = {}
    for _ in range(10_000):
        for event in engine.poll(10):
            before = made.get(event[0], (event[0], [], [], None, None, None, 0))
            number, tokens, logprobs, prompt, ending, error, cached = event
            made[number] = (
                number,
                before[1] + tokens,
                before[2] + (logprobs or []),
                prompt or before[3],
                ending,
                error,
                cached,
            )
        if all(n in made and (made[n][4] or made[n][5]) for n in requests):
            return made
    raise AssertionError("requests do not end")


Asked = dict[str, Any]


def prompts(seed: int, count: int) -> list[list[int]]:
    """Returns random prompts, some of which begin alike."""
    chance = random.Random(seed)
    shared = [chance.randrange(1, VOCAB) for _ in range(3 * PAGE)]
    made = []
    for _ in range(count):
        start = shared[: chance.choice((0, PAGE, 3 * PAGE - 1, 3 * PAGE))]
        own = [chance.randrange(1, VOCAB) for _ in range(chance.randrange(1, 2 * PAGE))]
        made.append(start + own)
    return made


def options(**given: Any) -> Asked:
    return {"max_tokens": 8, "ignore_eos": True, "logprobs": 3, **given}


def serve(engine: _runtime.Engine, requests: list[tuple[list[int], Asked]]) -> list[Event]:
    numbers = [engine.submit(tokens, asked) for tokens, asked in requests]
    made = run(engine, dict.fromkeys(numbers))
    return [made[number] for number in numbers]


def answers(events: list[Event]) -> list[Any]:
    """Tokens with their log-probabilities, to the bit, and why each ended."""
    return [(event[1], event[2], event[4], str(event[5])) for event in events]


REQUESTS: list[tuple[list[int], Asked]] = [
    (tokens, options(temperature=0.9 * (i % 2), seed=i, max_tokens=3 + i % 9))
    for i, tokens in enumerate(prompts(7, 12))
]


@pytest.fixture(scope="module")
def alone(loaded: Loaded) -> list[Any]:
    """What each request gets from an engine of its own."""
    made = []
    for request in REQUESTS:
        engine = loaded.engine(prefix_cache=False)
        made += answers(serve(engine, [request]))
        engine.close()
    return made


def test_the_program_computes_what_pytorch_does(model: PagedDecoder, loaded: Loaded) -> None:
    tokens = prompts(3, 1)[0]
    pages = torch.full((1, CONTEXT // PAGE), -1)
    pages[0, : len(tokens) // PAGE + 1] = torch.arange(len(tokens) // PAGE + 1) + 5
    place = torch.arange(len(tokens))
    with torch.no_grad():
        scores = model(
            torch.tensor(tokens)[None], place, place * 0, pages, torch.tensor([len(tokens) - 1])
        )["logits"][0]
    expected = torch.log_softmax(scores.double(), 0)
    (event,) = serve(loaded.engine(), [(tokens, options(max_tokens=1, logprobs=VOCAB))])
    (token, _, top) = event[2][0]
    assert token == int(expected.argmax())
    found = dict(top)
    assert np.allclose([found[i] for i in range(VOCAB)], expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("step_tokens", [MAX_REQUESTS, 5, MAX_TOKENS])
def test_neighbours_and_chunks_show_in_no_answer(
    loaded: Loaded, alone: list[Any], prefix_cache: bool, step_tokens: int
) -> None:
    engine = loaded.engine(prefix_cache=prefix_cache, max_step_tokens=step_tokens)
    for order in (1, -1):
        assert answers(serve(engine, REQUESTS[::order])) == alone[::order]
    hits = engine.stats()["prefix_hits"]
    assert (hits > 0) == prefix_cache


def test_a_warm_cache_gives_what_a_cold_one_gives(loaded: Loaded, alone: list[Any]) -> None:
    engine = loaded.engine()
    for request, expected in zip(REQUESTS, alone, strict=True):
        for is_warm in (False, True):
            (event,) = serve(engine, [request])
            assert answers([event]) == [expected]
            assert event[6] >= (len(request[0]) - 1) // PAGE * PAGE if is_warm else True


def test_what_was_put_back_goes_on_as_before(loaded: Loaded) -> None:
    long = [(tokens, options(max_tokens=CONTEXT - len(tokens))) for tokens in prompts(11, 8)]
    expected = [answers(serve(loaded.engine(prefix_cache=False), [one]))[0] for one in long]
    for prefix_cache in (False, True):
        engine = loaded.engine(prefix_cache=prefix_cache)
        assert answers(serve(engine, long)) == expected
        stats = engine.stats()
        assert stats["preemptions"] > 0 and stats["free_pages"] == PAGES


def test_forks_of_one_prompt_share_its_pages(loaded: Loaded) -> None:
    tokens = prompts(13, 1)[0][:1] * (2 * PAGE + 1)
    asked = [options(temperature=1.0, seed=seed) for seed in range(6)]
    expected = [answers(serve(loaded.engine(), [(tokens, one)]))[0] for one in asked]
    engine = loaded.engine()
    serve(engine, [(tokens, options(max_tokens=1))])
    events = serve(engine, [(tokens, one) for one in asked])
    assert answers(events) == expected
    assert {event[6] for event in events} == {2 * PAGE}
    assert len({tuple(event[1]) for event in events}) > 1


def test_prompts_tell_their_log_probabilities(loaded: Loaded) -> None:
    tokens = prompts(17, 1)[0]
    engine = loaded.engine()
    asked = options(max_tokens=0, prompt_logprobs=2, logprobs=-1)
    (event,) = serve(engine, [(tokens, asked)])
    assert [record[0] for record in event[3]] == tokens[1:]
    for place, (token, logprob, _) in enumerate(event[3], 1):
        (one,) = serve(engine, [(tokens[:place], options(max_tokens=1, logprobs=VOCAB))])
        assert dict(one[2][0][2])[token] == logprob


def test_masks_decide_what_may_come(loaded: Loaded) -> None:
    engine = loaded.engine()
    number = engine.submit([1, 2, 3], options(masked=True, max_tokens=4))
    made: list[int] = []
    for token in (9, VOCAB - 1, 0, 31):
        mask = np.zeros(VOCAB, np.bool_)
        mask[token] = True
        engine.allow(number, mask)
        ((_, tokens, *_),) = engine.poll(30)
        made += tokens
    assert made == [9, VOCAB - 1, 0, 31]
    with pytest.raises(TypeError, match=r"bool\[vocab_size\]"):
        engine.allow(number, np.zeros(VOCAB - 1, np.bool_))
    with pytest.raises(TypeError, match=r"bool\[vocab_size\]"):
        engine.allow(number, np.zeros(VOCAB, np.float32))


def test_bad_requests_are_refused(loaded: Loaded) -> None:
    engine = loaded.engine(max_waiting=0)
    for tokens, asked, words in (
        ([], {}, "no tokens"),
        ([VOCAB], {}, "outside the vocabulary"),
        ([1], {"max_tokens": CONTEXT}, "the context holds 40"),
        ([1], {"temperature": -1.0}, "temperature"),
        ([1], {"logit_bias": [(VOCAB, 1.0)]}, "bias"),
    ):
        with pytest.raises(Error, match=words):
            engine.submit(tokens, asked)
    with pytest.raises(TypeError, match="no option temprature"):
        engine.submit([1], {"temprature": 1.0})
    with pytest.raises(TypeError, match="option top_k cannot be 'many'"):
        engine.submit([1], {"top_k": "many"})
    for _ in range(MAX_REQUESTS):
        engine.submit([1], options(max_tokens=30, masked=True))
    with pytest.raises(DeviceError, match="queue is full"):
        engine.submit([1], options())
    engine.close()
    with pytest.raises(DeviceError, match="was closed"):
        engine.submit([1], options())
    assert len(engine.poll(1)) == MAX_REQUESTS


def test_a_program_without_steps_is_refused() -> None:
    linear = torch.nn.Linear(2, 2).eval()
    program = native_program(npusim.compile(npusim.extract_ir(linear, torch.zeros(1, 2))))
    device = npusim.Device("cpu", threads=1)
    weights = npusim.load_weights(linear.state_dict(), program, device)
    with pytest.raises(ShapeError, match="no method 'step'"):
        _runtime.Engine(program, device, weights)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pools": ["nothing"]}, "no state"),
        ({"pools": []}, "no pools"),
        ({"page_tokens": 0}, "page_tokens is 0"),
        ({"page_tokens": 2}, "tables have no room"),
        ({"max_requests": MAX_REQUESTS + 1}, "requests"),
        ({"max_step_tokens": MAX_TOKENS + 1}, "tokens"),
    ],
)
def test_facts_that_contradict_the_program_are_refused(
    model: PagedDecoder, module: Module, change: dict[str, Any], words: str
) -> None:
    facts = module.facts["language_model"]
    changed = {**facts, "serve": {**facts["serve"], **change}}
    wrong = dataclasses.replace(module, facts={"language_model": changed})
    program, device = native_program(npusim.compile(wrong)), npusim.Device("cpu", threads=1)
    weights = npusim.load_weights(model.state_dict(), program, device)
    with pytest.raises(Error, match=words):
        _runtime.Engine(program, device, weights)


def test_memory_is_known_before_it_is_taken(loaded: Loaded) -> None:
    memory = _runtime.Engine.memory(loaded.program)
    assert memory["pools"] == 4 * PAGES * PAGE * 32 * 4  # bytes: two layers' keys and values
    small = npusim.Device("cpu", threads=1, max_memory=memory["total"] - 1)
    with pytest.raises(Error, match="memory"):
        _runtime.Engine(loaded.program, small, None)


def test_a_forked_process_is_refused(loaded: Loaded) -> None:
    engine = loaded.engine()
    serve(engine, [REQUESTS[0]])
    child = os.fork()
    if child == 0:
        try:
            engine.submit([1], options())
        except DeviceError:
            del engine
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    serve(engine, [REQUESTS[0]])


@pytest.fixture
def backend(loaded: Loaded) -> Iterator[PagedBackend]:
    made = PagedBackend(loaded.engine(max_requests=3))
    yield made
    made.close()


def pieces_of(backend: PagedBackend, *requests: tuple[list[int], Sampling]) -> list[Piece]:
    numbers = [backend.submit(tokens, sampling) for tokens, sampling in requests]
    made = {number: Piece() for number in numbers}
    while not all(piece.finish_reason for piece in made.values()):
        for event in backend.poll(10):
            assert event.error is None
            made[event.request].add(event.piece)
    return [made[number] for number in numbers]


def test_the_backend_gives_pieces(backend: PagedBackend, alone: list[Any]) -> None:
    assert backend.max_batch == 3 and backend.vocab_size == VOCAB
    sampling = [
        Sampling(
            max_tokens=asked["max_tokens"],
            temperature=asked["temperature"],
            seed=asked["seed"],
            ignore_eos=True,
            logprobs=3,
        )
        for _, asked in REQUESTS
    ]
    prompts_only = [tokens for tokens, _ in REQUESTS]
    made = pieces_of(backend, *zip(prompts_only, sampling, strict=True))
    for piece, (tokens, logprobs, ending, _) in zip(made, alone, strict=True):
        assert piece.tokens == tokens and piece.finish_reason == ending
        assert [(one.token, one.logprob) for one in piece.logprobs] == [r[:2] for r in logprobs]


class Counting:
    """Allows one token after the other, and ends with the last."""

    def __init__(self, tokens: list[int]) -> None:
        self.left = tokens

    def allowed(self) -> Any:
        mask = np.zeros(VOCAB, np.bool_)
        mask[self.left[0]] = True
        return mask

    def accept(self, token: int) -> bool:
        assert token == self.left.pop(0)
        return not self.left


def test_constraints_are_followed(backend: PagedBackend) -> None:
    wanted = [4, 8, 15, 16, 23, 42]
    sampling = Sampling(max_tokens=20, constraint=Counting(list(wanted)))
    free = Sampling(max_tokens=20, ignore_eos=True)
    held, other = pieces_of(backend, ([1, 2], sampling), ([1, 2], free))
    assert held.tokens == wanted and held.finish_reason == "stop"
    assert len(other.tokens) == 20


def test_cancelled_requests_leave_nothing(backend: PagedBackend) -> None:
    numbers = [backend.submit([1, 2, 3], Sampling(max_tokens=30)) for _ in range(9)]
    for number in numbers:
        backend.cancel(number)
    (piece,) = pieces_of(backend, ([1, 2, 3], Sampling(max_tokens=2, ignore_eos=True)))
    assert len(piece.tokens) == 2
    for _ in itertools.repeat(None, 200):
        if backend.stats()["free_pages"] == PAGES:
            return
        backend.poll(0.05)
    raise AssertionError("pages are lost")


def test_the_server_takes_steps_where_there_are_any() -> None:
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=CONTEXT,
        bos_token_id=None, eos_token_id=5,
    )  # fmt: skip
    llama = LlamaForCausalLM(config).eval()
    module = npusim.extract_llm(llama, max_context=CONTEXT, prefill_chunk=8)
    steps = paged_module(PagedSum().eval())  # which computes something else, so that it shows
    facts = {**module.facts["language_model"], "serve": steps.facts["language_model"]["serve"]}
    both = Module("both", {**module.methods, **steps.methods}, {"language_model": facts})
    engine = Engine(npusim.compile(both), llama.state_dict(), max_batch=2)
    assert engine.max_batch == 2

    async def ask() -> list[list[int]]:
        async def one(prompt: list[int]) -> list[int]:
            made = []
            async for piece in engine.generate(prompt, Sampling(max_tokens=4)):
                made += piece.tokens
            return made

        return list(await asyncio.gather(*(one([1, n]) for n in range(6))))

    made = asyncio.run(ask())
    session = engine.model.new_session()
    session.append([1, 2])
    engine.close()
    for n, tokens in enumerate(made):
        total, expected = 1 + n, list[int]()
        while len(expected) < 4 and (not expected or expected[-1] != 5):
            expected.append(total % VOCAB)
            total += expected[-1]
        assert tokens == expected

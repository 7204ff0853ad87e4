"""/v1/embeddings: a small encoder with seeded weights, beside what transformers computes."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import npusim
from npusim.cli.encoder import is_text_encoder, open_encoder
from npusim.cli.language import LanguageOptions
from npusim.errors import DeviceError, Error, ExportError
from npusim.frontends.text_encoder import POOLINGS
from npusim.serve import BusyError, EmbeddingEngine
from npusim.serve.app import Server
from npusim.serve.embeddings import Embedder, parse_embedding
from npusim.serve.fields import RequestError
from npusim.serve.generation import Record

from . import model
from .conftest import Running

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
transformers = pytest.importorskip("transformers")

LONGEST, SIZE, PROMPT = 40, 32, "q: "
TEXTS = ["a", "Hi 😀é世.ok", "the same length!", "another length..", "z" * (LONGEST - 3)]


def write(folder: Path) -> Any:
    """Writes an encoder as sentence-transformers does; returns transformers' own of it."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=model.VOCABULARY, hidden_size=SIZE, intermediate_size=48,
        num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    made = transformers.BertModel(config).eval()
    made.save_pretrained(folder)
    model.save_tokenizer(folder)
    files = {
        "modules.json": [
            {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": SIZE,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
        },
        "sentence_bert_config.json": {"max_seq_length": LONGEST, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {"query": PROMPT},
            "default_prompt_name": "query",
        },
    }
    (folder / "1_Pooling").mkdir()
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value), "utf-8")
    return made


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoder")


@pytest.fixture(scope="module")
def reference(encoder: Path) -> Callable[[str], NDArray[np.float32]]:
    made = write(encoder)

    def vector(text: str) -> NDArray[np.float32]:
        tokens = torch.tensor([list((PROMPT + text).encode())])
        with torch.no_grad():
            rows = made(tokens).last_hidden_state
        found: NDArray[np.float32] = torch.nn.functional.normalize(rows.mean(1))[0].numpy()
        return found

    return vector


@pytest.fixture(scope="module")
def program(encoder: Path, reference: object) -> Path:
    """What `npusim serve` makes of the folder, and keeps."""
    assert is_text_encoder(encoder, None)
    path = encoder / "m.npubin"
    made = open_encoder(encoder, None, LanguageOptions(), None, None, path)
    assert made.weights == encoder and is_text_encoder(path, None)
    return path


@pytest.fixture
def engine(encoder: Path, program: Path) -> Iterator[EmbeddingEngine]:
    made = EmbeddingEngine(program, encoder, threads=1)
    yield made
    made.close()
    assert made.open == 0


def client_of(server: Server) -> Any:
    """OpenAI's client of a server in this process."""
    transport = httpx.ASGITransport(app=server.app)
    return openai.AsyncOpenAI(
        base_url="http://here/v1",
        api_key="-",
        max_retries=0,
        http_client=httpx.AsyncClient(transport=transport),
    )


def test_vectors_are_those_of_transformers(
    engine: EmbeddingEngine, reference: Callable[[str], NDArray[np.float32]]
) -> None:
    server = Server("model")
    server.embedder = Embedder(engine, "model")

    async def go() -> None:
        async with client_of(server) as client:
            make = client.embeddings.create
            answer = await make(model="model", input=TEXTS)  # as base64: the client's own way
            tokens = sum(len((PROMPT + text).encode()) for text in TEXTS)
            assert answer.usage.prompt_tokens == answer.usage.total_tokens == tokens
            assert [one.index for one in answer.data] == list(range(len(TEXTS)))
            for text, one in zip(TEXTS, answer.data, strict=True):
                np.testing.assert_allclose(one.embedding, reference(text), atol=2e-6)
                alone = await make(model="model", input=text, encoding_format="float")
                assert np.array_equal(alone.data[0].embedding, one.embedding), "the same bits"
            given = [list((PROMPT + text).encode()) for text in TEXTS]
            by_tokens = await make(model="model", input=given)
            assert [o.embedding for o in by_tokens.data] == [o.embedding for o in answer.data]
            (card,) = (await client.models.list()).data
            assert card.model_dump()["max_model_len"] == LONGEST
            with pytest.raises(openai.BadRequestError, match="answers /v1/embeddings") as refused:
                await client.completions.create(model="model", prompt="a")
            assert refused.value.body["code"] == "unsupported_model"
            with pytest.raises(openai.NotFoundError, match="'other' does not exist"):
                await make(model="other", input="a")

    asyncio.run(go())
    assert server.counts == {200: 8, 400: 1, 404: 1}


def test_a_process_serves_vectors(program: Path, encoder: Path, engine: EmbeddingEngine) -> None:
    running = Running(program, "--weights", encoder, "--threads", 1, "--name", "model")
    try:
        running.wait_for("ready")
        with openai.OpenAI(base_url=running.url + "/v1", api_key="-", max_retries=0) as client:
            (told,) = client.embeddings.create(model="model", input="a").data
        expected = asyncio.run(engine.embed([engine.encode("a")]))[0]
        assert np.array_equal(told.embedding, expected)
        assert running.stop() == 0
    finally:
        running.kill()


def test_a_model_that_generates_makes_no_vectors(spoken: Running) -> None:
    client = openai.OpenAI(base_url=spoken.url + "/v1", api_key="-", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="makes no vectors"):
        client.embeddings.create(model="model", input="a")


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "input is null"),
        ({"input": ""}, "input", "none of them empty"),
        ({"input": []}, "input", "1 to 2048"),
        ({"input": [[]]}, "input", "none of them empty"),
        ({"input": ["a", [1]]}, "input", "of texts alone"),
        ({"input": [1.5]}, "input", "of texts alone"),
        ({"input": [-1]}, "input", "of texts alone"),
        ({"input": {"a": 1}}, "input", "must be a text"),
        ({"input": ["a"] * 2049}, "input", "1 to 2048"),
        ({"input": [999]}, "input", "Token 999 is outside the vocabulary"),
        ({"input": ["a", "z" * LONGEST]}, "input", r"input\[1\]: A text may have 40 tokens"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", '"float" or "base64"'),
        ({"input": "a", "dimensions": 8}, "dimensions", "have 32 dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions", "from 1"),
        ({"input": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "not support"),
    ],
)
def test_bad_bodies_are_refused(
    engine: EmbeddingEngine, body: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        asyncio.run(Embedder(engine, "model").answer(body, Record()))
    assert (refused.value.status, refused.value.param) == (400, param)


def test_forms_of_vectors(engine: EmbeddingEngine) -> None:
    embedder = Embedder(engine, "model")

    def told(**more: Any) -> Any:
        body = {"input": "a", "dimensions": SIZE, "user": "u", **more}
        return json.loads(asyncio.run(embedder.answer(body, Record())))["data"][0]["embedding"]

    numbers = told()
    packed = np.frombuffer(base64.b64decode(told(encoding_format="base64")), "<f4")
    assert packed.shape == (SIZE,) and np.array_equal(packed, np.float32(numbers))
    assert not parse_embedding({"input": "a", "encoding_format": None}).base64


def test_nobody_shows_in_a_vector(engine: EmbeddingEngine) -> None:
    chance = np.random.default_rng(0)
    texts = [chance.integers(0, 256, n).tolist() for n in (1, 2, 7, 7, 7, LONGEST, *[16] * 19)]

    async def alone() -> list[NDArray[np.float32]]:
        return [(await engine.embed([text]))[0] for text in texts]

    async def together() -> list[NDArray[np.float32]]:
        asked = [engine.embed(texts), engine.embed(texts[::-1]), engine.embed(texts[3:9])]
        return list(await asyncio.gather(*asked))

    expected = np.stack(asyncio.run(alone()))
    steps = engine.stats()["steps"]
    first, turned, some = asyncio.run(together())
    assert engine.stats()["steps"] - steps < len(texts), "texts of one length go together"
    assert np.array_equal(first, expected) and np.array_equal(turned, expected[::-1])
    assert np.array_equal(some, expected[3:9])


class Failing:
    """A session that fails while it is told to."""

    def __init__(self, session: Any) -> None:
        self._session, self.fails = session, True

    def __call__(self, tokens: Any) -> Any:
        if self.fails:
            raise DeviceError("The device is gone.")
        return self._session(tokens)


def test_calls_that_fail_are_told_of(engine: EmbeddingEngine) -> None:
    session: Any = Failing(engine._session)
    engine._session = session

    async def ask() -> None:
        await engine.embed([[1, 2]])

    for _ in range(2):
        with pytest.raises(Error, match="device is gone"):
            asyncio.run(ask())
    session.fails = False
    asyncio.run(ask())
    session.fails = True
    for _ in range(3):
        with pytest.raises(Error, match="device is gone"):
            asyncio.run(ask())
    with pytest.raises(RequestError, match="has failed") as refused:
        asyncio.run(Embedder(engine, "model").answer({"input": "a"}, Record()))
    assert refused.value.status == 503


def test_numbers_that_are_not_finite_are_no_answer(engine: EmbeddingEngine) -> None:
    session: Any = lambda tokens: (np.full((len(tokens), SIZE), np.nan, np.float32),)  # noqa: E731
    engine._session = session
    with pytest.raises(RequestError, match="not finite") as refused:
        asyncio.run(Embedder(engine, "model").answer({"input": "a"}, Record()))
    assert refused.value.status == 500


def test_those_who_leave_leave_nothing(engine: EmbeddingEngine) -> None:
    engine.most_open = 3

    async def go() -> None:
        tasks = [asyncio.create_task(engine.embed([[1] * 40] * 400)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError) as busy:
            await engine.embed([[1]])
        assert busy.value.retry_after >= 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert engine.open == 0
        assert (await engine.embed([[1]])).shape == (1, SIZE)

    asyncio.run(go())


def test_the_end_comes_to_all(engine: EmbeddingEngine) -> None:
    async def go() -> None:
        task = asyncio.create_task(engine.embed([[1] * 40] * 2000))
        await asyncio.sleep(0)
        assert not await engine.drain(0)
        with pytest.raises(Error, match="shuts down"):
            await task
        with pytest.raises(Error, match="takes no more"):
            await engine.embed([[1]])

    asyncio.run(go())


# ---- what is refused of a folder ----


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("modules.json", {}, "must hold JSON's a list"),
        ("modules.json", [], "has no Pooling"),
        ("modules.json", [{"path": "", "type": "a.Dense"}], "a module 'Dense' in place 0"),
        ("modules.json", [7], "a module 7 in place 0"),
        ("1_Pooling/config.json", {}, "pools by nothing"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "pools by cls, mean",
        ),
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ("1_Pooling/config.json", {"pooling_mode": "mean", "include_prompt": False}, "its prompt"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "lower case"),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}, "none of its prompts"),
    ],
)
def test_files_that_ask_for_more_are_refused(
    tmp_path: Path, file: str, value: Any, message: str
) -> None:
    write(tmp_path)
    (tmp_path / file).write_text(json.dumps(value), "utf-8")
    with pytest.raises(ExportError, match=message):
        npusim.extract_encoder(tmp_path)


def test_options_of_no_use_are_refused(program: Path, encoder: Path) -> None:
    with pytest.raises(Error, match="--pooling is about an encoder's folder"):
        is_text_encoder(program, "mean")
    with pytest.raises(Error, match="--save is about a program that is made"):
        open_encoder(program, encoder, LanguageOptions(), None, None, encoder / "again.npubin")
    with pytest.raises(Error, match="--pages"):
        open_encoder(encoder, None, LanguageOptions(pages=3), None, None, None)
    with pytest.raises(ExportError, match="pooling is 'middle'"):
        open_encoder(encoder, None, LanguageOptions(), "middle", None, None)


def test_somebody_must_say_how_vectors_are_made(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "modules.json").unlink()
    with pytest.raises(ExportError, match="does not say how"):
        npusim.extract_encoder(tmp_path)
    with pytest.raises(ExportError, match="knows 64 positions"):
        npusim.extract_encoder(tmp_path, pooling="cls", max_tokens=65)


def test_poolings_are_those_of_sentence_transformers() -> None:
    rows = torch.randn(3, 5, 4, dtype=torch.float64)
    mask = torch.ones(3, 5, 1, dtype=torch.float64)
    total, count = (rows * mask).sum(1), mask.sum(1)
    expected = {
        "cls": rows[:, 0],
        "lasttoken": rows[:, 4],
        "max": rows.max(1).values,
        "mean": total / count,
        "mean_sqrt_len_tokens": total / count.sqrt(),
    }
    assert expected.keys() == POOLINGS.keys()
    for name, wanted in expected.items():
        torch.testing.assert_close(POOLINGS[name](rows), wanted)


def test_a_program_of_something_else_is_refused() -> None:
    graph = npusim.extract_ir(torch.nn.ReLU().eval(), (torch.zeros(2),))
    with pytest.raises(npusim.ShapeError, match="no text encoder"):
        EmbeddingEngine(npusim.compile(graph))

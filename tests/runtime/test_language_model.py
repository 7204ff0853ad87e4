"""Sessions of a language model: appending, generating, going back, forking, saving, refusals."""

from __future__ import annotations

import json
import signal
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim import _runtime
from tests.runtime import programs
from tests.runtime import toy_language_model as toy

TABLE = toy.weights()["table"]
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


@pytest.fixture(scope="module")
def model() -> npusim.LanguageModel:
    return npusim.LanguageModel.load(toy.program(), {"table": TABLE}, threads=2)


@pytest.fixture
def session(model: npusim.LanguageModel) -> npusim.LanguageSession:
    return model.new_session()


def check(session: npusim.LanguageSession, tokens: list[int]) -> None:
    """The session holds the tokens, and the logits after them."""
    assert session.tokens == tokens and session.position == len(tokens)
    np.testing.assert_allclose(session.logits, toy.logits(TABLE, tokens), rtol=1e-5, atol=1e-5)


def greedy(tokens: list[int], count: int) -> list[int]:
    """What the most probable continuation is, in NumPy."""
    text = list(tokens)
    for _ in range(count):
        text.append(int(toy.logits(TABLE, text).argmax()))
    return text[len(tokens) :]


@pytest.mark.parametrize("count", range(1, toy.CONTEXT + 1))
def test_append_feeds_any_number_of_tokens(session: npusim.LanguageSession, count: int) -> None:
    tokens = np.random.default_rng(count).integers(0, toy.VOCABULARY, count).tolist()
    session.append(tokens)
    check(session, tokens)


@pytest.fixture(scope="module")
def chunked() -> npusim.LanguageModel:
    return npusim.LanguageModel.load(toy.program(larger=(8, 16)), {"table": TABLE})


@pytest.mark.parametrize("before", [0, 3, 12, 22])
def test_prompts_run_in_chunks_of_several_sizes(chunked: npusim.LanguageModel, before: int) -> None:
    for count in range(1, toy.CONTEXT - before + 1):
        session = chunked.new_session()
        tokens = np.random.default_rng(count).integers(0, toy.VOCABULARY, before + count).tolist()
        session.append(tokens[:before])
        session.append(tokens[before:])
        check(session, tokens)


def test_append_in_parts_is_append(session: npusim.LanguageSession) -> None:
    at = 0
    for part in (1, 2, 5, 0, 3):
        session.append(TEXT[at : at + part])
        at += part
        check(session, TEXT[:at])


def test_greedy_tokens(model: npusim.LanguageModel) -> None:
    made = model.generate_tokens(TEXT, max_new_tokens=6, ignore_eos=True)
    assert list(made) == greedy(TEXT, 6) == made.tokens
    assert made.finish_reason == "length"
    check(made.session, TEXT + made.tokens)


def test_generation_goes_on_where_it_was_left(session: npusim.LanguageSession) -> None:
    made = session.generate_tokens(TEXT, ignore_eos=True)
    assert [next(made), next(made)] == session.tokens[len(TEXT) :]
    rest = list(session.generate_tokens(max_new_tokens=3, ignore_eos=True))
    assert session.tokens == TEXT + greedy(TEXT, 5) and rest == greedy(TEXT, 5)[2:]


def test_generation_ends_with_the_context(model: npusim.LanguageModel) -> None:
    made = model.generate_tokens(TEXT, ignore_eos=True)
    assert len(list(made)) == toy.CONTEXT - len(TEXT)
    assert made.finish_reason == "context" and made.session.position == toy.CONTEXT
    with pytest.raises(npusim.Error, match="context is full: 24 of 24"):
        next(made.session.generate_tokens())


def test_stop_tokens(model: npusim.LanguageModel) -> None:
    expected = greedy(TEXT, 8)
    stop = expected[3]
    made = model.generate_tokens(TEXT, stop_token_ids=[stop], ignore_eos=True)
    assert list(made) == expected[: expected.index(stop) + 1]
    assert made.finish_reason == "stop"


def test_the_models_own_end_of_text() -> None:
    table = TABLE.copy()
    table[:, toy.EOS] += 100
    model = npusim.LanguageModel.load(toy.program(), {"table": table})
    assert list(model.generate_tokens(TEXT)) == [toy.EOS]
    assert list(model.generate_tokens(TEXT, max_new_tokens=2, ignore_eos=True)) == [toy.EOS] * 2


def test_logits_of_each_token(model: npusim.LanguageModel) -> None:
    made = model.generate_tokens(TEXT, max_new_tokens=4, return_logits=True, ignore_eos=True)
    tokens = list(made)
    for i, got in enumerate(made.logits):
        expected = toy.logits(TABLE, TEXT + tokens[:i])
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert len(made.logits) == 4


def test_stats(model: npusim.LanguageModel) -> None:
    made = model.generate_tokens(TEXT, max_new_tokens=3, ignore_eos=True)
    list(made)
    assert (made.stats.prompt_tokens, made.stats.new_tokens) == (len(TEXT), 3)
    assert made.stats.time_to_first_token > 0 and made.stats.tokens_per_second > 0


def test_rewind(session: npusim.LanguageSession) -> None:
    session.append(TEXT)
    for position in (len(TEXT), 7, 6, 1):
        session.rewind(position)
        check(session, TEXT[:position])
    session.append([8, 8, 8, 8, 8, 8])
    check(session, [TEXT[0], 8, 8, 8, 8, 8, 8])
    session.reset()
    assert session.position == 0 and session.tokens == []
    session.append(TEXT[::-1])
    check(session, TEXT[::-1])


def test_forks_are_independent(session: npusim.LanguageSession) -> None:
    session.append(TEXT)
    fork = session.fork()
    check(fork, TEXT)
    fork.append([7, 7])
    session.append([2])
    other = fork.fork()
    other.rewind(3)
    check(fork, [*TEXT, 7, 7])
    check(session, [*TEXT, 2])
    check(other, TEXT[:3])


def test_a_fork_draws_what_the_original_draws(session: npusim.LanguageSession) -> None:
    session.append(TEXT)
    options: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_new_tokens": 8}
    assert list(session.fork().generate_tokens(**options)) == list(
        session.generate_tokens(**options)
    )


@pytest.mark.parametrize("change", ["none", "sampled", "rewound", "empty"])
def test_saved_sessions(
    model: npusim.LanguageModel, session: npusim.LanguageSession, tmp_path: Path, change: str
) -> None:
    if change != "empty":
        session.append(TEXT)
    if change == "sampled":
        list(session.generate_tokens(max_new_tokens=2, ignore_eos=True))
    if change == "rewound":
        session.rewind(4)
    session.save(tmp_path / "session")
    loaded = model.new_session()
    loaded.append([1, 2, 3])
    loaded.load(tmp_path / "session")
    assert loaded.tokens == session.tokens
    if change != "empty":
        check(loaded, session.tokens)
        assert (loaded.logits == session.logits).all()
    loaded.append([11, 12])
    check(loaded, [*session.tokens, 11, 12])
    assert [path.name for path in tmp_path.iterdir()] == ["session"]


def test_a_saved_session_holds_the_rows_in_use_only(
    session: npusim.LanguageSession, tmp_path: Path
) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    session.append(TEXT)
    session.save(tmp_path / "session")
    tensors = safetensors.load_file(tmp_path / "session")
    assert tensors["cache"].shape == (1, len(TEXT), toy.VOCABULARY)
    assert (tensors["cache"][0] == TABLE[TEXT]).all()
    assert tensors["npusim.tokens"].tolist() == TEXT


def test_a_session_of_another_program_is_refused(
    session: npusim.LanguageSession, tmp_path: Path
) -> None:
    session.append(TEXT)
    session.save(tmp_path / "session")
    other = npusim.LanguageModel.load(toy.program(model="other"), {"table": TABLE}).new_session()
    with pytest.raises(npusim.ProgramFormatError, match="another program saved it"):
        other.load(tmp_path / "session")
    again = npusim.LanguageModel.load(toy.program(), {"table": TABLE}).new_session()
    again.load(tmp_path / "session")
    check(again, TEXT)


def _with_header(image: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    (length,) = struct.unpack_from("<Q", image)
    header = json.loads(image[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + image[8 + length :]


def test_a_session_of_a_newer_version_says_which_to_install(
    session: npusim.LanguageSession, tmp_path: Path
) -> None:
    session.append(TEXT)
    session.save(tmp_path / "session")
    image = (tmp_path / "session").read_bytes()
    newer = {"format": "npusim session 2", "npusim": "0.4.0"}
    (tmp_path / "newer").write_bytes(
        _with_header(image, lambda header: header["__metadata__"].update(newer))
    )
    with pytest.raises(npusim.ProgramFormatError, match=r"session 2.*install npusim '0\.4\.0'"):
        session.load(tmp_path / "newer")
    check(session, TEXT)


HOSTILE: dict[str, Callable[[dict[str, Any]], None]] = {
    "fed beyond the tokens": lambda h: h["__metadata__"].update(fed="12"),
    "fed negative": lambda h: h["__metadata__"].update(fed="-1"),
    "fed no number": lambda h: h["__metadata__"].update(fed="1e1"),
    "fed fewer": lambda h: h["__metadata__"].update(fed="10"),
    "no metadata": lambda h: h.pop("__metadata__"),
    "other format": lambda h: h["__metadata__"].update(format="npusim session 2"),
    "cache renamed": lambda h: h.update(other=h.pop("cache")),
    "cache reshaped": lambda h: h["cache"].update(shape=[len(TEXT), 1, toy.VOCABULARY]),
    "cache of another dtype": lambda h: h["cache"].update(dtype="I32"),
    "tokens are floats": lambda h: h["npusim.tokens"].update(dtype="F64"),
    "logits renamed": lambda h: h.update(other=h.pop("npusim.logits")),
}


@pytest.mark.parametrize("change", HOSTILE, ids=str)
def test_hostile_sessions_are_refused(
    session: npusim.LanguageSession, tmp_path: Path, change: str
) -> None:
    session.append(TEXT)
    session.save(tmp_path / "good")
    image = (tmp_path / "good").read_bytes()
    (tmp_path / "bad").write_bytes(_with_header(image, HOSTILE[change]))
    session.rewind(5)
    with pytest.raises(npusim.ProgramFormatError):
        session.load(tmp_path / "bad")
    check(session, TEXT[:5])


def test_truncated_and_foreign_sessions_are_refused(
    session: npusim.LanguageSession, tmp_path: Path
) -> None:
    session.append(TEXT)
    session.save(tmp_path / "good")
    image = bytearray((tmp_path / "good").read_bytes())
    for cut in (0, 7, 100, len(image) - 1):
        (tmp_path / "bad").write_bytes(image[:cut])
        with pytest.raises(npusim.ProgramFormatError):
            session.load(tmp_path / "bad")
    (length,) = struct.unpack_from("<Q", image)
    struct.pack_into("<q", image, 8 + length, toy.VOCABULARY)
    (tmp_path / "bad").write_bytes(image)
    with pytest.raises(npusim.ProgramFormatError, match="outside the vocabulary"):
        session.load(tmp_path / "bad")
    with pytest.raises(npusim.Error, match="missing"):
        session.load(tmp_path / "missing")
    with pytest.raises(npusim.Error, match="Cannot write"):
        session.save(tmp_path / "folder" / "session")
    with pytest.raises(npusim.Error, match="Cannot write"):
        session.save(tmp_path)
    check(session, TEXT)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.append([1, 32]), ["Token 32", "0 … 31"]),
        (lambda s: s.append([-1]), ["Token -1"]),
        (lambda s: s.append([2**70]), [f"Token {2**70}"]),
        (lambda s: s.append([0.5]), ["token ids"]),
        (lambda s: s.append([[1]]), ["token ids"]),
        (lambda s: s.append([1] * 20), ["holds 24 tokens", "5 are there", "20 more"]),
        (lambda s: s.rewind(6), ["position 6", "at 5"]),
        (lambda s: s.rewind(-1), ["position -1"]),
        (lambda s: s.append("text"), ["no tokenizer"]),
        (lambda s: s.generate("text"), ["no tokenizer"]),
        (lambda s: s.generate_tokens([1] * 20), ["holds 24 tokens", "20 more"]),
        (lambda s: s.generate_tokens(max_new_tokens=-1), ["max_new_tokens is -1"]),
        (lambda s: s.generate_tokens(temperature=-1.0), ["temperature is -1", "0 (greedy)"]),
        (lambda s: s.generate_tokens(temperature=float("nan")), ["temperature is nan"]),
        (lambda s: s.generate_tokens(top_k=-1), ["top_k is -1"]),
        (lambda s: s.generate_tokens(top_k=1.5), ["top_k an integer"]),
        (lambda s: s.generate_tokens(top_p=0.0, min_p=2.0), ["top_p is 0", "min_p is 2"]),
        (lambda s: s.generate_tokens(repetition_penalty=0.0), ["repetition_penalty is 0"]),
        (lambda s: s.generate_tokens(seed=-1), ["seed is -1"]),
    ],
)
def test_misuse_is_refused_and_changes_nothing(
    session: npusim.LanguageSession,
    call: Callable[[npusim.LanguageSession], object],
    words: list[str],
) -> None:
    session.append(TEXT[:5])
    with pytest.raises(npusim.Error) as caught:
        call(session)
    for word in words:
        assert word in str(caught.value)
    check(session, TEXT[:5])


def test_an_empty_session_has_no_logits(session: npusim.LanguageSession) -> None:
    with pytest.raises(npusim.Error, match="no tokens yet"):
        _ = session.logits
    with pytest.raises(npusim.Error, match="no tokens"):
        session.generate_tokens([])


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"max_context": 25}, "room for 25 tokens"),
        ({"max_context": 0}, "max_context is 0"),
        ({"prefill_chunk": 5}, "tokens does not hold 5"),
        ({"vocab_size": 33}, "logits does not hold 33"),
        ({"position": "cache"}, "no single int64"),
        ({"position": "nowhere"}, "no state 'nowhere'"),
        ({"caches": []}, "neither its position, a cache nor recurrent"),
        ({"caches": [{"state": "cache", "axis": 0}]}, "along axis 0"),
        ({"caches": [{"state": "cache", "axis": 9}]}, "along axis 9"),
        ({"caches": [{"state": "cache", "axis": 1}] * 2}, "appears twice"),
        ({"caches": 3}, "array"),
        ({"larger_chunks": [8]}, "no method prefill_8"),
        ({"larger_chunks": [4]}, "do not ascend from prefill_chunk"),
        ({"max_context": -1}, "JSON"),
    ],
)
def test_facts_that_contradict_the_program_are_refused(
    facts: dict[str, object], words: str
) -> None:
    with pytest.raises(npusim.ProgramFormatError, match=words):
        npusim.LanguageModel.load(toy.program(facts), {"table": TABLE})


@pytest.mark.parametrize(
    "state",
    [
        {"name": "position", "buffer": 2, "dtype": "int64", "shape": [1]},
        {"name": "position", "buffer": 99, "dtype": "int64", "shape": [1]},
        {"name": "position", "buffer": 0, "dtype": "int64", "shape": [2]},
        {"name": "position", "buffer": 0, "dtype": "int64", "shape": [2**62, 2**62]},
        {"name": "position", "buffer": 0, "dtype": "int63", "shape": [1]},
        {"buffer": 0, "dtype": "int64", "shape": [1]},
    ],
)
def test_states_that_contradict_the_program_are_refused(state: dict[str, object]) -> None:
    with pytest.raises(npusim.ProgramFormatError):
        npusim.LanguageModel.load(toy.program(states=[state]), {"table": TABLE})


def test_another_program_is_no_language_model() -> None:
    with pytest.raises(npusim.Error, match="no language model"):
        npusim.LanguageModel.load(programs.identity((3,)))


def test_sessions_on_threads(model: npusim.LanguageModel) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        text = np.random.default_rng(seed).integers(0, toy.VOCABULARY, 5).tolist()
        for _ in range(20):
            made = list(model.generate_tokens(text, max_new_tokens=6, ignore_eos=True))
            if made != greedy(text, 6):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_ctrl_c_takes_effect_on_whole_appends(session: npusim.LanguageSession) -> None:
    main = threading.main_thread().ident
    assert main is not None
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    seen = set()
    try:
        for _ in range(100):
            session.reset()
            timer = threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGINT))
            try:
                timer.start()
                session.append(TEXT)
                timer.join()
            except KeyboardInterrupt:
                seen.add(session.position)
            timer.join()
            session.append([1])
            check(session, [*session.tokens[:-1], 1])
    finally:
        signal.signal(signal.SIGINT, previous)
    assert seen and seen <= {0, len(TEXT)}


def test_score(model: npusim.LanguageModel) -> None:
    score = model.score(TEXT)
    expected = []
    for i in range(1, len(TEXT)):
        logits = toy.logits(TABLE, TEXT[:i])
        expected.append(logits[TEXT[i]] - np.log(np.exp(logits).sum()))
    np.testing.assert_allclose(score.log_probabilities, expected, rtol=1e-4, atol=1e-4)
    assert score.perplexity == pytest.approx(np.exp(-np.mean(expected)), rel=1e-4)
    with pytest.raises(npusim.Error, match="Token 99"):
        model.score([1, 99])


def test_states_of_an_executor() -> None:
    program = programs.memory_of_last_call(3)
    device = npusim.Device("cpu", threads=1)
    executor = npusim.Executor(program, device)
    one, other = npusim.State(program, device), npusim.State(program, device)

    def run(value: float, state: npusim.State | None) -> float:
        x = npusim.DeviceBuffer.from_numpy(np.full(3, value, np.float32), device)
        return float(executor.run({"x": x}, state=state)["output"].to_numpy()[0])

    assert [run(1, one), run(2, other), run(3, None)] == [0, 0, 0]
    fork = one.copy()
    assert [run(4, one), run(5, fork), run(6, other), run(7, None)] == [1, 1, 2, 3]
    assert [run(0, one), run(0, fork)] == [4, 5]
    stranger = npusim.State(programs.memory_of_last_call(4), device)
    with pytest.raises(npusim.Error, match="another program or device"):
        run(1, stranger)
    with pytest.raises(npusim.Error, match="another program or device"):
        run(1, npusim.State(program, npusim.Device("cpu", threads=1)))


def test_named_states() -> None:
    program, device = toy.program(), npusim.Device("cpu", threads=1)
    state = npusim.State(program, device)
    assert state.names == ("position", "cache")
    state.set("position", np.array([7]))
    assert state.get("position").tolist() == [7] and not state.get("cache").any()
    with pytest.raises(npusim.ShapeError, match=r"int64\[1\], got float64\[2\]"):
        state.set("position", np.zeros(2))
    with pytest.raises(npusim.ShapeError, match="no state 'cash'; it has: position, cache"):
        state.get("cash")
    with pytest.raises(npusim.Error, match="is no state"):
        state.read(2)


def test_the_null_device_runs_language_models() -> None:
    device = _runtime.Device("null")
    model = npusim.LanguageModel.load(toy.program(), {"table": TABLE}, device=device)
    assert list(model.generate_tokens(TEXT, max_new_tokens=3)) == [0, 0, 0]

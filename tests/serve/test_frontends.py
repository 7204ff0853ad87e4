"""A server of several processes: it answers as one does, and what becomes of it when one ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim import _runtime
from npusim.errors import DeviceError, Error
from npusim.serve import frontend_process
from npusim.serve.app import Limits, Server
from npusim.serve.channel import (
    ACCEPTED,
    CONNECTIONS,
    Kind,
    Messages,
    json_message,
    message,
    read_submission,
    submission,
)
from npusim.serve.frontend import FrontEnd, Served
from npusim.serve.frontend_process import Link, _Process
from npusim.serve.frontends import serve_with
from npusim.serve.generation import Generator
from npusim.serve.packed_events import unpacked
from npusim.serve.paged import PagedBackend
from npusim.serve.process import take_port
from npusim.serve.remote_engine import RemoteEngine
from npusim.serve.requests import BusyError, Event, Piece, Sampling

from . import test_client as clients
from . import test_http as http
from .conftest import Running, Start

TWO = ("--frontends", 2)
LIMIT = 5  # seconds that anything may take
proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def fronts(start: Start) -> Start:
    """Starts servers of two front ends."""

    def begin(weights: str = "spoken", *options: object, **given: Any) -> Running:
        named = ("--name", "model")
        return start(weights, *options, *TWO, *named, **{**given, "program": "paged"})

    return begin


@pytest.fixture(scope="module")
def two(fronts: Start) -> Running:
    return fronts("spoken")


@pytest.fixture(scope="module")
def two_random(fronts: Start) -> Running:
    return fronts("random")


@pytest.fixture(scope="module")
def lm(folder: Path) -> npusim.LanguageModel:
    return npusim.LanguageModel.load(folder / "paged.npubin", folder / "random", threads=1)


def connected(server: Running, count: int) -> list[socket.socket]:
    """Opens connections, one after the other, so that each front end has its share."""
    return [http.connect(server) for _ in range(count)]


@pytest.mark.parametrize(
    "answers",
    [
        clients.test_a_chat,
        clients.test_a_streamed_chat_comes_in_the_order_that_clients_rely_on,
        clients.test_several_prompts_and_answers_in_order,
        clients.test_stop_strings_are_held_back_and_named,
        clients.test_penalties_and_biases_change_the_choice,
        clients.test_least_tokens_and_ends,
        clients.test_models,
        http.test_paths_and_methods_that_are_none,
        http.test_texts_become_tokens_and_tokens_texts,
        http.test_unfinished_bodies_hold_up_nobody,
    ],
)
def test_answers_are_those_of_one_process(two: Running, answers: Callable[[Running], None]) -> None:
    answers(two)


def test_random_answers_are_those_of_one_process(
    two_random: Running, lm: npusim.LanguageModel
) -> None:
    clients.test_answers_are_those_of_a_session(two_random, lm)
    clients.test_logprobs_are_the_models(two_random, lm)
    clients.test_logprobs_of_a_chat(two_random)
    clients.test_a_prompt_can_be_scored_alone(two_random, lm)
    clients.test_seeds_repeat_and_answers_of_one_request_differ(two_random)
    clients.test_many_at_once_get_their_own_answers(two_random, lm)


def test_forms_are_those_of_one_process(two_random: Running) -> None:
    clients.test_answers_of_a_given_form(two_random)


def test_keys_are_looked_at_by_all(fronts: Start, tmp_path: Path) -> None:
    clients.test_keys(fronts, tmp_path)


@pytest.mark.long
def test_large_bodies_and_a_second_server(fronts: Start, two: Running, folder: Path) -> None:
    http.test_bodies_that_are_too_large(fronts)
    http.test_a_second_server_on_a_port_is_refused(two, folder)


def test_metrics_count_for_all(two_random: Running) -> None:
    before = http.numbers(two_random, "npusim:generation_tokens_total")
    for client in connected(two_random, 4):
        client.sendall(http.raw_request({"prompt": "0", "max_tokens": 1, "ignore_eos": True}))
        assert b" 200 " in client.recv(4096)
        client.close()
    until = time.monotonic() + LIMIT  # what one front end counted, another one is asked for
    while http.numbers(two_random, "npusim:generation_tokens_total") != before + 4:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_full_queue_says_when_to_come_again(fronts: Start) -> None:
    http.test_a_full_queue_says_when_to_come_again(fronts)


@pytest.mark.long
def test_clients_that_vanish_end_their_requests(fronts: Start) -> None:
    http.test_clients_that_vanish_end_their_requests(fronts, "paged")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_the_end_is_that_of_one_process(fronts: Start, number: int) -> None:
    http.test_the_end_lets_requests_end(fronts, number)


def test_what_outlasts_the_end_hears_of_it(fronts: Start) -> None:
    http.test_requests_that_outlast_the_end_hear_of_it(fronts)


def test_a_model_that_cannot_be_loaded_ends_all(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    server = Running(folder / "paged.npubin", "--weights", tmp_path, *TWO)
    assert server.process.wait(60) == 2
    assert server.process.stdout is not None


def test_sessions_are_served_by_the_engines_process(start: Start) -> None:
    server = start("spoken", *TWO, program="model")
    clients.test_a_chat(server)
    assert server.stop() == 0


def stream_of(client: socket.socket) -> bytes:
    """Asks for a stream; returns what it begins with."""
    body = {"prompt": "0", "max_tokens": 380, "stream": True}
    client.sendall(http.raw_request(body))
    return client.recv(100)


def rest_of(client: socket.socket) -> bytes:
    received = b""
    try:
        while (part := client.recv(1 << 16)) and b"0\r\n\r\n" not in received[-8:] + part:
            received += part
    except ConnectionResetError:
        return received
    return received + part


def pids(server: Running) -> list[int]:
    (listening,) = [line for line in server.log if line["event"] == "listening"]
    found: list[int] = listening["frontends"]
    return found


def test_a_front_end_that_dies_takes_only_its_own_with_it(fronts: Start) -> None:
    server = fronts("spoken")
    opened = connected(server, 6)
    assert all(b" 200 " in stream_of(client) for client in opened)
    os.kill(pids(server)[0], signal.SIGKILL)
    ended = [rest_of(client) for client in opened]
    assert sum(b"[DONE]" in text for text in ended) == 3, "each front end had its share"
    assert server.wait_for("a front end ended")["code"] == -signal.SIGKILL
    http.wait_until_idle(server)
    assert http.numbers(server, "npusim:kv_cache_usage_perc") == 0
    for client in connected(server, 4):
        client.sendall(http.raw_request({"prompt": "0", "max_tokens": 3}))
        received = b""
        while b'"123"' not in received:
            received += (part := client.recv(4096))
            assert part, received
        client.close()
    assert server.stop() == 0


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


@proc
@pytest.mark.long
def test_front_ends_that_die_again_and_again_end_the_server(fronts: Start) -> None:
    server = fronts("spoken")
    children = f"/proc/{server.process.pid}/task/{server.process.pid}/children"
    for _ in range(4):
        (pid, *_rest) = map(int, Path(children).read_text().split())
        os.kill(pid, signal.SIGKILL)
        server.wait_for("a front end ended")
    assert server.process.wait(60) == 2
    assert not any(map(lives, pids(server)))


@proc
def test_front_ends_end_when_the_engines_process_is_gone(fronts: Start) -> None:
    server = fronts("spoken")
    (client,) = connected(server, 1)
    stream_of(client)
    server.kill()
    received = rest_of(client)
    assert b"[DONE]" not in received and b"process has ended" in received
    until = time.monotonic() + LIMIT
    while any(map(lives, pids(server))):
        assert time.monotonic() < until, "front ends are left"
        time.sleep(0.05)


# ---- the parts

# What a front end is told of an engine.
FACTS = {
    "max_context": 64,
    "max_batch": 2,
    "most_open": 3,
    "vocab_size": 40,
    "eos_token_ids": [3],
    "tokenizer": None,
}


class Engine:
    """The other end of a RemoteEngine's channel, in this process."""

    def __init__(self) -> None:
        self.heard: list[tuple[Kind, bytes]] = []
        self._messages = Messages()
        self.remote = RemoteEngine(FACTS, self.hear)

    def hear(self, content: bytes) -> None:
        self.heard += self._messages.push(content)


def test_a_remote_engine_says_what_the_engine_says() -> None:
    engine = Engine()

    async def run() -> None:
        asking = asyncio.create_task(engine.remote.ask([1, 2], Sampling(seed=2**64 - 1)))
        await asyncio.sleep(0)
        kind, content = engine.heard[0]
        ticket, follows, tokens, options = read_submission(content)
        assert kind is Kind.SUBMIT and (follows, tokens) == (0, [1, 2])
        assert options["seed"] == 2**64 - 1 and options["stop_tokens"] == [3]
        engine.remote.accepted(ACCEPTED.pack(ticket, 77))
        stream = await asking
        assert (stream.number, engine.remote.open, engine.remote.taken) == (77, 1, 1)
        stream.close()
        assert engine.heard[1][0] is Kind.CANCEL and engine.remote.open == 0
        stream.close()
        assert len(engine.heard) == 2, "and says so once"

        told = {"class": "DeviceError", "message": "full", "open": 9}
        for busy, expected in ((True, BusyError), (False, DeviceError)):
            asking = asyncio.create_task(engine.remote.ask([1], Sampling()))
            await asyncio.sleep(0)
            ticket = read_submission(engine.heard[-1][1])[0]
            engine.remote.refused(json.dumps({**told, "ticket": ticket, "busy": busy}).encode())
            with pytest.raises(expected, match="full"):
                await asking
        engine.remote.check()
        asking = asyncio.create_task(engine.remote.ask([1], Sampling()))
        await asyncio.sleep(0)
        ticket = read_submission(engine.heard[-1][1])[0]
        engine.remote.refuse(Error("It shuts down"))
        engine.remote.refused(json.dumps({**told, "ticket": ticket, "busy": True}).encode())
        with pytest.raises(Error, match="It shuts down"):  # and not that it may come again
            await asking

    asyncio.run(run())


def test_what_is_said_again_and_again_keeps_no_frames() -> None:
    remote = Engine().remote
    remote.refuse(DeviceError("It has failed"))
    depths = []
    for _ in range(3):
        with pytest.raises(DeviceError, match="It has failed") as raised:
            remote.check()
        depths.append(len(list(traceback.walk_tb(raised.value.__traceback__))))
    assert depths[0] == depths[2]


def test_who_leaves_while_the_engine_accepts_is_cancelled() -> None:
    engine = Engine()

    async def run() -> None:
        asking = asyncio.create_task(engine.remote.ask([1], Sampling()))
        await asyncio.sleep(0)
        ticket = read_submission(engine.heard[0][1])[0]
        engine.remote.accepted(ACCEPTED.pack(ticket, 5))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert engine.heard[1:] == [(Kind.CANCEL, (5).to_bytes(8, "little"))]
        assert engine.remote.open == 0

    asyncio.run(run())


class ToldLink(Link):
    """Keeps what a front end tells."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[bytes] = []

    def send(self, content: bytes) -> None:
        self.told.append(content)


async def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_connections_that_end_at_once_are_counted_no_longer() -> None:
    """After one that came without a descriptor, because there was none left for it."""

    async def run() -> None:
        link = ToldLink()
        ours, theirs = socket.socketpair()
        one, other = socket.socketpair()
        with ours, theirs:
            serving = asyncio.create_task(_Process(link, Server("model"), theirs).run_on())
            ours.send(b"c")
            await until(lambda: bool(link.told))
            link.told.clear()
            with one, other:
                socket.send_fds(ours, [b"c"], [other.fileno()])
            await until(lambda: message(Kind.CONNECTIONS, CONNECTIONS.pack(0, 2)) in link.told)
            link.ends.set()
            await asyncio.wait_for(serving, LIMIT)

    asyncio.run(run())


def test_clients_do_not_keep_a_front_end_whose_engine_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frontend_process, "AFTER_DRAIN", 0)

    async def run() -> None:
        link, server = ToldLink(), Server("model", limits=Limits(body_seconds=10 * LIMIT))
        server.generator = object.__new__(Generator)  # nothing asks it anything
        ours, theirs = socket.socketpair()
        client, other = socket.socketpair()
        with ours, theirs, client:
            process = _Process(link, server, theirs)
            serving = asyncio.create_task(process.run_on())
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{"
            )
            with other:
                socket.send_fds(ours, [b"c"], [other.fileno()])
                await until(lambda: bool(process.server_state.tasks))
            link.connection_lost(None)
            await asyncio.wait_for(serving, LIMIT)

    asyncio.run(run())


class BrokenEngine:
    """A native engine that takes nothing, and says why where that is so for good."""

    def __init__(self, error: Exception, failure: str = "") -> None:
        self._error, self._failure = error, failure

    def submit(self, *_: object) -> int:
        raise self._error

    def failure(self) -> str:
        return self._failure

    def stats(self) -> dict[str, int]:
        return {"running": 0, "waiting": 0}


def test_connections_that_wait_are_a_front_ends_too() -> None:
    """What it says of those before was said before it took them."""
    front: Any = object.__new__(FrontEnd)
    (front._handing, theirs), front._native = socket.socketpair(), None
    front._handed, front._told, front._is_gone = 0, (0, 0), False
    answers: list[bytes] = []
    front.send = answers.append
    with front._handing, theirs:
        assert front.hand(theirs) and front.hand(theirs)
        assert front.connections == 2
        for has, took, expected in ((1, 1, 2), (0, 1, 1), (1, 2, 1), (0, 2, 0)):
            front._act(Kind.CONNECTIONS, CONNECTIONS.pack(has, took))
            assert front.connections == expected


def told_by(native: BrokenEngine) -> list[tuple[Kind, Any]]:
    """Returns what a front end is told that asks an engine."""
    front: Any = object.__new__(FrontEnd)
    sent: list[bytes] = []
    front.reader, front._native, front._failure = 1, native, ""
    front._order, front._put = threading.Lock(), sent.append
    ((kind, content),) = Messages().push(submission(4, 0, [1], {}))
    front._act(kind, content)
    return [(kind, json.loads(told)) for kind, told in Messages().push(b"".join(sent))]


def test_a_defect_is_told_to_who_asked() -> None:
    ((kind, told),) = told_by(BrokenEngine(TypeError("option seed cannot be x")))
    assert kind is Kind.REFUSED and told["ticket"] == 4 and not told["busy"]
    assert told["message"] == "option seed cannot be x"


def test_an_engine_that_has_failed_is_healthy_nowhere() -> None:
    why = "The engine has failed"
    (failed, (kind, told)) = told_by(BrokenEngine(DeviceError(why), why))
    assert failed == (Kind.FAILED, why) and kind is Kind.REFUSED and not told["busy"]
    link = ToldLink()
    hello = {"name": "model", "keys": [], "limits": asdict(Limits()), "silent_seconds": 30}
    link.data_received(json_message(Kind.HELLO, hello) + json_message(Kind.LOADED, FACTS))
    assert link.server is not None
    link.server.ready().engine.check()
    link.data_received(json_message(*failed))
    with pytest.raises(DeviceError, match=why):
        link.server.ready().engine.check()
    link.data_received(json_message(Kind.FAILED, ""))  # a step that hung has ended
    link.server.ready().engine.check()


class SessionsAtTheEnd:
    """An engine of sessions, before whose turn a signal comes."""

    is_closed = False

    @property
    def native(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        self.is_closed = True


def test_a_signal_that_comes_before_sessions_have_their_turn_ends_all() -> None:
    engine: Any = SessionsAtTheEnd()
    with take_port("127.0.0.1", 0) as listening:
        assert serve_with(2, Served("model"), lambda: engine, listening, 1) == {}
        assert engine.is_closed and listening.fileno() == -1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 looks there first")
def test_files_of_the_current_folder_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(os.path.abspath, given)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "uvicorn.py").write_text("raise SystemExit(7)")
    ended = threading.Event()
    with take_port("127.0.0.1", 0) as port:
        front = FrontEnd(1, Served("model"), port, lambda *_: None, lambda _: ended.set())
    client, other = socket.socketpair()
    with client:
        with other:
            assert front.hand(other)
        client.settimeout(LIMIT)
        client.sendall(b"GET /version HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b" 200 " in client.recv(4096)
    front.kill()
    assert ended.wait(LIMIT)


def test_a_front_end_that_is_not_understood_ends() -> None:
    """Nobody would answer it; its clients hear so, and do not wait."""
    ended = threading.Event()

    def hear(*_: object) -> None:
        raise RuntimeError("what is this?")

    with take_port("127.0.0.1", 0) as port:
        front = FrontEnd(1, Served("model"), port, hear, lambda _: ended.set())
    client, other = socket.socketpair()
    with client:
        with other:
            assert front.hand(other)
        client.settimeout(LIMIT)
        client.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert ended.wait(LIMIT) and not front.hand(client)
        while client.recv(4096):
            pass
    assert front.process.returncode == -signal.SIGKILL


def test_who_asked_and_left_is_cancelled_when_the_engine_answers() -> None:
    engine = Engine()

    async def run() -> None:
        asking = asyncio.create_task(engine.remote.ask([1], Sampling()))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        ticket = read_submission(engine.heard[0][1])[0]
        engine.remote.accepted(ACCEPTED.pack(ticket, 5))
        assert engine.heard[1:] == [(Kind.CANCEL, (5).to_bytes(8, "little"))]
        asking = asyncio.create_task(engine.remote.ask([1], Sampling()))
        await asyncio.sleep(0)
        engine.remote.end_all(Error("gone"))
        with pytest.raises(Error, match="gone"):
            await asking

    asyncio.run(run())


def test_messages_come_whole_out_of_any_parts() -> None:
    sent = [(Kind.EVENTS, b"x" * 70_000), (Kind.DRAIN, b""), (Kind.HELLO, b'{"a": 1}')]
    stream = b"".join(message(kind, content) for kind, content in sent)
    assert stream.endswith(json_message(Kind.HELLO, {"a": 1}))
    for size in (1, 7, 4096, len(stream)):
        messages, found = Messages(), []
        for at in range(0, len(stream), size):
            found += messages.push(stream[at : at + size])
        assert found == sent


@pytest.fixture
def native(lm: npusim.LanguageModel) -> _runtime.Engine:
    return _runtime.Engine.of_model(lm.native, max_requests=4, max_waiting=9)


def test_packed_events_say_what_others_say(native: _runtime.Engine) -> None:
    def asked(place: int) -> dict[str, Any]:
        more: dict[str, Any] = [{}, {"logprobs": 2, "prompt_logprobs": 1}, {"logprobs": 0}][place]
        return {"max_tokens": 5, "seed": 1, "temperature": 1.0, "ignore_eos": True, **more}

    backend = PagedBackend(native)
    expected: dict[int, Piece] = {}
    for place in range(3):
        sampling = Sampling(**asked(place))
        number = backend.submit([1, 2, 3 + place], sampling)
        expected[place] = gathered(lambda: backend.poll(10), number)
    for place in range(3):
        number = native.submit([1, 2, 3 + place], asked(place), 9)
        found = gathered(lambda: list(unpacked(native.poll_packed(10, 9))), number)
        assert found == expected[place]
    assert len(expected[1].prompt_logprobs or ()) == 2 and len(expected[1].logprobs[0].top) == 2
    stopping = {**asked(0), "stop_tokens": list(range(288))}
    number = native.submit([1], stopping, 9)
    piece = gathered(lambda: list(unpacked(native.poll_packed(10, 9))), number)
    assert piece.finish_reason == "stop" and piece.stop_token == piece.tokens[-1]
    assert list(unpacked(b"")) == []


def gathered(poll: Callable[[], list[Event]], number: int) -> Piece:
    whole = Piece()
    while whole.finish_reason is None:
        for event in poll():
            assert event.request == number and event.error is None
            whole.add(event.piece)
    return whole


def test_packed_errors_are_of_their_class(native: _runtime.Engine) -> None:
    number = native.submit([1], {"max_tokens": 300, "masked": True}, 9)
    native.close()
    (event,) = unpacked(native.poll_packed(10, 9))
    assert event.request == number and type(event.error) is DeviceError
    assert "was closed" in str(event.error)


def test_masks_are_taken_as_bits(native: _runtime.Engine) -> None:
    number = native.submit([1], {"max_tokens": 1, "masked": True}, 9)
    may = np.zeros(288, np.bool_)
    may[250] = True
    native.allow_packed(number, np.packbits(may, bitorder="little").tobytes())
    piece = gathered(lambda: list(unpacked(native.poll_packed(10, 9))), number)
    assert piece.tokens == [250]
    with pytest.raises(TypeError, match="bits"):
        native.allow_packed(number, bytes(300))

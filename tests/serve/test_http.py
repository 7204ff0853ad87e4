"""What a server does with clients that are no clients: bytes, silence, leaving, too many."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from . import model
from .conftest import Running, Start


def ask(
    server: Running, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], Any]:
    """Returns status, headers and the JSON of an answer."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=60)
    content = json.dumps(body) if isinstance(body, dict) else body
    connection.request("GET" if body is None else "POST", path, content, headers or {})
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    told = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, told, json.loads(raw) if "json" in told["content-type"] else raw.decode()


def connect(server: Running) -> socket.socket:
    parts = urllib.parse.urlsplit(server.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def raw_request(body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def wait_until_idle(server: Running, seconds: float = 30) -> None:
    """Returns when nothing runs or waits."""
    until = time.monotonic() + seconds
    while numbers(server, "npusim:num_requests_running") + numbers(
        server, "npusim:num_requests_waiting"
    ):
        assert time.monotonic() < until, "requests are left"
        time.sleep(0.02)


def numbers(server: Running, name: str) -> float:
    """Returns the sum of a metric over its labels."""
    lines = ask(server, "/metrics")[2].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"\xff",
        b'{"prompt": "\\ud800"}',
        b'{"prompt": NaN}',
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": "0", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": "0", "max_tokens": 1e999}',
        b'{"prompt": "0", "logit_bias": {"' + b"9" * 5000 + b'": 1}}',
        b"{}",
    ],
    ids=len,
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_bodies_that_are_none(spoken: Running, body: bytes, path: str) -> None:
    status, _, told = ask(spoken, path, body)
    assert status == 400 and told["error"]["type"] == "invalid_request_error"
    assert told["error"]["message"]


def test_paths_and_methods_that_are_none(spoken: Running) -> None:
    assert ask(spoken, "/v1/other")[0] == 404
    assert ask(spoken, "/v1/completions")[0] == 405
    assert ask(spoken, "/health", b"{}")[0] == 405


def test_bodies_that_are_too_large(start: Start) -> None:
    server = start("spoken", "--max-body", "10K")
    text = {"prompt": "0" * 10_240, "max_tokens": 1}
    assert ask(server, "/v1/completions", text)[0] == 413
    with connect(server) as client:  # without a length, in parts
        client.sendall(b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            client.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
        assert b" 413 " in client.recv(4096)
    assert ask(server, "/tokenize", {"prompt": "0" * 9000})[2]["count"] == 9000


def test_a_client_may_make_prompts_by_itself(spoken: Running) -> None:
    """As lm-evaluation-harness does with `tokenizer_backend=remote`: lm_eval/utils.py."""
    with urllib.request.urlopen(spoken.url + "/tokenizer_info") as answer:
        told = json.load(answer)
    assert told == {
        "chat_template": model.TEMPLATE,
        "eos_token": model.END,
        **dict.fromkeys(("bos_token", "pad_token", "unk_token")),
    }
    ends = ask(spoken, "/tokenize", {"prompt": told["eos_token"], "add_special_tokens": False})
    assert ends[2]["tokens"] == [256 + model.SPECIAL.index(model.END)]


def test_texts_become_tokens_and_tokens_texts(spoken: Running) -> None:
    told = ask(spoken, "/tokenize", {"prompt": "é<|im_end|>"})[2]
    end = 256 + model.SPECIAL.index(model.END)
    assert told == {"tokens": [*"é".encode(), end], "count": 3, "max_model_len": model.CONTEXT}
    assert ask(spoken, "/detokenize", {"tokens": [*"é".encode()]})[2] == {"prompt": "é"}
    assert ask(spoken, "/detokenize", {"tokens": [model.VOCABULARY]})[0] == 400
    turns = {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False}
    start_, end_ = (256 + model.SPECIAL.index(s) for s in model.SPECIAL[1:])
    expected = [start_, *b"user\nx", end_, ord("\n")]
    assert ask(spoken, "/tokenize", turns)[2]["tokens"] == expected


def test_metrics_count(start: Start) -> None:
    server = start("spoken")
    assert ask(server, "/v1/completions", {"prompt": "01", "max_tokens": 5})[0] == 200
    assert ask(server, "/v1/completions", {"prompt": 5})[0] == 400
    for name, expected in {
        "npusim:prompt_tokens_total": 2,
        "npusim:generation_tokens_total": 5,
        "npusim:request_success_total": 1,
        "npusim:time_to_first_token_seconds_count": 1,
        "npusim:inter_token_latency_seconds_count": 4,
        "npusim:e2e_request_latency_seconds_count": 1,
        "npusim:num_requests_running": 0,
    }.items():
        if name.endswith("latency_seconds_count") and "inter" in name:
            assert numbers(server, name) <= expected  # tokens may come together
        else:
            assert numbers(server, name) == expected, name
    assert 'status="400"' in ask(server, "/metrics")[2]


@pytest.mark.parametrize("program", ["model", "paged"])
def test_clients_that_vanish_end_their_requests(start: Start, program: str) -> None:
    """Streams and whole answers, before and after the first token."""
    server = start("spoken", program=program)
    body = {"prompt": "0", "max_tokens": 380}
    for number in range(40):
        client = connect(server)
        client.sendall(raw_request({**body, "stream": number % 2 == 0}))
        if number % 4 == 0:
            assert b"data:" in b"".join(client.recv(4096) for _ in range(3))
        client.close()
    wait_until_idle(server)
    assert numbers(server, "npusim:kv_cache_usage_perc") == 0
    assert ask(server, "/v1/completions", {"prompt": "0", "max_tokens": 2})[0] == 200
    assert any(line.get("status") == 499 for line in _drained(server))


def _drained(server: Running) -> list[dict[str, Any]]:
    assert server.stop() == 0
    server.wait_for("drained")
    return server.log


@pytest.mark.parametrize("program", ["model", "paged"])
def test_a_slow_reader_holds_up_nobody(start: Start, program: str) -> None:
    server = start("spoken", program=program)
    with connect(server) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        slow.sendall(raw_request({"prompt": "0", "max_tokens": 380, "n": 30, "stream": True}))
        slow.recv(100)
        wait_until_idle(server, 120)
        assert numbers(server, "npusim:kv_cache_usage_perc") == 0, (
            "its pages are free before it reads"
        )
        assert ask(server, "/v1/completions", {"prompt": "0", "max_tokens": 2})[0] == 200
        received = slow.recv(1)  # a byte, and then all
        while b"[DONE]" not in received[-64:]:
            part = slow.recv(1 << 16)
            assert part, "the stream ended early"
            received += part
    texts = [choice["text"] for line in _data(received) for choice in json.loads(line)["choices"]]
    assert len("".join(texts)) == 380 * 30


def _data(stream: bytes) -> list[bytes]:
    """Returns the data of events, out of an answer in parts."""
    body, content = stream.partition(b"\r\n\r\n")[2], b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        content, body = content + rest[:length], rest[length + 2 :]
    events = content.split(b"\n\n")
    return [event[6:] for event in events if event and event != b"data: [DONE]"]


def test_a_full_queue_says_when_to_come_again(start: Start) -> None:
    server = start("spoken", "--max-batch", 1, "--max-waiting", 2)
    body = {"prompt": "0", "max_tokens": 380}
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda _: ask(server, "/v1/completions", body), range(24)))
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 429} and statuses.count(200) >= 3
    for status, headers, told in answers:
        if status == 429:
            assert 1 <= int(headers["retry-after"]) <= 60
            assert told["error"]["code"] == "rate_limit_exceeded"
        else:
            assert told["choices"][0]["text"] == ("1234567890" * 38)
    both = {**body, "n": 4}  # one too many is none at all, and never will be
    assert ask(server, "/v1/completions", both)[0] == 400
    wait_until_idle(server)
    assert ask(server, "/v1/completions", {**both, "n": 3})[0] == 200


def test_a_second_server_on_a_port_is_refused(spoken: Running, folder: Path) -> None:
    port = urllib.parse.urlsplit(spoken.url).port
    command = [sys.executable, "-m", "npusim.cli", "serve", folder / "model.npubin"]
    options = ["--weights", folder / "spoken", "--port", str(port)]
    second = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert second.returncode == 2 and "cannot be taken" in second.stderr
    assert ask(spoken, "/health")[0] == 200


def test_a_model_that_cannot_be_loaded_ends_the_server(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    server = Running(folder / "model.npubin", "--weights", tmp_path)
    assert server.process.wait(60) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_lets_requests_end(start: Start, number: int) -> None:
    server = start("spoken")
    with connect(server) as client:
        client.sendall(raw_request({"prompt": "0", "max_tokens": 380, "stream": True}))
        received = client.recv(1000)
        server.process.send_signal(number)
        while part := client.recv(1 << 16):
            received += part
    assert received.rstrip().endswith(b"data: [DONE]\n\n\r\n0")
    assert server.process.wait(60) == 0  # another signal would end it at once
    assert server.process.stdout is not None and "1 x 200" in server.process.stdout.read()


def test_requests_that_outlast_the_end_hear_of_it(start: Start) -> None:
    server = start("spoken", "--drain-timeout", 0.1)
    body = {"prompt": "0", "max_tokens": 380, "n": 100, "stream": True}
    with connect(server) as client:
        client.sendall(raw_request(body))
        received = client.recv(1000)
        server.process.send_signal(signal.SIGTERM)
        while part := client.recv(1 << 16):
            received += part
    assert b"[DONE]" not in received
    error = json.loads(_data(received)[-1])["error"]
    assert error["code"] == "unavailable" and "shuts down" in error["message"]
    assert server.process.wait(60) == 0  # another signal would end it at once


def test_unfinished_bodies_hold_up_nobody(spoken: Running) -> None:
    with connect(spoken) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        assert ask(spoken, "/health")[0] == 200

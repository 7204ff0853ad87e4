"""Bodies, grammars and bytes that a stranger may send: each is answered, or refused as any other.

What a value may be, `test_client` and `test_http` ask by the ordinary ones; here are the edges.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import uvicorn

from npusim.serve.connection import Connection
from npusim.serve.fields import RequestError
from npusim.serve.openai import parse_chat, parse_completion

from . import model
from .conftest import Running, Start
from .test_http import ask, connect, raw_request

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
TURNS = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def paged(start: Start) -> Running:
    return start("spoken", program="paged")


def refused(told: tuple[int, dict[str, str], Any], words: str = "") -> None:
    status, _, body = told
    assert status == 400, body
    error = body["error"]
    assert error["type"] == "invalid_request_error" and set(error) == {
        "message", "type", "param", "code",
    }  # fmt: skip
    assert words in error["message"], error


def texts(server: Running, **body: Any) -> list[str]:
    status, _, told = ask(server, COMPLETIONS, {"prompt": "0", "max_tokens": 3, **body})
    assert status == 200, told
    return [choice["text"] for choice in told["choices"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"seed": -5, "temperature": 1}, ["123"]),
        ({"seed": -(2**63), "n": 2}, ["123"] * 2),
        ({"temperature": 1e-300}, ["123"]),
        ({"temperature": 5e-324, "top_p": 5e-324}, ["123"]),
        ({"top_p": 1e-300, "top_k": 1}, ["123"]),
        ({"min_p": 1, "temperature": 50}, ["123"]),
        ({"repetition_penalty": 5e-324, "temperature": 0}, None),
        ({"n": 40}, ["123"] * 40),  # more than run at a time
        ({"n": 1, "best_of": 20}, ["123"]),
        ({"stop": ["2", "\N{GRINNING FACE}\N{ZERO WIDTH JOINER}"]}, ["1"]),
        ({"stop": []}, ["123"]),
        ({"stop": None, "logit_bias": {}, "suffix": "", "stream_options": None}, ["123"]),
        ({"echo": True, "max_tokens": 0, "prompt": "é"}, ["é"]),
        ({"echo": True, "max_tokens": 0, "prompt": [*"é".encode()]}, ["é"]),
        ({"echo": True, "prompt": "\x00"}, None),
        ({"prompt": ["0", [ord("5")]]}, ["123", "678"]),
        ({"max_tokens": 2.0}, ["12"]),
        ({"logit_bias": {"048": -0.0}}, ["123"]),
        ({"response_format": {"type": "text"}}, ["123"]),
        ({"user": "\N{PILE OF POO}", "metadata": [[[]]]}, ["123"]),
    ],
)
def test_edges_of_what_is_allowed(
    paged: Running, options: dict[str, Any], expected: list[str] | None
) -> None:
    found = texts(paged, **options)
    assert expected is None or found == expected


def test_a_stop_string_of_many_bytes_ends_in_a_stream_too(spoken: Running) -> None:
    body = {"prompt": "\n", "stop": "\N{GRINNING FACE}é", "max_tokens": 30, "stream": True}
    told = ask(spoken, COMPLETIONS, body)[2]
    events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == "Hi "


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"0"', "[]"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "seed", "max_tokens", "logit_bias"])
def test_numbers_that_are_none(spoken: Running, field: str, number: str) -> None:
    value = number if field != "logit_bias" else f'{{"48": {number}}}'
    refused(ask(spoken, COMPLETIONS, f'{{"prompt": "0", "{field}": {value}}}'))
    turns = json.dumps(TURNS)
    refused(ask(spoken, CHATS, f'{{"messages": {turns}, "{field}": {value}}}'))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"seed": 1.5}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"temperature": True}, "temperature"),
        ({"logit_bias": [48]}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"48": True}}, "logit_bias"),
        ({"logit_bias": {"4²": 1}}, "logit_bias"),
        ({"echo": "yes"}, "echo"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"prompt": [[48, "a"]]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [48.0]}, "prompt"),
        ({"prompt": {"text": "0"}}, "prompt"),
        ({"prompt": ["0"] * 129}, "prompt"),
        ({"prompt": ["0"] * 65, "n": 2}, "n"),
        ({"stop": [1]}, "stop"),
        ({"stop": "x" * 1025}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"response_format": []}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": 5}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ],
)
def test_values_that_are_refused_name_their_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_completion({"prompt": "0", **options})
    assert (error.value.status, error.value.param) == (400, field)
    if "prompt" in options or {"echo", "best_of"} & set(options):
        return
    with pytest.raises(RequestError) as error:
        parse_chat({"messages": TURNS, **options})
    assert (error.value.status, error.value.param) == (400, field)


def test_variables_of_a_template_cannot_take_the_place_of_the_conversation(
    spoken: Running,
) -> None:
    for name in ("messages", "add_generation_prompt"):
        status, _, told = ask(
            spoken, CHATS, {"messages": TURNS, "chat_template_kwargs": {name: []}}
        )
        assert status == 400 or told["choices"][0]["message"]["content"] == model.SPOKEN


def deep(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def chained(rules: int) -> str:
    """Returns a grammar each of whose rules names the next one."""
    named = [f"r{place}: r{place + 1}" for place in range(rules)]
    return "\n".join(["start: r0", *named, f'r{rules}: "a"'])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "what"},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.com/schema.json"},
        {"type": "string", "pattern": "(" * 400 + "a" + ")" * 400},
        {"type": "string", "pattern": "(?<=a)b"},
        {"enum": []},
        {"type": "integer", "minimum": 5, "maximum": 1},
        deep(400),
        {"enum": ["x" * (64 << 10)]},
    ],
    ids=lambda schema: str(schema)[:20],
)
def test_schemas_that_cannot_be_used(paged: Running, schema: Any) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    refused(ask(paged, CHATS, {"messages": TURNS, "response_format": form, "max_tokens": 4}))


def test_forms_that_grow_too_large_are_refused_by_their_field(paged: Running) -> None:
    pytest.importorskip("llguidance")
    for kind, value in (("regex", "(a{1000}){1000}"), ("regex", "("), ("grammar", "start: what")):
        told = ask(paged, COMPLETIONS, {"prompt": "0", "structured_outputs": {kind: value}})
        refused(told)
        assert told[2]["error"]["param"] == f"structured_outputs.{kind}"


def test_grammars_that_are_deep_end_no_server(paged: Running) -> None:
    """Which they would by the stack of whoever follows the rules, one call a rule."""
    pytest.importorskip("llguidance")
    body = {"prompt": "0", "max_tokens": 4}
    for rules in (3000, 4900):
        grammar = {"structured_outputs": {"grammar": chained(rules)}}
        assert texts(paged, **body, **grammar) == ["a"]
    links = {f"{i}": {"$ref": f"#/$defs/{i + 1}"} for i in range(1600)}
    schema = {"$defs": {**links, "1600": {"const": 7}}, "$ref": "#/$defs/0"}
    assert texts(paged, **body, structured_outputs={"json": schema}) == ["7"]
    longer = {"structured_outputs": {"grammar": chained(6000)}}
    refused(ask(paged, COMPLETIONS, {**body, **longer}), "characters")


# ---- bytes


def exchange(server: Running, sent: bytes) -> bytes:
    """Returns all that comes back until the server ends the connection, or has nothing to say."""
    with connect(server) as client:
        client.sendall(sent)
        client.settimeout(2)
        received = b""
        try:
            while part := client.recv(1 << 16):
                received += part
        except (TimeoutError, ConnectionResetError):
            pass
        return received


HEAD = b"POST /tokenize HTTP/1.1\r\nhost: x\r\n"
CLOSE = b"connection: close\r\n"
ZERO = b'{"prompt": "0"}'


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HEAD + CLOSE + b"transfer-encoding: chunked\r\n\r\n5\r\n" + ZERO[:5]
         + b"\r\na;x=y\r\n" + ZERO[5:] + b"\r\n0\r\n\r\n", b"200"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (HEAD + b"content-length: 15\r\ncontent-length: 14\r\n\r\n" + ZERO, b"400"),
        (HEAD + b"content-length: x\r\n\r\n", b"400"),
        (HEAD + b"content-length: -1\r\n\r\n", b"400"),
        (HEAD + CLOSE + b"expect: 100-continue\r\ncontent-length: 15\r\n\r\n" + ZERO, b"100"),
        (HEAD + CLOSE + b"authorization: Bearer \xff\xfe\r\ncontent-length: 15\r\n\r\n" + ZERO,
         b"200"),
        (HEAD + b"bad header\r\n\r\n", b"400"),
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),  # TLS
        (b"GET /v1/models/%ff%00 HTTP/1.1\r\nhost: x\r\n" + CLOSE + b"\r\n", b"404"),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nhost: x\r\n" + CLOSE + b"\r\n", b"404"),
        (b"DELETE /v1/models HTTP/1.1\r\nhost: x\r\n" + CLOSE + b"\r\n", b"405"),
    ],
    ids=lambda value: value[:3].decode() if len(value) == 3 else "",
)  # fmt: skip
def test_requests_of_bytes(spoken: Running, sent: bytes, status: bytes) -> None:
    received = exchange(spoken, sent)
    assert received.startswith(b"HTTP/1.1 " + status), received[:200]
    if status == b"400":
        head, _, body = received.partition(b"\r\n\r\n")
        assert b"connection: close" in head.lower()
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_requests_that_come_together_are_answered_in_order(spoken: Running) -> None:
    asked = [raw_request({"prompt": prompt, "max_tokens": 1}) for prompt in ("0", "5", "7")]
    received = exchange(spoken, b"".join(asked))
    places = [received.find(b'"text":"%s"' % text) for text in (b"1", b"6", b"8")]
    assert -1 not in places and places == sorted(places), received


@pytest.mark.parametrize("line", [b"a: " + b"x" * 1000 + b"\r\n", b"x" * 1000])
def test_a_head_that_does_not_end_is_refused(spoken: Running, line: bytes) -> None:
    with connect(spoken) as client:
        client.settimeout(20)
        client.sendall(HEAD + b"a: ")
        try:
            for _ in range(4096):  # 4 MB
                client.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            pytest.fail("all of it was taken")
    assert ask(spoken, "/health")[0] == 200


def test_a_connection_without_a_request_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.2)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def run() -> None:
        config = uvicorn.Config(app, http=Connection, log_config=None, lifespan="off")
        config.load()
        state = uvicorn.Server(config).server_state
        loop = asyncio.get_running_loop()
        serving = await loop.create_server(
            lambda: Connection(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        for sent, answer in ((b"", b""), (HEAD, b""), (HEAD + b"\r\n", b"HTTP/1.1 204")):
            reader, writer = await asyncio.open_connection(*serving.sockets[0].getsockname())
            writer.write(sent)
            received = await asyncio.wait_for(reader.read(12 if answer else -1), 10)
            assert received == answer
            writer.close()
        serving.close()

    asyncio.run(run())
